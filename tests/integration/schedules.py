"""Fixed interleavings of two processes. Each returns what went wrong, or None.

The steps are the same for the product's statements and for a mutant; only the arguments differ.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Literal

import asyncpg

from fencepost.adapters.postgres.database import Connection
from fencepost.domain.lease import Term
from fencepost.domain.transaction_state import ManagedTx
from integration.stage import (
    LEASE_S,
    SIGNER,
    Owner,
    Stage,
    TakeOver,
    Write,
    allocation,
    begin,
    bounded,
    write,
)

Verdict = str | None


async def late_write(
    stage: Stage,
    *,
    write: Write,
    take_over: TakeOver,
    isolation: Literal["read_committed", "serializable"] = "read_committed",
    schema: str = "",
) -> Verdict:
    """The old owner has written but not committed when the take-over starts."""
    if schema:
        await stage.admin.execute(schema)
    tx = await stage.request()
    old = await stage.acquire(stage.old)
    await stage.expire()
    writer = await stage.connect()
    transaction = writer.transaction(isolation=isolation)
    await transaction.start()
    assert await write(writer, old, tx), "the old owner's write did not even begin"

    taking = begin(take_over(stage, stage.new))
    waited = await stage.waits(taking, behind=writer)
    token = None if waited else taking.result()
    read = await stage.rows() if token else None
    await transaction.commit()
    if waited:
        token = await bounded(taking)
    if token is None:  # the take-over skipped the locked lease
        token = await bounded(take_over(stage, stage.new))
    assert token is not None, "the lease cannot be taken over"
    if read is None:
        read = await stage.rows()
    now = await stage.rows()
    if now != read:
        return f"late write: the new owner read {read}, now it is {now}"
    late = await stage.late_writes()
    return f"late write: {late} rows are not in the seal of the new term" if late else None


async def write_after_take_over(stage: Stage, *, write: Write, schema: str = "") -> Verdict:
    """The take-over is complete; the old owner writes to a row that has not changed since."""
    if schema:
        await stage.admin.execute(schema)
    tx = await stage.request()
    old = await stage.acquire(stage.old)
    await stage.expire()
    await stage.acquire(stage.new)
    applied = await write(await stage.connect(), old, tx)
    return "the old owner wrote after the take-over" if applied else None


async def write_meets_take_over(
    stage: Stage, *, write: Write, take_over: Callable[[Connection, Owner], Awaitable[int | None]]
) -> Verdict:
    """The take-over is written but not committed when the old owner's write begins."""
    tx = await stage.request()
    old = await stage.acquire(stage.old)
    await stage.expire()
    taker, writer = await stage.connect(), await stage.connect()
    transaction = taker.transaction()
    await transaction.start()
    assert await take_over(taker, stage.new) is not None
    writing = begin(write(writer, old, tx))
    waited = await stage.waits(writing, behind=taker)
    assert waited, "the write did not meet the take-over"
    await transaction.commit()
    return "the write passed a fence that had moved while it waited" if await bounded(writing) else None


async def old_transaction_reads_lease(stage: Stage, *, is_held: str) -> Verdict:
    """A transaction is older than the expiry of the lease that it reads."""
    await stage.acquire(stage.old)
    asking = await stage.connect()
    async with asking.transaction():
        await asking.execute("SELECT 1")  # now() is fixed from here on
        await stage.admin.execute("UPDATE signer_lease SET expires_at = clock_timestamp()")
        row = await asking.fetchrow(is_held, SIGNER.chain_id, SIGNER.address)
    assert row is not None
    return "an expired lease looks held" if row["is_held"] else None


async def old_transaction_renews(stage: Stage, *, renew: str) -> Verdict:
    """A renewal late in a transaction must last as long as any other."""
    term = await stage.acquire(stage.old)
    renewing = await stage.connect()
    async with renewing.transaction():
        await renewing.execute("SELECT 1")
        sent_at = await stage.admin.fetchval("SELECT clock_timestamp()")
        place = (f"{{{word}}}" for word in (*SIGNER, term.token))
        await renewing.fetch(renew, *place, LEASE_S)
    is_whole = await stage.admin.fetchval(
        "SELECT expires_at >= $1::timestamptz + make_interval(secs => $2) FROM signer_lease", sent_at, LEASE_S
    )
    return None if is_whole else "the renewal ends too early"


async def clock_ahead(stage: Stage, *, take_over: TakeOver) -> Verdict:
    """A process whose clock is a minute ahead reads a lease that has just begun."""
    await stage.acquire(stage.old)
    token = await take_over(stage, stage.new)
    return None if token is None else "a live lease was stolen"


async def restart_under_the_same_name(stage: Stage, *, take_over: TakeOver) -> Verdict:
    """Another process of the same node replaces the first, and then the first wakes up."""
    tx = await stage.request()
    zombie = await stage.acquire(stage.old)
    again = Owner(stage.old.node)
    if await take_over(stage, again) is None:
        await stage.expire()
        assert await take_over(stage, again) is not None
    passed = await write(await stage.connect(), zombie, tx)
    return "the process from before the restart still passes the fence" if passed else None


async def losing_poll(stage: Stage, *, poll: Callable[[Connection, Owner], Awaitable[int | None]]) -> Verdict:
    """A node polls for a held lease; its transaction is still open when the owner writes."""
    tx = await stage.request()
    old = await stage.acquire(stage.old)
    before = await stage.admin.fetchrow("SELECT ctid, xmin, xmax FROM signer_lease")
    polling, owner = await stage.connect(), await stage.connect()
    async with polling.transaction():
        assert await poll(polling, stage.new) is None
        xid = await polling.fetchval("SELECT pg_current_xact_id_if_assigned()")
        writing = begin(write(owner, old, tx))
        blocked = await stage.waits(writing, behind=polling)
    await bounded(writing)
    after = await stage.admin.fetchrow("SELECT ctid, xmin FROM signer_lease")
    if blocked:
        return "a losing poll blocks the owner's write"
    assert before is not None
    assert after is not None
    if xid is not None or after["ctid"] != before["ctid"]:
        return "a losing poll writes"
    return None


async def two_allocations(stage: Stage, *, allocate: Write, schema: str = "") -> Verdict:
    """Two requests of one term; the second allocation begins before the first is committed."""
    if schema:
        await stage.admin.execute(schema)
    first, second = await stage.request(1), await stage.request(2)
    term = await stage.acquire(stage.old)
    one, two = await stage.connect(), await stage.connect()
    transaction = one.transaction()
    await transaction.start()
    assert await allocate(one, term, first)
    allocating = begin(allocate(two, term, second))
    assert await stage.waits(allocating, behind=one), "the second allocation did not meet the first"
    await transaction.commit()
    with suppress(asyncpg.UniqueViolationError):  # the whole write is rejected
        await bounded(allocating)
    nonces = await stage.nonces()
    return f"nonces {nonces} repeat" if len(set(nonces)) != len(nonces) else None


async def release_and_acquire(stage: Stage, *, release: Callable[[Stage, Term], Awaitable[None]]) -> Verdict:
    """Tokens rise, whatever happens between two terms."""
    first = await stage.acquire(stage.old)
    await release(stage, first)
    second = await stage.acquire(stage.new)
    if second.token > first.token:
        return None
    return f"token {second.token} was issued after {first.token}"


async def killed_while_allocating(
    stage: Stage, *, allocate: Callable[[Stage, Connection, Term, ManagedTx], Awaitable[None]]
) -> Verdict:
    """The process dies inside an allocation, and the next owner continues from the stored state."""
    tx = await stage.request()
    old = await stage.acquire(stage.old)
    connection = await stage.connect()
    with suppress(asyncpg.PostgresConnectionError, asyncpg.InterfaceError, asyncpg.AdminShutdownError):
        await allocate(stage, connection, old, tx)
        raise AssertionError("it survived")
    await stage.expire()
    new = await stage.acquire(stage.new)
    ledger = await stage.ledger(stage.new)
    found = await ledger.load(SIGNER, queue_limit=10)
    before = found.cursor
    nonce = 0 if before is None else before.next_nonce
    written = await ledger.commit(allocation(found.queue[0], nonce=nonce, before=before, term=new))
    assert written.applied
    return await stage.gaps()


async def retry_after_a_lost_answer(stage: Stage, *, submit: Callable[[Stage], Awaitable[None]]) -> Verdict:
    """The request was stored, the answer was lost, and the caller retries."""
    await submit(stage)
    await submit(stage)
    count = await stage.admin.fetchval("SELECT count(*) FROM managed_tx")
    return None if count == 1 else f"one request became {count}"


# ---- the product's own code where it is more than one statement


async def release(stage: Stage, term: Term) -> None:
    await (await stage.ledger(stage.old)).release([term])


async def allocate_and_die_before_the_commit(
    stage: Stage, connection: Connection, term: Term, tx: ManagedTx
) -> None:
    transaction = connection.transaction()
    await transaction.start()
    assert await write(connection, term, tx)
    await stage.kill(connection)
    await transaction.commit()


async def allocate_and_die_after_the_commit(
    stage: Stage, connection: Connection, term: Term, tx: ManagedTx
) -> None:
    """The next owner allocates for another request: this one has its nonce and keeps it."""
    assert await write(connection, term, tx)
    await stage.request(2)
    await stage.kill(connection)
    await connection.execute("SELECT 1")
