"""A node that is stopped gives its leases back: the next one goes on at once, not when the lease runs out."""

from __future__ import annotations

import asyncio
import signal

from fix_core import (
    Book,
    Client,
    OwnChain,
    StartNode,
    check_all_mined_once,
    check_sealed,
    eventually,
    open_fencepost,
)

LONG_LEASE = {
    "lease.duration": "60s",
    "lease.renew_interval": "10s",
    "nonce.mode": "pipelined",
    "nonce.max_in_flight": "4",
}
WELL_UNDER_THE_LEASE_S = 6.0


async def test_the_next_node_goes_on_well_before_the_lease_would_have_ended(
    dsn: str, ticking: OwnChain, book: Book, client: Client, start_node: StartNode
) -> None:
    account = ticking.accounts[0]
    ids = await client.ask(account, 60)
    leaving = start_node(ticking, account, name="leaving", options=LONG_LEASE)
    await book.until_event(ids[8], "AssignNonce")
    async with open_fencepost(dsn, ticking, account, options=LONG_LEASE):
        leaving.signal(signal.SIGTERM)
        assert await leaving.ended() == 0

        async def is_taken_over() -> bool:
            return len(await book.terms(account)) == 2

        await eventually(is_taken_over, within_s=WELL_UNDER_THE_LEASE_S)
        await book.until_states(account, CONFIRMED=60)
    first, second = await book.terms(account)
    assert first["owner_node"] == "leaving"
    assert second["owner_node"] != "leaving"
    await check_all_mined_once(book, ticking, account, 60)


async def test_a_node_that_stops_in_mid_work_leaves_nothing_half_done(
    dsn: str, ticking: OwnChain, book: Book, client: Client
) -> None:
    """Stopped and opened again several times while it works."""
    account = ticking.accounts[0]
    ids = await client.ask(account, 24)
    for done in (3, 9, 15):
        async with open_fencepost(dsn, ticking, account, options=LONG_LEASE):
            await book.until_event(ids[done], "SendResult")
    async with open_fencepost(dsn, ticking, account, options=LONG_LEASE):
        await book.until_states(account, CONFIRMED=24)
    await check_all_mined_once(book, ticking, account, 24)


async def test_no_lease_is_left_behind_whenever_a_node_stops(
    dsn: str, ticking: OwnChain, book: Book, client: Client
) -> None:
    """Also while it is about to acquire one: each turn stops it a little later after its start."""
    account = ticking.accounts[0]
    await client.ask(account, 40)
    for turn in range(24):
        async with open_fencepost(dsn, ticking, account, options=LONG_LEASE):
            await asyncio.sleep(turn * 0.0015)
        held = await book.connection.fetchval(
            "SELECT count(*) FROM signer_lease WHERE expires_at > clock_timestamp()"
        )
        assert held == 0, turn
    await check_sealed(book)
