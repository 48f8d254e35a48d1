"""A node's name belongs to one live process; a queue that is full says so. Real nodes, real database."""

from __future__ import annotations

import asyncio
import signal

import pytest

from fencepost.adapters.postgres.nodes import list_nodes
from fencepost.errors import Overloaded, Unready
from fix_core import SINK, WITHIN_S, Book, Client, OwnChain, check_sealed, eventually
from fix_nodes import StartNode, open_fencepost

NAMED = {"node.id": "one-name"}

# A name whose holder may be dead is watched for two heartbeats: rare ones tell a wait from none, and slow nodes from dead ones.
RARELY = {**NAMED, "lease.duration": "300s", "lease.renew_interval": "100s"}
OFTEN_ENOUGH = {**NAMED, "lease.duration": "10s", "lease.renew_interval": "1500ms"}


async def test_a_name_that_a_live_node_has_is_refused_at_the_start(dsn: str, ticking: OwnChain) -> None:
    account = ticking.accounts[0]
    async with open_fencepost(dsn, ticking, account, options=OFTEN_ENOUGH) as first:
        with pytest.raises(Unready, match="another live node is called one-name"):
            async with open_fencepost(dsn, ticking, account, options=OFTEN_ENOUGH):
                pytest.fail("it started")
        (node,) = await list_nodes(first.running.pool)
        assert (node.name, node.incarnation, node.is_live) == (
            "one-name",
            first.running.node.incarnation,
            True,
        )


async def test_a_name_that_was_given_back_is_free_at_once(dsn: str, ticking: OwnChain) -> None:
    account = ticking.accounts[0]
    for _ in range(2):
        async with asyncio.timeout(WITHIN_S), open_fencepost(dsn, ticking, account, options=RARELY):
            pass


async def test_a_node_that_was_killed_comes_back_under_its_name(
    dsn: str, ticking: OwnChain, book: Book, client: Client, start_node: StartNode
) -> None:
    account = ticking.accounts[0]
    killed = start_node(ticking, account, name="one-name")
    await killed.noted(event="open")
    killed.signal(signal.SIGKILL)
    await client.ask(account, 3)
    async with open_fencepost(dsn, ticking, account, options=NAMED):
        await book.until_states(account, CONFIRMED=3)


async def test_a_paused_node_whose_name_was_taken_works_for_nobody_and_says_so_until_the_name_is_free(
    dsn: str, ticking: OwnChain, book: Book, client: Client, start_node: StartNode
) -> None:
    account = ticking.accounts[0]
    paused = start_node(ticking, account, name="one-name", options=OFTEN_ENOUGH)
    await paused.noted(event="open")
    paused.signal(signal.SIGSTOP)
    async with open_fencepost(dsn, ticking, account, options=OFTEN_ENOUGH) as second:
        paused.signal(signal.SIGCONT)
        await paused.noted(event="duplicate_node")
        await client.ask(account, 5)
        await book.until_states(account, CONFIRMED=5)
        assert {row["incarnation"] for row in await book.terms(account)} == {second.running.node.incarnation}
    await client.ask(account, 8)
    await book.until_states(account, CONFIRMED=8)
    assert len({row["incarnation"] for row in await book.terms(account)}) == 2, "the first one is back"
    await check_sealed(book)


async def test_a_full_queue_is_said_and_takes_more_when_it_was_worked_off(
    dsn: str, by_hand: OwnChain, book: Book
) -> None:
    account = by_hand.accounts[0]
    options = {"intake.max_queued_per_signer": "5", "nonce.mode": "pipelined", "nonce.max_in_flight": "4"}
    async with open_fencepost(dsn, by_hand, account, options=options) as fencepost:

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
        taken = sum((await book.states(account)).values())
        # A request that is just being stored may be counted twice: by whoever counts the database, and as one more.
        assert 5 - 1 <= taken < 20

        async def is_taken_later() -> bool:
            await by_hand.mine()
            try:
                await create(200)
            except Overloaded:
                return False
            return True

        await eventually(is_taken_later)
        assert "intake_refused_total" in fencepost.running.observer.metrics.render().decode()
