"""Endpoints that serve another chain: each new connection is checked, and so is every answer with consequences."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

import pytest

from fakes.endpoint import ADDRESS, FakeEndpoint, OpenChains, block, hash_of, serve_endpoints, tx
from fencepost.adapters.evm.chain import EvmChain
from fencepost.adapters.evm.endpoints import MAX_BACK_OFF_S
from fencepost.adapters.evm.rpc import JsonRpc
from fencepost.domain.ids import BlockHash
from fencepost.domain.send_result import SendCategory
from fencepost.domain.transaction import Call
from fencepost.errors import ChainReplaced, ChainUnusable, RpcRefused, RpcUnavailable, WrongChain

CHAIN_ID = 31_337
FIRST = "0x" + "aa" * 32
OTHER_FIRST = "0x" + "bb" * 32


def point_at(
    node: FakeEndpoint, *, chain_id: int = CHAIN_ID, first: str | None = FIRST, balance: int = 1
) -> None:
    """Point a gateway at another chain: its connections stay open."""

    def blocks(number: str, _full: object) -> object:
        shown = block(7) if number != "0x0" else block(1) | {"number": "0x0", "hash": first}
        return None if number == "0x0" and first is None else shown

    node.methods |= {
        "eth_chainId": hex(chain_id),
        "eth_getBlockByNumber": blocks,
        "eth_getBalance": hex(balance),
        "eth_sendRawTransaction": hash_of,
        "eth_estimateGas": "0x5208",
    }


@pytest.fixture
async def nodes() -> AsyncIterator[list[FakeEndpoint]]:
    async with serve_endpoints(2) as started:
        for node in started:
            point_at(node)
        yield started


@pytest.fixture
async def chains() -> AsyncIterator[OpenChains]:
    made = OpenChains()
    yield made
    await made.close()


async def test_an_endpoint_pointed_at_another_chain_is_taken_out_of_use_and_named(
    nodes: list[FakeEndpoint], chains: OpenChains, caplog: pytest.LogCaptureFixture
) -> None:
    chain = chains.chain(*nodes)
    await chain.verify_chain_id(CHAIN_ID)
    point_at(nodes[0], chain_id=5, balance=99)
    with pytest.raises(WrongChain, match="is on chain 5, not 31337"):
        await chain.check_identity()
    assert "endpoint disabled" in caplog.text
    assert "s3cret" not in caplog.text
    for _ in range(5):
        assert await chain.balance_wei(ADDRESS) == 1
    await chain.check_identity()  # the reads since then used the other endpoint

    point_at(nodes[0])
    chains.now_s += MAX_BACK_OFF_S
    nodes[1].methods["eth_getBalance"] = RpcRefused("header not found", rpc_code=-32000)
    with caplog.at_level(logging.WARNING):
        await chain.check_identity()
    assert "is enabled" in caplog.text


async def test_a_single_endpoint_pointed_at_another_chain_counts_as_silent(
    nodes: list[FakeEndpoint], chains: OpenChains
) -> None:
    chain = chains.chain(nodes[0])
    await chain.verify_chain_id(CHAIN_ID)
    point_at(nodes[0], chain_id=5)
    with pytest.raises(WrongChain):
        await chain.check_identity()
    before = len(nodes[0].asked)
    with pytest.raises(RpcUnavailable, match="is on chain 5"):
        await chain.nonce(ADDRESS, "latest")
    assert [result.category for result in await chain.send([tx()])] == [SendCategory.UNKNOWN]
    assert set(nodes[0].asked[before:]) == {"eth_chainId"}  # no other call was made to it
    point_at(nodes[0])
    assert await chain.balance_wei(ADDRESS) == 1


async def test_every_new_connection_is_identified_before_use(
    nodes: list[FakeEndpoint], chains: OpenChains
) -> None:
    chain = chains.chain(nodes[0])
    await chain.verify_chain_id(CHAIN_ID)
    for rpc in [endpoint.rpc for endpoint in chain._endpoints.all]:
        rpc.reconnect()  # as after a restart of the endpoint
    point_at(nodes[0], chain_id=5)
    assert [result.category for result in await chain.send([tx()])] == [SendCategory.UNKNOWN]
    assert "eth_sendRawTransaction" not in nodes[0].asked


async def test_an_answer_of_another_chain_finishes_no_request(
    nodes: list[FakeEndpoint], chains: OpenChains
) -> None:
    chain = chains.chain(nodes[0])
    await chain.verify_chain_id(CHAIN_ID)
    point_at(nodes[0], chain_id=5)
    nodes[0].methods |= {
        "eth_sendRawTransaction": RpcRefused("invalid chain id for signer", rpc_code=-32000),
        "eth_estimateGas": RpcRefused("execution reverted", rpc_code=3, data="0x"),
    }
    assert [result.category for result in await chain.send([tx()])] == [SendCategory.UNKNOWN]
    point_at(nodes[0])
    assert await chain.balance_wei(ADDRESS) == 1
    point_at(nodes[0], chain_id=5)
    nodes[0].methods["eth_estimateGas"] = RpcRefused("execution reverted", rpc_code=3, data="0x")
    with pytest.raises(RpcUnavailable, match="is on chain 5"):
        await chain.estimate_gas(ADDRESS, Call(to=ADDRESS))


async def test_a_rejection_by_the_right_chain_is_accepted(
    nodes: list[FakeEndpoint], chains: OpenChains
) -> None:
    chain = chains.chain(nodes[0])
    await chain.verify_chain_id(CHAIN_ID)
    nodes[0].methods["eth_sendRawTransaction"] = RpcRefused("invalid sender", rpc_code=-32000)
    assert [result.category for result in await chain.send([tx()])] == [SendCategory.FATAL]


async def test_another_genesis_block_is_another_chain(nodes: list[FakeEndpoint], chains: OpenChains) -> None:
    chain = chains.chain(*nodes)
    await chain.verify_chain_id(CHAIN_ID)
    for node in nodes:
        point_at(node, first=OTHER_FIRST)
    with pytest.raises(WrongChain):
        await chain.check_identity()
    chains.now_s += 5.0
    with pytest.raises(ChainReplaced, match=r"use a new database") as replaced:
        await chain.nonce(ADDRESS, "latest")
    assert replaced.value.seen_for_s == 5.0
    point_at(nodes[1])
    chains.now_s += MAX_BACK_OFF_S
    assert await chain.balance_wei(ADDRESS) == 1


async def test_one_endpoint_with_another_genesis_block_does_not_replace_the_chain(
    nodes: list[FakeEndpoint], chains: OpenChains
) -> None:
    chain = chains.chain(*nodes)
    await chain.verify_chain_id(CHAIN_ID)
    point_at(nodes[0], first=OTHER_FIRST)
    with pytest.raises(WrongChain) as wrong:
        await chain.check_identity()
    assert not isinstance(wrong.value, ChainReplaced)
    assert await chain.balance_wei(ADDRESS) == 1


async def test_an_endpoint_without_the_genesis_block_is_identified_by_its_chain_id(
    nodes: list[FakeEndpoint], chains: OpenChains
) -> None:
    chain = chains.chain(nodes[0])
    point_at(nodes[0], first=None)
    await chain.verify_chain_id(CHAIN_ID)
    assert await chain.balance_wei(ADDRESS) == 1


async def test_a_different_stored_genesis_block_prevents_the_start(nodes: list[FakeEndpoint]) -> None:
    async def stored(_chain_id: int, _seen: BlockHash) -> BlockHash:
        return BlockHash(OTHER_FIRST)

    chain = EvmChain([JsonRpc(nodes[0].url)], confirm_genesis=stored)
    try:
        with pytest.raises(ChainUnusable, match=OTHER_FIRST):
            await chain.verify_chain_id(CHAIN_ID)
    finally:
        await chain.close()
