"""A node's name belongs to one live process, and a full queue rejects requests. Real nodes, real database."""

from __future__ import annotations

import asyncio
import signal

import asyncpg
import pytest

from fencepost.adapters.postgres.nodes import PostgresMembers, list_nodes
from fencepost.errors import DatabaseUnusable, Overloaded, Unready
from fixtures.core import SINK, WITHIN_S, Client, DatabaseReader, OwnChain, check_sealed, eventually
from fixtures.nodes import StartNode, open_fencepost

NAMED = {"node.id": "one-name"}

# A start under the name of a possibly dead node waits two heartbeats. A long interval separates a wait from no wait.
RARELY = {**NAMED, "lease.duration": "300s", "lease.renew_interval": "100s"}
OFTEN_ENOUGH = {**NAMED, "lease.duration": "10s", "lease.renew_interval": "1500ms"}


async def test_a_node_does_not_start_under_the_name_of_a_live_node(
    dsn: str, interval_chain: OwnChain
) -> None:
    account = interval_chain.accounts[0]
    async with open_fencepost(dsn, interval_chain, account, options=OFTEN_ENOUGH) as first:
        with pytest.raises(Unready, match="another live node has the name one-name"):
            async with open_fencepost(dsn, interval_chain, account, options=OFTEN_ENOUGH):
                pytest.fail("it started")
        (node,) = await list_nodes(first.running.pool)
        assert (node.name, node.incarnation, node.is_live) == (
            "one-name",
            first.running.node.incarnation,
            True,
        )


async def test_a_connection_lost_while_a_node_claims_its_name_is_reported_in_one_line(
    dsn: str, interval_chain: OwnChain, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lost(_: PostgresMembers) -> bool:
        raise asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation")

    monkeypatch.setattr(PostgresMembers, "join", lost)
    with pytest.raises(
        DatabaseUnusable, match=r"during the start .ConnectionDoesNotExistError.: start the node again"
    ):
        async with open_fencepost(dsn, interval_chain, interval_chain.accounts[0], options=NAMED):
            pytest.fail("it started")


async def test_a_released_name_is_free_immediately(dsn: str, interval_chain: OwnChain) -> None:
    account = interval_chain.accounts[0]
    for _ in range(2):
        async with asyncio.timeout(WITHIN_S), open_fencepost(dsn, interval_chain, account, options=RARELY):
            pass


async def test_a_killed_node_starts_again_under_its_name(
    dsn: str, interval_chain: OwnChain, db: DatabaseReader, client: Client, start_node: StartNode
) -> None:
    account = interval_chain.accounts[0]
    killed = start_node(interval_chain, account, name="one-name")
    await killed.noted(event="open")
    killed.signal(signal.SIGKILL)
    await client.ask(account, 3)
    async with open_fencepost(dsn, interval_chain, account, options=NAMED):
        await db.until_states(account, CONFIRMED=3)


async def test_a_paused_node_whose_name_was_taken_does_no_work_until_the_name_is_free(
    dsn: str, interval_chain: OwnChain, db: DatabaseReader, client: Client, start_node: StartNode
) -> None:
    account = interval_chain.accounts[0]
    paused = start_node(interval_chain, account, name="one-name", options=OFTEN_ENOUGH)
    await paused.noted(event="open")
    paused.signal(signal.SIGSTOP)
    async with open_fencepost(dsn, interval_chain, account, options=OFTEN_ENOUGH) as second:
        paused.signal(signal.SIGCONT)
        await paused.noted(event="duplicate_node")
        await client.ask(account, 5)
        await db.until_states(account, CONFIRMED=5)
        assert {row["incarnation"] for row in await db.terms(account)} == {second.running.node.incarnation}
    await client.ask(account, 8)
    await db.until_states(account, CONFIRMED=8)
    assert len({row["incarnation"] for row in await db.terms(account)}) == 2, "the first one is back"
    await check_sealed(db)


async def test_a_full_queue_rejects_requests_until_it_has_drained(
    dsn: str, manual_chain: OwnChain, db: DatabaseReader
) -> None:
    account = manual_chain.accounts[0]
    options = {"intake.max_queued_per_signer": "5", "nonce.mode": "pipelined", "nonce.max_in_flight": "4"}
    async with open_fencepost(dsn, manual_chain, account, options=options) as fencepost:

        async def create(number: int) -> None:
            await fencepost.create(
                signer=account.address, request_id=f"order-{number}", to=SINK, value_wei=number
            )

        async def create_many() -> None:
            for number in range(1, 100):
                await create(number)

        with pytest.raises(Overloaded) as refused:
            await create_many()
        assert refused.value.retry_after_s > 0
        taken = sum((await db.states(account)).values())
        # A request in the middle of its commit may count twice: in the database count and as in progress.
        assert 5 - 1 <= taken < 20

        async def is_taken_later() -> bool:
            await manual_chain.mine()
            try:
                await create(200)
            except Overloaded:
                return False
            return True

        await eventually(is_taken_later)
        assert "fencepost_admission_rejected_total" in fencepost.running.observer.metrics.render().decode()
