"""Under concurrent load a signer's nonces are 0, 1, 2 … on the chain, in the order of the blocks."""

from __future__ import annotations

import asyncio

from fencepost.facade import Fencepost
from fixtures.core import SINK, Account, DatabaseReader, OwnChain, check_all_mined_once
from fixtures.nodes import PIPELINED, open_fencepost

MANY_IN_FLIGHT = PIPELINED | {"nonce.max_in_flight": "200"}

# Each transaction that the pool keeps costs half a minute until it is replaced.
BOUND_S = 180.0


async def create_all(fencepost: Fencepost, account: Account, count: int) -> None:
    async with asyncio.TaskGroup() as group:
        for i in range(1, count + 1):
            group.create_task(
                fencepost.create(
                    signer=account.address,
                    request_id=f"order-{i}",
                    to=SINK,
                    value_wei=i,
                )
            )


async def test_a_thousand_concurrent_requests_of_one_signer_are_mined_without_gaps_in_order(
    dsn: str, interval_chain: OwnChain, db: DatabaseReader
) -> None:
    account = interval_chain.accounts[0]
    async with open_fencepost(dsn, interval_chain, account, options=MANY_IN_FLIGHT) as fencepost:
        await create_all(fencepost, account, 1000)
        await db.until_states(account, within_s=BOUND_S, CONFIRMED=1000)
    await check_all_mined_once(db, interval_chain, account, 1000)


async def test_fifty_concurrent_requests_in_strict_mode_never_overlap(
    dsn: str, instant_chain: OwnChain, db: DatabaseReader
) -> None:
    account = instant_chain.accounts[0]
    options = {"confirmations.required": "0", "chains.default.poll_interval": "20ms"}
    async with open_fencepost(dsn, instant_chain, account, options=options) as fencepost:
        await create_all(fencepost, account, 50)
        await db.until_states(account, CONFIRMED=50)
    await check_all_mined_once(db, instant_chain, account, 50)
    overlaps = await db.connection.fetchval(
        "SELECT count(*) FROM journal a JOIN managed_tx t USING (tx_id)"
        "  JOIN managed_tx p ON p.signer = t.signer AND p.nonce = t.nonce - 1"
        "  JOIN journal f ON f.tx_id = p.tx_id AND f.event = 'Finish'"
        " WHERE a.event = 'AssignNonce' AND a.id < f.id"
    )
    assert overlaps == 0


async def test_concurrent_signers_do_not_disturb_each_other(
    dsn: str, interval_chain: OwnChain, db: DatabaseReader
) -> None:
    accounts = interval_chain.accounts[:4]
    async with open_fencepost(dsn, interval_chain, *accounts, options=MANY_IN_FLIGHT) as fencepost:
        async with asyncio.TaskGroup() as group:
            for account in accounts:
                group.create_task(create_all(fencepost, account, 60))
        for account in accounts:
            await db.until_states(account, within_s=BOUND_S, CONFIRMED=60)
    for account in accounts:
        await check_all_mined_once(db, interval_chain, account, 60)
