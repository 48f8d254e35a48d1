"""A node pauses beyond its lease, another takes over, and the first wakes up and continues to write: its writes are rejected."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

import asyncpg
import pytest

from fencepost.adapters.postgres.database import Connection, current_history
from fencepost.adapters.postgres.lane_writer import lane_statement
from fencepost.adapters.postgres.ledger import PostgresLedger
from fencepost.adapters.postgres.queries import sql
from fencepost.application.ports import LaneWrite, TxChange
from fencepost.domain import transaction_state
from fencepost.domain.ids import Signer
from fencepost.domain.lease import TRUSTED_SHARE, Term
from fencepost.runtime.clock import MonotonicClock
from fixtures.core import (
    SINK,
    WITHIN_S,
    Account,
    Client,
    DatabaseReader,
    OwnChain,
    check_all_mined_once,
    check_sealed,
    eventually,
    open_ledger,
)
from fixtures.nodes import PIPELINED, Failpoint, StartNode, open_fencepost

SHORT = {
    "lease.duration": "4s",
    "lease.renew_interval": "500ms",
    **PIPELINED,
    "nonce.max_in_flight": "4",
}
COUNT = 24

# Long enough that the time-outs derived from it do not cut connections during a test.
UNHURRIED_S = 60.0


def stops(at: str, nth: int = 1) -> Failpoint:
    return Failpoint(at, "before", "stop", nth)


@pytest.mark.parametrize(
    ("point", "refused"),
    [
        (stops("commit:AssignNonce", 2), {"op": "allocate"}),
        (stops("commit:SendResult", 2), {}),  # alone, or together with the next write
        (stops("send", 2), {}),
        (stops("commit:ReceiveReceipt"), {"op": "receipt"}),
        (stops("commit:Finish"), {"op": "confirm"}),
        (stops("renew", 2), {"op": "renew"}),
    ],
    ids=lambda value: value.at if isinstance(value, Failpoint) else value.get("op", "any"),
)
async def test_every_write_after_the_lease_was_lost_is_rejected(
    dsn: str,
    interval_chain: OwnChain,
    db: DatabaseReader,
    client: Client,
    start_node: StartNode,
    *,
    point: Failpoint,
    refused: dict[str, str],
) -> None:
    """The paused write is the first thing the node does when it wakes up."""
    account = interval_chain.accounts[0]
    await client.ask(account, COUNT - 4)
    paused = start_node(interval_chain, account, name="paused", options=SHORT, failpoints=[point])
    await paused.stopped()
    await client.ask(account, COUNT)  # either way there is work left
    async with open_fencepost(dsn, interval_chain, account, options=SHORT) as second:
        await _until_taken_over(db, account)
        at_take_over = await _written_by(db, "paused")
        paused.signal(signal.SIGCONT)
        await paused.noted(event="fenced", **refused)
        await db.until_states(account, CONFIRMED=COUNT)
        assert second.running.observer.counts["fenced"] == 0
    assert await _written_by(db, "paused") == at_take_over
    await check_all_mined_once(db, interval_chain, account, COUNT)


async def _until_taken_over(db: DatabaseReader, account: Account) -> None:
    async def is_taken_over() -> bool:
        return len(await db.terms(account)) == 2

    await eventually(is_taken_over)


async def _written_by(db: DatabaseReader, node: str) -> int:
    """Count what the node's lanes wrote; that a node joins again is written without a lease."""
    lanes = "SELECT count(*) FROM journal WHERE node = $1 AND event NOT IN ('NodeJoined', 'NodeLeft')"
    return int(await db.connection.fetchval(lanes, node))


async def test_nodes_paused_in_turn_lose_and_duplicate_nothing(
    interval_chain: OwnChain, db: DatabaseReader, client: Client, start_node: StartNode
) -> None:
    """Two nodes; each is stopped at a random point for longer than the lease while the other works."""
    account = interval_chain.accounts[0]
    ids = await client.ask(account, 200)
    nodes = [start_node(interval_chain, account, name=f"node-{i}", options=SHORT) for i in range(2)]
    await db.until_event(ids[2], "AssignNonce")
    for _ in range(2):
        owner = (await db.terms(account))[-1]["owner_node"]
        known = len(await db.terms(account))
        nodes[int(owner[-1])].signal(signal.SIGSTOP)

        async def is_taken_over(known: int = known) -> bool:
            return len(await db.terms(account)) > known

        await eventually(is_taken_over)
        nodes[int(owner[-1])].signal(signal.SIGCONT)
    await db.until_states(account, CONFIRMED=200)
    await check_all_mined_once(db, interval_chain, account, 200)


# ---- between a statement and its COMMIT, by hand


@dataclass(frozen=True, slots=True)
class Stage:
    """Ledgers `a` and `b`; `a` holds the signer, and one request waits in its queue."""

    a: PostgresLedger
    b: PostgresLedger
    signer: Signer
    term: Term
    write: LaneWrite

    @asynccontextmanager
    async def run_without_commit(self) -> AsyncIterator[Connection]:
        """Run a's write in an open transaction on a connection of its own."""
        async with self.a._pool.acquire() as connection:
            await connection.execute("BEGIN")
            statement, arguments = lane_statement([self.write], now_s=0, node="a")
            (answer,) = await connection.fetch(statement, *arguments)
            assert answer["applied"]
            yield connection

    async def until_expired(self, db: DatabaseReader) -> None:
        async def is_expired() -> bool:
            query = "SELECT expires_at < clock_timestamp() FROM signer_lease WHERE signer = $1"
            return bool(await db.connection.fetchval(query, self.signer.address))

        await eventually(is_expired)

    async def until_b_has_it(self) -> Term:
        terms: list[Term] = []

        async def is_acquired() -> bool:
            terms.extend(await self.b.acquire([self.signer]))
            return bool(terms)

        await eventually(is_acquired, why="b never got the lease")
        return terms[0]


@asynccontextmanager
async def staged(dsn: str, client: Client, account: Account, *, lease_s: float) -> AsyncIterator[Stage]:
    await client.ask(account, 1)
    signer = client.signer(account)
    # Connection time-outs follow from the lease duration. Here a's lease expires before its time-outs.
    async with (
        open_ledger(dsn, node="a", lease_s=lease_s) as a,
        open_ledger(dsn, node="b", lease_s=UNHURRIED_S) as b,
    ):
        (term,) = await a.acquire([signer])
        (queued,) = await a.load_queue(signer, limit=1)
        refused = transaction_state.reject(queued, "for the sake of a write")
        change = TxChange(queued, refused.tx.changed(journal_count=2), refused.entries)
        yield Stage(a, b, signer, term, LaneWrite(term=term, changes=(change,)))


async def test_a_take_over_skips_a_lease_with_an_open_write_and_sees_the_write_after_its_commit(
    dsn: str, manual_chain: OwnChain, db: DatabaseReader, client: Client
) -> None:
    account = manual_chain.accounts[0]
    async with staged(dsn, client, account, lease_s=UNHURRIED_S) as stage:
        await db.connection.execute("UPDATE signer_lease SET expires_at = '-infinity'")
        async with stage.run_without_commit() as connection:
            assert await stage.b.acquire([stage.signer]) == []
            await connection.execute("COMMIT")
        later = await stage.until_b_has_it()
        assert later.token > stage.term.token
        assert (await stage.b.load(stage.signer, queue_limit=10)).queue == ()
        assert not (await stage.a.commit(stage.write)).lease_ok
    assert await db.states(account) == {"FAILED": 1}
    await check_sealed(db)


async def test_an_open_write_is_ended_before_the_lease_can_move_and_leaves_nothing(
    dsn: str, manual_chain: OwnChain, db: DatabaseReader, client: Client
) -> None:
    """A node stops between statement and COMMIT: the server ends its transaction within a third of the lease."""
    account = manual_chain.accounts[0]
    async with staged(dsn, client, account, lease_s=3.0) as stage:
        async with stage.run_without_commit() as connection:
            await stage.until_expired(db)
            later = await stage.until_b_has_it()
            with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError)):
                await connection.execute("COMMIT")
        assert later.token > stage.term.token
        assert len((await stage.b.load(stage.signer, queue_limit=10)).queue) == 1
        assert not (await stage.a.commit(stage.write)).lease_ok
    assert await db.states(account) == {"QUEUED": 1}
    assert await db.connection.fetchval("SELECT count(*) FROM journal WHERE node = 'a'") == 0
    await check_sealed(db)


async def test_a_write_during_an_open_take_over_waits_and_is_rejected(
    dsn: str, manual_chain: OwnChain, db: DatabaseReader, client: Client
) -> None:
    account = manual_chain.accounts[0]
    async with staged(dsn, client, account, lease_s=UNHURRIED_S) as stage:
        await db.connection.execute("UPDATE signer_lease SET expires_at = '-infinity'")
        async with stage.b._pool.acquire() as taking:
            await taking.execute("BEGIN")
            arguments = (
                [stage.signer.chain_id],
                [stage.signer.address],
                "b",
                stage.b._incarnation,
                UNHURRIED_S,
                0.0,
                (await current_history(taking)).number,
            )
            assert len(await taking.fetch(sql("lease_acquire"), *arguments)) == 1
            writing = asyncio.create_task(stage.a.commit(stage.write))
            await eventually(partial(_is_lock_awaited, db))
            await taking.execute("COMMIT")
            assert not (await writing).lease_ok
    assert await db.states(account) == {"QUEUED": 1}


async def _is_lock_awaited(db: DatabaseReader) -> bool:
    query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    return bool(await db.connection.fetchval(query))


async def test_renewal_and_release_with_an_old_token_do_nothing(
    dsn: str, manual_chain: OwnChain, db: DatabaseReader, client: Client
) -> None:
    account = manual_chain.accounts[0]
    async with staged(dsn, client, account, lease_s=3.0) as stage:
        await stage.until_expired(db)
        later = await stage.until_b_has_it()
        assert await stage.a.renew([stage.term]) == []
        await stage.a.release([stage.term])
        assert [term.token for term in await stage.b.renew([later])] == [later.token]
        assert await stage.a.acquire([stage.signer]) == []


async def test_a_lane_that_stopped_on_an_untrusted_lease_continues_after_a_renewal_in_progress(
    dsn: str, instant_chain: OwnChain
) -> None:
    """The renewal started while the lease was trusted; the lane checked when it no longer was."""
    account = instant_chain.accounts[0]
    options = {"lease.duration": "60s", "lease.renew_interval": "25s", "confirmations.required": "0"}
    async with open_fencepost(dsn, instant_chain, account, options=options) as fencepost:
        await fencepost.wait_for(await fencepost.create(signer=account.address, to=SINK, value_wei=1))
        lanes, clock = fencepost.running.node.lanes, MonotonicClock()
        lane = lanes.get(fencepost.signer(account.address))
        assert lane is not None
        set_out_s = clock.now_s()
        lane.term = lane.term.renewed(set_out_s - 60 * TRUSTED_SHARE + 0.2)

        async def is_untrusted() -> bool:
            return not lane.term.is_trusted(clock.now_s())

        await eventually(is_untrusted)
        tx_id = await fencepost.create(signer=account.address, to=SINK, value_wei=2)

        async def waits() -> bool:
            return lanes._slots[lane.signer].waits_for_trust

        await eventually(waits)
        lanes.renewed(lane.term.renewed(set_out_s))
        ended = await fencepost.wait_for(tx_id, timeout_s=WITHIN_S)
    assert ended is not None
    assert ended.state == "CONFIRMED"
