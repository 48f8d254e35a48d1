"""Reads of `EvmChain` over several endpoints: the choice of endpoint, back-off, and endpoints that are never used."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Any

import pytest
from aiohttp import web

from fakes.endpoint import ADDRESS, FakeEndpoint, OpenChains, block, hang, hash_of, status, tx
from fencepost.adapters.evm.chain import EvmChain
from fencepost.adapters.evm.endpoints import MAX_BACK_OFF_S, MIN_BACK_OFF_S, consensus_value
from fencepost.domain.send_result import SendCategory
from fencepost.errors import ChainUnusable, RpcRefused, RpcUnavailable

# A head and its block.


async def test_the_block_of_the_head_is_not_requested_twice(node: FakeEndpoint, chains: OpenChains) -> None:
    node.methods["eth_getBlockByNumber"] = lambda tag, _whole: (
        block(7, tx(1).hash) if tag in ("latest", "0x7") else None
    )
    chain = chains.chain(node)
    head = await chain.head()
    found = await chain.block(7)
    assert found is not None
    assert (found.header, found.tx_hashes) == (head, (tx(1).hash,))
    assert len(node.bodies) == 1
    assert await chain.block(7) == found  # a later reader needs the block that is there then
    assert len(node.bodies) == 2


async def test_an_older_head_or_another_block_is_requested(node: FakeEndpoint, chains: OpenChains) -> None:
    node.methods["eth_getBlockByNumber"] = lambda tag, _whole: block(6 if tag == "0x6" else 7)
    chain = chains.chain(node)
    await chain.head()
    assert (found := await chain.block(6)) is not None
    assert found.header.number == 6
    await chain.head()
    chains.now_s += 1
    await chain.block(7)
    assert node.asked == ["eth_getBlockByNumber"] * 4


# Reads over several endpoints.


async def test_a_read_moves_to_the_next_endpoint_and_the_failed_one_backs_off(
    nodes: list[FakeEndpoint], chains: OpenChains
) -> None:
    chain = chains.chain(*nodes[:2])
    nodes[0].respond = status(500)
    nodes[1].methods["eth_getBalance"] = "0x5"
    assert await chain.balance_wei(ADDRESS) == 5
    assert await chain.balance_wei(ADDRESS) == 5
    assert [len(node.bodies) for node in nodes[:2]] == [1, 2]
    chains.now_s += MIN_BACK_OFF_S
    nodes[0].respond = nodes[0].answer
    nodes[0].methods["eth_getBalance"] = "0x5"
    nodes[1].respond = status(500)
    assert await chain.balance_wei(ADDRESS) == 5
    assert len(nodes[0].bodies) == 2


async def test_back_off_grows_to_a_bound(nodes: list[FakeEndpoint], chains: OpenChains) -> None:
    chain = chains.chain(*nodes[:2])
    nodes[1].methods["eth_getBalance"] = "0x5"
    nodes[0].respond = status(500)
    rests = []
    for _ in range(10):
        before = len(nodes[0].bodies)
        await chain._endpoints.ask_all(lambda endpoint: endpoint.rpc.call("eth_getBalance"))
        assert len(nodes[0].bodies) == before + 1
        rests.append(chain._endpoints.all[0].backs_off_until_s - chains.now_s)
        chains.now_s += rests[-1]
    assert rests[:4] == [MIN_BACK_OFF_S, 2 * MIN_BACK_OFF_S, 4 * MIN_BACK_OFF_S, 8 * MIN_BACK_OFF_S]
    assert rests[-1] == MAX_BACK_OFF_S


async def test_unavailable_endpoints_raise_an_error_and_are_all_retried(
    nodes: list[FakeEndpoint], chains: OpenChains
) -> None:
    chain = chains.chain(*nodes[:2])
    for node in nodes[:2]:
        node.respond = status(503)
    for _ in range(2):
        with pytest.raises(RpcUnavailable, match=r"HTTP 503.*HTTP 503"):
            await chain.balance_wei(ADDRESS)
    assert [len(node.bodies) for node in nodes[:2]] == [2, 2]


async def test_a_busy_endpoint_is_skipped_but_a_rejection_is_an_answer(
    nodes: list[FakeEndpoint], chains: OpenChains
) -> None:
    chain = chains.chain(*nodes[:2])
    nodes[0].methods["eth_getBalance"] = RpcRefused("request rate limited", rpc_code=-32005)
    nodes[1].methods["eth_getBalance"] = RpcRefused("header not found")
    with pytest.raises(RpcRefused, match="header not found"):
        await chain.balance_wei(ADDRESS)
    assert [node.asked for node in nodes[:2]] == [["eth_getBalance"]] * 2


async def test_only_a_clients_read_moves_to_the_next_endpoint(
    nodes: list[FakeEndpoint], chains: OpenChains
) -> None:
    chain = chains.chain(*nodes[:2])
    nodes[0].respond = status(500)
    nodes[1].methods |= {"eth_getBalance": "0x5", "anvil_mine": None}
    said = await chain.passthrough("eth_getBalance", [ADDRESS, "latest"], bytes_max=1000)
    assert bytes(said) == b'"0x5"'
    with pytest.raises(RpcUnavailable, match="HTTP 500"):
        await chain.passthrough("anvil_mine", [], bytes_max=1000)
    assert nodes[1].asked == ["eth_getBalance"]


async def test_a_clients_call_does_not_affect_the_health_of_an_endpoint(
    nodes: list[FakeEndpoint], chains: OpenChains
) -> None:
    chain = chains.chain(*nodes[:2])
    nodes[0].methods["eth_call"] = RpcRefused("the node is syncing", rpc_code=-32005, data="0x12")
    for _ in range(2):
        with pytest.raises(RpcRefused, match="syncing") as refused:
            await chain.passthrough("eth_call", [{}, "latest"], bytes_max=1000)
        assert (refused.value.rpc_code, refused.value.data) == (-32005, "0x12")
    nodes[0].respond = status(500)
    with pytest.raises(RpcUnavailable):
        await chain.passthrough("eth_unknown", [], bytes_max=1000)
    assert [endpoint.failures for endpoint in chain._endpoints.all] == [0, 0]
    assert not nodes[1].asked


@pytest.mark.parametrize(
    ("said", "nonce"),
    [
        (["0x5", "0x7"], 7),
        (["0x5", "0x7", "0x7"], 7),
        (["0x7", "0x63", "0x7"], 7),
        (["0x1", "0x5", "0x7"], 5),
    ],
)
async def test_nonces_of_several_endpoints_are_combined(
    nodes: list[FakeEndpoint], chains: OpenChains, said: list[str], nonce: int
) -> None:
    asked = nodes[: len(said)]
    for node, answer in zip(asked, said, strict=True):
        node.methods["eth_getTransactionCount"] = answer
    assert await chains.chain(*asked).nonce(ADDRESS, "latest") == nonce
    assert asked[0].bodies[0]["params"] == [ADDRESS, "latest"]


def test_the_typical_value_is_the_middle_or_the_higher_of_two() -> None:
    assert [
        consensus_value([4]),
        consensus_value([4, 9]),
        consensus_value([4, 9, 9]),
        consensus_value([1, 2, 3, 4]),
    ] == [4, 9, 9, 3]


@pytest.mark.parametrize(
    ("heads", "best"),
    [([100, 104, 103], {1}), ([100, 100, 900], {0, 1}), ([90, 100], {1})],
    ids=["the highest", "not the one far ahead of the rest", "of two the higher"],
)
async def test_reads_use_the_endpoint_with_the_best_head(
    nodes: list[FakeEndpoint], chains: OpenChains, heads: list[int], best: set[int]
) -> None:
    used = nodes[: len(heads)]
    for node, number in zip(used, heads, strict=True):
        node.methods |= {"eth_getBlockByNumber": block(number), "eth_getBalance": "0x1"}
    chain = chains.chain(*used)
    head = await chain.head()
    await chain.balance_wei(ADDRESS)
    [asked] = [index for index, node in enumerate(used) if "eth_getBalance" in node.asked]
    assert asked in best
    assert head.number == heads[asked]


# Chain id.


async def test_one_wrong_endpoint_is_named_and_the_others_are_used(
    nodes: list[FakeEndpoint], chains: OpenChains, caplog: pytest.LogCaptureFixture
) -> None:
    nodes[0].methods |= {"eth_chainId": "0x1", "eth_getBalance": "0x63"}
    nodes[1].methods["eth_getBalance"] = "0x5"
    chain = chains.chain(*nodes[:2])
    assert await chain.verify_chain_id(31_337) == 31_337
    (line,) = [record.getMessage() for record in caplog.records if "endpoint disabled" in record.getMessage()]
    assert "is on chain 1, not 31337" in line
    assert "s3cret" not in line
    for _ in range(3):
        assert await chain.balance_wei(ADDRESS) == 5
    assert "eth_getBalance" not in nodes[0].asked


async def test_a_wrong_endpoint_with_a_silent_one_is_unusable(
    nodes: list[FakeEndpoint], chains: OpenChains
) -> None:
    nodes[0].methods["eth_chainId"] = "0x1"
    nodes[1].respond = status(500)
    with pytest.raises(ChainUnusable, match="is on chain 1, not 31337"):
        await chains.chain(*nodes[:2]).verify_chain_id(31_337)


async def test_a_list_without_endpoints_or_with_mixed_chains_is_unusable(
    nodes: list[FakeEndpoint], chains: OpenChains
) -> None:
    for node in nodes[:2]:
        node.methods["eth_chainId"] = "0x1"
    with pytest.raises(ChainUnusable, match="is on chain 1, not 31337"):
        await chains.chain(*nodes[:2]).verify_chain_id(31_337)
    nodes[0].methods["eth_chainId"] = "0x7a69"
    with pytest.raises(ChainUnusable, match="is on chain"):
        await chains.chain(*nodes[:2]).verify_chain_id(0)
    nodes[0].respond = status(500)
    with pytest.raises(ChainUnusable, match="no RPC endpoint answers") as unusable:
        await chains.chain(nodes[0]).verify_chain_id(0)
    assert "s3cret" not in str(unusable.value)
    with pytest.raises(ChainUnusable, match="configured"):
        chains.chain()


async def test_an_endpoint_that_comes_up_on_another_chain_is_never_used(
    nodes: list[FakeEndpoint], chains: OpenChains
) -> None:
    chain = chains.chain(*nodes[:2])
    nodes[1].respond = status(503)
    assert await chain.verify_chain_id(0) == 31_337
    chains.now_s += MIN_BACK_OFF_S
    nodes[1].respond = nodes[1].answer
    nodes[1].methods |= {"eth_chainId": "0x1", "eth_sendRawTransaction": hash_of}
    nodes[0].methods["eth_sendRawTransaction"] = hash_of
    assert [result.category for result in await chain.send([tx()])] == [SendCategory.ACCEPTED]
    assert nodes[1].asked == ["eth_chainId", "eth_chainId"]


# Calls that hang.


def hanging_once(node: FakeEndpoint) -> None:
    """Let the next call hang and answer those after it."""

    async def respond(request: web.Request, body: Any) -> web.StreamResponse:
        node.respond = node.answer
        return await hang(request, body)

    node.respond = respond


@pytest.mark.parametrize("count", [1, 2])
async def test_a_hanging_call_does_not_delay_other_callers_for_the_whole_timeout(
    nodes: list[FakeEndpoint], chains: OpenChains, count: int
) -> None:
    used = nodes[:count]
    for node in used:
        node.methods |= {
            "eth_getBalance": "0x1",
            "eth_getTransactionCount": "0x2",
            "eth_getBlockByNumber": block(3),
        }
    chain = chains.chain(*used, timeout_s=600, grace_s=600)
    chain._endpoints._clock = time.monotonic
    await chain.head()  # the typical duration of a call is known from now on
    asked = (chain.head, partial(chain.nonce, ADDRESS, "latest"), partial(chain.balance_wei, ADDRESS))
    for ask in asked:
        for node in used:
            hanging_once(node)
        async with asyncio.timeout(60):
            assert await ask() is not None


async def test_a_hanging_send_is_repeated_over_another_connection(
    nodes: list[FakeEndpoint], chains: OpenChains
) -> None:
    nodes[0].methods |= {"eth_getBlockByNumber": block(3), "eth_sendRawTransaction": hash_of}
    chain = chains.chain(nodes[0], timeout_s=600)
    chain._endpoints._clock = time.monotonic
    await chain.head()
    hanging_once(nodes[0])
    async with asyncio.timeout(60):
        assert [result.category for result in await chain.send([tx()])] == [SendCategory.ACCEPTED]
    assert nodes[0].asked.count("eth_sendRawTransaction") == 2
    assert chain._endpoints.all[0].failures == 0


async def test_a_slow_endpoint_is_still_waited_for(nodes: list[FakeEndpoint], chains: OpenChains) -> None:
    nodes[0].methods["eth_getBalance"] = "0x1"
    chain = chains.chain(nodes[0], timeout_s=600)
    chain._endpoints._clock = time.monotonic
    await chain.balance_wei(ADDRESS)

    async def slow(request: web.Request, body: Any) -> web.StreamResponse:
        await asyncio.sleep(3.5)  # longer than the first two tries
        return await nodes[0].answer(request, body)

    nodes[0].respond = slow
    assert await chain.balance_wei(ADDRESS) == 1


# Hedged reads.


async def known_latency(chains: OpenChains, *nodes: FakeEndpoint) -> EvmChain:
    """A chain whose endpoints have answered once, quickly."""
    for node in nodes:
        node.methods |= {"eth_getBalance": "0x1", "eth_getBlockByNumber": block(3)}
    chain = chains.chain(*nodes, timeout_s=600, grace_s=600)
    await chain.head()
    for endpoint in chain._endpoints.all:
        endpoint.latency_s = 0.001
    return chain


@pytest.mark.parametrize("count", [1, 2])
async def test_a_hedge_answers_and_leaves_no_task_and_no_connection(
    nodes: list[FakeEndpoint], chains: OpenChains, count: int
) -> None:
    chain = await known_latency(chains, *nodes[:count])
    hedged: list[str] = []
    chain._endpoints._on_hedge = hedged.append
    first, last = chain._endpoints.healthy()[0], chain._endpoints.healthy()[-1]
    asked = nodes[chain._endpoints.all.index(first)]
    before = asyncio.all_tasks()
    hanging_once(asked)
    assert await chain.balance_wei(ADDRESS) == 1
    assert hedged == [first.rpc.endpoint]
    assert nodes[chain._endpoints.all.index(last)].asked[-1] == "eth_getBalance"
    assert (first.failures, last.failures) == (0, 0)
    assert {task for task in asyncio.all_tasks() - before if "hedging" in repr(task.get_coro())} == set()
    for endpoint in chain._endpoints.all:
        transport = endpoint.rpc._transport
        assert transport is not None
        assert [connection for connection in transport._all if connection._answer is not None] == []


async def test_without_hedges_left_a_hanging_call_is_given_up_as_before(
    nodes: list[FakeEndpoint], chains: OpenChains
) -> None:
    chain = await known_latency(chains, nodes[0])
    chain._endpoints._hedge_budget._hedges_left = 0.0
    hanging_once(nodes[0])
    assert await chain.balance_wei(ADDRESS) == 1
    assert nodes[0].asked.count("eth_getBalance") == 2


async def test_a_hedge_never_goes_to_an_endpoint_that_serves_another_chain(
    nodes: list[FakeEndpoint], chains: OpenChains
) -> None:
    chain = await known_latency(chains, *nodes[:2])
    first, wrong = chain._endpoints.healthy()
    wrong.wrong_since_s = 0.0
    asked, other = (nodes[chain._endpoints.all.index(endpoint)] for endpoint in (first, wrong))
    hanging_once(asked)
    assert await chain.balance_wei(ADDRESS) == 1
    assert asked.asked.count("eth_getBalance") == 2
    assert "eth_getBalance" not in other.asked


@pytest.mark.parametrize("is_refused", [False, True])
async def test_an_endpoint_found_wrong_while_it_is_asked_does_not_win(
    nodes: list[FakeEndpoint], chains: OpenChains, *, is_refused: bool
) -> None:
    """The answer comes over a connection that was identified before the endpoint was re-pointed."""
    chain = await known_latency(chains, nodes[0])
    await chain.verify_chain_id(31337)
    endpoint = chain._endpoints.all[0]
    node = nodes[0]
    if is_refused:
        node.methods["eth_getBalance"] = RpcRefused("no such account")

    async def late(request: web.Request, body: Any) -> web.StreamResponse:
        if body["method"] != "eth_getBalance":
            return await node.answer(request, body)
        while endpoint.wrong_since_s is None:  # noqa: ASYNC110 - the other connection sets it
            await asyncio.sleep(0.01)
        return await node.answer(request, body)

    node.respond = late
    node.methods["eth_chainId"] = "0x1"  # a new connection, as a hedge opens it, shows another chain
    with pytest.raises(RpcUnavailable):
        await chain.balance_wei(ADDRESS)
    assert endpoint.wrong_since_s is not None


async def test_a_send_that_hangs_is_hedged_and_does_not_lengthen_the_next_timeout(
    nodes: list[FakeEndpoint], chains: OpenChains
) -> None:
    chain = await known_latency(chains, nodes[0])
    nodes[0].methods["eth_sendRawTransaction"] = hash_of
    hedged: list[str] = []
    chain._endpoints._on_hedge = hedged.append
    hanging_once(nodes[0])
    assert [result.category for result in await chain.send([tx()])] == [SendCategory.ACCEPTED]
    assert hedged == [chain._endpoints.all[0].rpc.endpoint]
    assert chain._endpoints.all[0].send_timeout_s() == 1.0


async def test_a_send_that_hangs_on_every_connection_is_abandoned(
    nodes: list[FakeEndpoint], chains: OpenChains
) -> None:
    chain = await known_latency(chains, nodes[0])
    nodes[0].respond = hang
    assert [result.category for result in await chain.send([tx()])] == [SendCategory.UNKNOWN]
    assert chain._endpoints.all[0].send_timeout_s() == 2.0, "the next send may take longer"


async def test_a_send_is_not_hedged_to_an_endpoint_that_serves_another_chain(
    nodes: list[FakeEndpoint], chains: OpenChains
) -> None:
    chain = await known_latency(chains, nodes[0])
    nodes[0].methods["eth_sendRawTransaction"] = hash_of
    chain._endpoints.all[0].wrong_since_s = 0.0
    hanging_once(nodes[0])
    assert [result.category for result in await chain.send([tx()])] == [SendCategory.UNKNOWN]
    assert nodes[0].asked.count("eth_sendRawTransaction") == 1
