"""What more than one contract suite needs: a ledger of either kind."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from fakes.ledger_lab import FakeLedgerLab, LedgerLab, PostgresLedgerLab, open_postgres_lab
from fencepost.adapters.postgres import one_lane


@pytest_asyncio.fixture
async def fake_lab() -> FakeLedgerLab:
    return FakeLedgerLab()


@pytest_asyncio.fixture
async def postgres_lab(dsn: str) -> AsyncIterator[PostgresLedgerLab]:
    async with open_postgres_lab(dsn) as made:
        yield made


@pytest_asyncio.fixture
async def postgres_lab_of_many(
    postgres_lab: PostgresLedgerLab, monkeypatch: pytest.MonkeyPatch
) -> PostgresLedgerLab:
    """Whatever is written goes the way of many lanes, even if it is little."""
    monkeypatch.setattr(one_lane, "MOST_CHANGES", -1)
    return postgres_lab


@pytest.fixture(params=["fake_lab", "postgres_lab", "postgres_lab_of_many"])
def lab(request: pytest.FixtureRequest) -> LedgerLab:
    made: LedgerLab = request.getfixturevalue(request.param)
    return made
