"""Fixtures of several contract suites: a ledger of either kind."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from fakes.ledger_lab import FakeLedgerLab, LedgerLab, PostgresLedgerLab, open_postgres_lab
from fencepost.adapters.postgres import lane_writer


@pytest_asyncio.fixture
async def fake_lab() -> FakeLedgerLab:
    return FakeLedgerLab()


@pytest_asyncio.fixture
async def postgres_lab(dsn: str) -> AsyncIterator[PostgresLedgerLab]:
    async with open_postgres_lab(dsn) as made:
        yield made


@pytest_asyncio.fixture
async def postgres_lab_with_arrays(
    postgres_lab: PostgresLedgerLab, monkeypatch: pytest.MonkeyPatch
) -> PostgresLedgerLab:
    """Pass the rows of every write in arrays, even those of a single lane."""
    monkeypatch.setattr(lane_writer, "MAX_ROWS_BY_VALUE", 0)
    return postgres_lab


@pytest.fixture(params=["fake_lab", "postgres_lab", "postgres_lab_with_arrays"])
def lab(request: pytest.FixtureRequest) -> LedgerLab:
    made: LedgerLab = request.getfixturevalue(request.param)
    return made
