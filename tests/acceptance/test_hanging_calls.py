"""One call in ten hangs: lanes continue with a second call, and nothing is carried out twice."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from fixtures.core import Client, DatabaseReader, OwnChain, check_all_mined_once
from fixtures.gateway import gateway_to
from fixtures.nodes import open_fencepost

SIGNERS = 4
EACH = 10
HANGING_SHARE = 0.1
BOUND_S = (
    25.0  # 4 to 8 s; with a single try per send up to 21 s, without hedged reads once 2 of 10 after 90 s
)


@pytest.mark.parametrize("mode", ["strict", "pipelined"])
@pytest.mark.parametrize("endpoints", [1, 2])
async def test_all_transactions_finish_soon(
    dsn: str, interval_chain: OwnChain, db: DatabaseReader, client: Client, *, endpoints: int, mode: str
) -> None:
    accounts = interval_chain.accounts[:SIGNERS]
    async with AsyncExitStack() as stack:
        gateways = [await stack.enter_async_context(gateway_to(interval_chain)) for _ in range(endpoints)]
        for number, gateway in enumerate(gateways):
            gateway.hanging_share, gateway.dice = HANGING_SHARE, random.Random(number)
        chain = replace(interval_chain, rpc_url=",".join(gateway.url for gateway in gateways))
        await stack.enter_async_context(open_fencepost(dsn, chain, *accounts, options={"nonce.mode": mode}))
        for account in accounts:
            await client.ask(account, EACH)
        async with asyncio.timeout(BOUND_S):
            for account in accounts:
                await db.until_states(account, CONFIRMED=EACH)
        assert all(gateway.hung for gateway in gateways)
    for account in accounts:
        await check_all_mined_once(db, interval_chain, account, EACH)
