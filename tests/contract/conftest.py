"""What more than one contract suite needs: a ledger of either kind."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from fakes.ledger_lab import FakeLedgerLab, LedgerLab, PostgresLedgerLab, open_postgres_lab


@pytest_asyncio.fixture
async def fake_lab() -> FakeLedgerLab:
    return FakeLedgerLab()


@pytest_asyncio.fixture
async def postgres_lab(dsn: str) -> AsyncIterator[PostgresLedgerLab]:
    async with open_postgres_lab(dsn) as made:
        yield made


@pytest.fixture(params=["fake_lab", "postgres_lab"])
def lab(request: pytest.FixtureRequest) -> LedgerLab:
    made: LedgerLab = request.getfixturevalue(request.param)
    return made
