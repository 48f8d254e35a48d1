"""A node whose endpoint dies releases its signers to a node that can read the chain, and still accepts requests."""

from __future__ import annotations

from dataclasses import replace

from fixtures.core import DatabaseReader, OwnChain, eventually
from fixtures.gateway import gateway_to
from fixtures.nodes import open_fencepost

COUNT = 4
OPTIONS = {"nonce.mode": "pipelined", "lease.silent_release": "1s"}


async def test_signers_move_to_the_node_that_can_read_the_chain(
    dsn: str, interval_chain: OwnChain, db: DatabaseReader
) -> None:
    account = interval_chain.accounts[0]
    async with gateway_to(interval_chain) as gateway:
        behind_gateway = replace(interval_chain, rpc_url=gateway.url)
        async with open_fencepost(dsn, behind_gateway, account, options=OPTIONS) as dying:
            signer = dying.signer(account.address)
            await dying.create(signer=account.address, request_id="first", to=account.address)
            await db.until_states(account, CONFIRMED=1)
            gateway.target = "http://127.0.0.1:1"
            async with open_fencepost(dsn, interval_chain, account, options=OPTIONS) as healthy:
                for number in range(COUNT):
                    await dying.create(
                        signer=account.address, request_id=f"later-{number}", to=account.address
                    )
                await db.until_states(account, CONFIRMED=1 + COUNT)
                assert signer in healthy.running.node.lanes
                assert signer not in dying.running.node.lanes


async def test_a_node_starts_and_accepts_requests_while_its_chain_is_silent(
    dsn: str, interval_chain: OwnChain, db: DatabaseReader
) -> None:
    account = interval_chain.accounts[0]
    async with gateway_to(interval_chain) as gateway:
        gateway.target = "http://127.0.0.1:1"
        chain = replace(interval_chain, rpc_url=gateway.url)
        async with open_fencepost(dsn, chain, account, options=OPTIONS) as fencepost:
            await fencepost.create(signer=account.address, request_id="taken", to=account.address)
            await db.until_states(account, QUEUED=1)

            async def is_reported() -> bool:
                return interval_chain.chain_id in fencepost.running.node.silent_chains()

            await eventually(is_reported)
            gateway.target = interval_chain.rpc_url
            await db.until_states(account, CONFIRMED=1)


async def test_signers_move_away_from_a_node_whose_endpoint_rejects_a_call_that_they_need(
    dsn: str, interval_chain: OwnChain, db: DatabaseReader
) -> None:
    account = interval_chain.accounts[0]
    async with gateway_to(interval_chain) as gateway:
        behind_gateway = replace(interval_chain, rpc_url=gateway.url)
        options = OPTIONS | {"nonce.state_timeout": "0s"}
        async with open_fencepost(dsn, behind_gateway, account, options=options) as limited:
            signer = limited.signer(account.address)
            await limited.create(signer=account.address, request_id="first", to=account.address)
            await db.until_states(account, CONFIRMED=1)
            gateway.failing, gateway.failures_left = "eth_getTransactionCount", 1_000_000
            async with open_fencepost(dsn, interval_chain, account, options=options) as healthy:
                for number in range(COUNT):
                    await limited.create(
                        signer=account.address, request_id=f"later-{number}", to=account.address
                    )
                await db.until_states(account, CONFIRMED=1 + COUNT)
                assert signer in healthy.running.node.lanes
                assert gateway.failed > 0
