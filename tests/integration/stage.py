"""A stage for schedules on a real PostgreSQL: two owners, the lease, and open transactions.

A schedule fixes the interleaving by open transactions. It reads from the server whether a statement waits (`pg_blocking_pids`)
and never guesses it from a pause. `write` and `take_over` here are the product's own statements; the unsafe ones are in
`mutants.py` and have the same shape.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar
from uuid import UUID, uuid4

import asyncpg

from fencepost.adapters.postgres.database import Connection, current_history, open_pool
from fencepost.adapters.postgres.lane_writer import lane_statement
from fencepost.adapters.postgres.ledger import PostgresLedger
from fencepost.adapters.postgres.pool import Pool
from fencepost.adapters.postgres.queries import sql
from fencepost.adapters.postgres.query_reader import PostgresReader
from fencepost.application.ports import Clock, Cursor, LaneWrite, NewRequest, TxChange
from fencepost.domain import transaction_state
from fencepost.domain.ids import Address, Signer, TxHash
from fencepost.domain.lease import Term
from fencepost.domain.transaction import Call, Fees, SignedTx, TxType
from fencepost.domain.transaction_state import Attempt, Intent, Kind, ManagedTx, Purpose
from fencepost.runtime.clock import MonotonicClock

PATIENCE_S = 10.0
POLL_S = 0.005
LEASE_S = 30.0
SIGNER = Signer(31_337, Address("0x" + "ab" * 20))

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Owner:
    """A process: the name of its node, and its incarnation."""

    node: str
    incarnation: UUID = field(default_factory=uuid4)


class Stage:
    def __init__(self, dsn: str, admin: Connection, stack: AsyncExitStack) -> None:
        self.dsn = dsn
        self.admin = admin
        self.old = Owner("old")
        self.new = Owner("new")
        self._stack = stack

    async def connect(self) -> asyncpg.Connection[asyncpg.Record]:
        connection = await asyncpg.connect(self.dsn)
        self._stack.callback(connection.terminate)
        return connection

    async def ledger(self, owner: Owner, *, clock: Clock | None = None) -> PostgresLedger:
        pool = Pool(await asyncpg.create_pool(self.dsn, min_size=1, max_size=2))
        self._stack.push_async_callback(pool.terminate)
        return PostgresLedger(
            pool,
            clock=clock or MonotonicClock(),
            node=owner.node,
            incarnation=owner.incarnation,
            lease_duration_s=LEASE_S,
            skew_allowance_s=0.0,
        )

    async def request(self, value_wei: int = 1, *, signer: Signer = SIGNER) -> ManagedTx:
        """Store a request that waits for its nonce."""
        ledger = await self.ledger(self.new)
        await ledger.accept([new_request(value_wei, signer=signer)])
        found = await ledger.find_by_request(signer, f"request-{value_wei}")
        assert found is not None
        return found

    async def acquire(self, owner: Owner, *, signer: Signer = SIGNER) -> Term:
        (term,) = await (await self.ledger(owner)).acquire([signer])
        return term

    async def expire(self) -> None:
        await self.admin.execute("UPDATE signer_lease SET expires_at = '-infinity'")

    async def rows(self) -> list[tuple[Any, ...]]:
        """Return what a new owner reads."""
        found = await self.admin.fetch(
            "SELECT tx_id, state, nonce, fencing_token FROM managed_tx ORDER BY seq"
        )
        return [tuple(row.values()) for row in found]

    async def nonces(self) -> list[int]:
        found = await self.admin.fetch("SELECT nonce FROM managed_tx WHERE nonce IS NOT NULL ORDER BY nonce")
        return [row["nonce"] for row in found]

    async def late_writes(self) -> int:
        """Count journal rows of an older token that a newer term did not see when it began."""
        return int(
            await self.admin.fetchval(
                "SELECT count(*) FROM journal j JOIN lease_term t USING (chain_id, signer)"
                " WHERE j.fencing_token < t.fencing_token"
                "   AND NOT pg_visible_in_snapshot(j.xid, t.sealed_snapshot)"
            )
        )

    async def gaps(self) -> str | None:
        """Check that a signer's nonces are exactly start … next-1; return what is wrong."""
        cursor = await self.admin.fetchrow("SELECT start_nonce, next_nonce FROM signer_nonce_cursor")
        nonces = await self.nonces()
        wanted = [] if cursor is None else list(range(cursor["start_nonce"], cursor["next_nonce"]))
        return None if nonces == wanted else f"nonces are {nonces}, the cursor says {wanted}"

    async def waits(self, task: asyncio.Task[Any], *, behind: Connection) -> bool:
        """Return True when this connection blocks another one, False when the task finishes without that."""
        pid = behind.get_server_pid()

        async def is_blocking() -> bool:
            return bool(
                await self.admin.fetchval(
                    "SELECT EXISTS (SELECT 1 FROM pg_stat_activity a WHERE $1 = ANY (pg_blocking_pids(a.pid)))",
                    pid,
                )
            )

        async def is_settled() -> bool:
            return task.done() or await is_blocking()

        await until(is_settled)
        return not task.done()

    async def kill(self, connection: Connection) -> None:
        """Terminate the connection at the server: uncommitted work is rolled back."""
        pid = connection.get_server_pid()
        await self.admin.execute("SELECT pg_terminate_backend($1)", pid)

        async def is_gone() -> bool:
            alive = await self.admin.fetchval(
                "SELECT EXISTS (SELECT 1 FROM pg_stat_activity WHERE pid = $1)", pid
            )
            return not alive and connection.is_closed()

        await until(is_gone)


async def until(happened: Callable[[], Awaitable[object]]) -> None:
    """Poll the server until the condition holds; bounded."""
    for _ in range(int(PATIENCE_S / POLL_S)):
        if await happened():
            return
        await asyncio.sleep(POLL_S)
    raise AssertionError("the condition did not hold in time")


@asynccontextmanager
async def pool_of(
    dsn: str, *, size: int = 3, lease_duration_s: float = LEASE_S, connect_timeout_s: float = 5.0
) -> AsyncIterator[Pool]:
    async with open_pool(
        dsn,
        size=size,
        connect_timeout_s=connect_timeout_s,
        lease_duration_s=lease_duration_s,
        application="fencepost-test",
    ) as pool:
        yield pool


@asynccontextmanager
async def open_stage(dsn: str) -> AsyncIterator[Stage]:
    async with AsyncExitStack() as stack:
        admin = await asyncpg.connect(dsn)
        stack.callback(admin.terminate)
        yield Stage(dsn, admin, stack)


async def bounded(task: Awaitable[Result]) -> Result:
    async with asyncio.timeout(PATIENCE_S):
        return await task


def begin(coroutine: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
    return asyncio.get_running_loop().create_task(coroutine)


def new_request(value_wei: int, *, signer: Signer = SIGNER, request_id: str | None = None) -> NewRequest:
    return NewRequest(
        tx_id=uuid4(),
        signer=signer,
        request_id=request_id or f"request-{value_wei}",
        kind=Kind.INTENT,
        intent=Intent(call=Call(to=signer.address, value_wei=value_wei)),
    )


# ---- the product's own statements, on a connection whose transaction the schedule controls

Write = Callable[[Connection, Term, ManagedTx], Coroutine[Any, Any, bool]]
TakeOver = Callable[[Stage, Owner], Coroutine[Any, Any, int | None]]


def allocation(tx: ManagedTx, *, nonce: int, before: Cursor | None, term: Term) -> LaneWrite:
    """Build what `allocate` commits: nonce, bytes, state, journal and cursor in one write."""
    raw = f"{tx.tx_id} at {nonce}".encode()
    attempt = Attempt(
        number=1,
        purpose=Purpose.INTENT,
        type=TxType.DYNAMIC_FEE,
        gas=21_000,
        fees=Fees(fee_cap_wei=2, tip_wei=1),
        signed=SignedTx(raw=raw, hash=TxHash("0x" + hashlib.sha256(raw).hexdigest())),
    )
    step = transaction_state.assign_nonce(tx, nonce, attempt)
    return LaneWrite(
        term=term,
        changes=(TxChange(before=tx, after=step.tx, entries=step.entries),),
        cursor_before=before,
        cursor_after=Cursor(next_nonce=nonce + 1, start_nonce=0 if before is None else before.start_nonce),
    )


async def commit_lanes(connection: Connection, write: LaneWrite) -> tuple[bool, bool]:
    """Run the fenced statement; return (lease_ok, applied)."""
    statement, arguments = lane_statement([write], now_s=0.0, node="a test's node")
    row = await connection.fetchrow(statement, *arguments)
    return (False, False) if row is None or row["applied"] is None else (True, row["applied"])


async def write(connection: Connection, term: Term, tx: ManagedTx) -> bool:
    _, applied = await commit_lanes(connection, allocation(tx, nonce=0, before=None, term=term))
    return applied


async def take_over(stage: Stage, owner: Owner) -> int | None:
    terms = await (await stage.ledger(owner)).acquire([SIGNER])
    return terms[0].token if terms else None


async def acquire_statements(connection: Connection, owner: Owner) -> int | None:
    """Run the statements of `PostgresLedger.acquire` in a transaction that the schedule holds open."""
    signers = [SIGNER.chain_id], [SIGNER.address]
    await connection.execute(sql("lease_insert_missing"), *signers)
    history = await current_history(connection)
    token: int | None = await connection.fetchval(
        sql("lease_acquire"),
        *signers,
        owner.node,
        owner.incarnation,
        LEASE_S,
        0.0,
        history.number,
        column=2,
    )
    if token is not None:
        await connection.execute(sql("lease_record_terms"), *signers, owner.incarnation)
    return token


@asynccontextmanager
async def open_reader(dsn: str) -> AsyncIterator[PostgresReader]:
    pool = Pool(await asyncpg.create_pool(dsn, min_size=1, max_size=1))
    try:
        yield PostgresReader(pool)
    finally:
        await pool.close()
