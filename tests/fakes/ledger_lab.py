"""Two ledgers under one contract: the fake in memory and the real one on PostgreSQL.

A lab lets several nodes use one database and moves the database's time by hand: it advances the fake's clock, or sets the rows
of the real one back by as much, so no test waits.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Protocol
from uuid import UUID, uuid4

from fakes.clock import FakeClock
from fencepost.adapters.postgres.database import open_pool
from fencepost.adapters.postgres.ledger import PostgresLedger
from fencepost.adapters.postgres.pool import Pool
from fencepost.application.ports import Ledger, NewRequest
from fencepost.domain.ids import Address, Signer, TxHash
from fencepost.domain.transaction import Call, Fees, SignedTx, TxType
from fencepost.domain.transaction_state import Attempt, Intent, Kind, Purpose
from fencepost.testing import InMemoryDatabase, InMemoryLedger

LEASE_S = 10.0
SKEW_S = 2.0
ALICE = Signer(31_337, Address("0x" + "a1" * 20))
BOB = Signer(31_337, Address("0x" + "b2" * 20))
ON_OTHER_CHAIN = Signer(1, Address("0x" + "a1" * 20))


class LedgerLab(Protocol):
    clock: FakeClock

    async def node(self, name: str) -> Ledger: ...
    async def pass_time(self, seconds: float) -> None: ...
    async def begin_history(self, *, by_copy: bool = False) -> None:
        """Act as if the server had just been promoted, or the database copied."""

    async def events(self, tx_id: UUID | None) -> list[str]: ...
    async def outcome(self, command_id: int) -> str | None: ...
    async def spoil(self, tx_id: UUID) -> None: ...  # makes its stored payload unreadable


class FakeLedgerLab:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self._database = InMemoryDatabase(self.clock)

    async def node(self, name: str) -> Ledger:
        return InMemoryLedger(self._database, node=name, lease_duration_s=LEASE_S, skew_allowance_s=SKEW_S)

    async def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)

    async def begin_history(self, *, by_copy: bool = False) -> None:
        replace = self._database.restore if by_copy else self._database.fail_over
        replace(self._database.copied())

    async def events(self, tx_id: UUID | None) -> list[str]:
        return [row.event for row in self._database.journal_of(tx_id)]

    async def outcome(self, command_id: int) -> str | None:
        return self._database.outcome(command_id)

    async def spoil(self, tx_id: UUID) -> None:
        self._database.unreadable[tx_id] = "spoiled"


class PostgresLedgerLab:
    def __init__(self, pool: Pool, dsn: str, stack: AsyncExitStack) -> None:
        self.clock = FakeClock()
        self._pool = pool
        self._dsn = dsn
        self._stack = stack

    async def node(self, name: str) -> Ledger:
        pool = await self._stack.enter_async_context(_pool(self._dsn, name))
        ledger = PostgresLedger(
            pool,
            clock=self.clock,
            node=name,
            incarnation=uuid4(),
            lease_duration_s=LEASE_S,
            skew_allowance_s=SKEW_S,
        )
        self._stack.push_async_callback(ledger.drain)
        return ledger

    async def pass_time(self, seconds: float) -> None:
        await self._pool.execute(
            "UPDATE signer_lease SET expires_at = expires_at - make_interval(secs => $1)", seconds
        )
        await self._pool.execute(
            "UPDATE database_history SET began_at = began_at - make_interval(secs => $1)", seconds
        )
        await self._pool.execute(
            "UPDATE managed_tx SET valid_until = valid_until - make_interval(secs => $1),"
            " last_submit_at = last_submit_at - make_interval(secs => $1),"
            " next_resubmit_at = next_resubmit_at - make_interval(secs => $1)",
            seconds,
        )
        self.clock.advance(seconds)

    async def begin_history(self, *, by_copy: bool = False) -> None:
        column = "database_oid" if by_copy else "timeline"
        await self._pool.execute(
            f"UPDATE database_history SET {column} = 0"
        )  # no node knows the current identity yet

    async def events(self, tx_id: UUID | None) -> list[str]:
        found = await self._pool.fetch(
            "SELECT event FROM journal WHERE tx_id IS NOT DISTINCT FROM $1 ORDER BY id", tx_id
        )
        return [row["event"] for row in found]

    async def outcome(self, command_id: int) -> str | None:
        found = await self._pool.fetchval("SELECT outcome FROM lane_command WHERE id = $1", command_id)
        return None if found is None else str(found)

    async def spoil(self, tx_id: UUID) -> None:
        await self._pool.execute("UPDATE managed_tx SET payload = '{}' WHERE tx_id = $1", tx_id)


@asynccontextmanager
async def _pool(dsn: str, name: str) -> AsyncIterator[Pool]:
    async with open_pool(
        dsn, size=4, connect_timeout_s=10, lease_duration_s=LEASE_S, application=f"test {name}"
    ) as pool:
        yield pool


@asynccontextmanager
async def open_postgres_lab(dsn: str) -> AsyncIterator[PostgresLedgerLab]:
    async with AsyncExitStack() as stack:
        yield PostgresLedgerLab(await stack.enter_async_context(_pool(dsn, "lab")), dsn, stack)


def tx_hash(name: str) -> TxHash:
    return TxHash("0x" + hashlib.sha256(name.encode()).hexdigest())


def attempt(name: str, *, number: int = 1, purpose: Purpose = Purpose.INTENT) -> Attempt:
    """Return an attempt with distinct bytes; the ledger does not decode them."""
    return Attempt(
        number=number,
        purpose=purpose,
        type=TxType.DYNAMIC_FEE,
        gas=21_000,
        fees=Fees(fee_cap_wei=2**70 + number, tip_wei=2**65),
        signed=SignedTx(raw=name.encode(), hash=tx_hash(name)),
    )


def new(
    request_id: str | None = None,
    *,
    signer: Signer = ALICE,
    value_wei: int = 1,
    valid_for_s: float | None = None,
) -> NewRequest:
    return NewRequest(
        tx_id=uuid4(),
        signer=signer,
        request_id=request_id,
        kind=Kind.INTENT,
        intent=Intent(call=Call(to=BOB.address, value_wei=value_wei)),
        valid_for_s=valid_for_s,
    )
