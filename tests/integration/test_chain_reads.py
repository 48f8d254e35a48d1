"""Reads of `EvmChain` over several endpoints: which is asked, which rests, and which is never used."""

from __future__ import annotations

import pytest

from fakes.node import ADDRESS, Node, Opened, block, status, taken, tx
from fencepost.adapters.evm.endpoints import REST_MAX_S, REST_MIN_S, typical
from fencepost.domain.send import SendCategory
from fencepost.errors import ChainUnusable, RpcRefused, RpcUnavailable

# A head and its block.


async def test_the_block_of_the_head_is_not_asked_for_twice(node: Node, opened: Opened) -> None:
    node.methods["eth_getBlockByNumber"] = lambda tag, _whole: (
        block(7, tx(1).hash) if tag in ("latest", "0x7") else None
    )
    chain = opened.chain(node)
    head = await chain.head()
    found = await chain.block(7)
    assert found is not None
    assert (found.header, found.tx_hashes) == (head, (tx(1).hash,))
    assert len(node.bodies) == 1
    assert await chain.block(7) == found  # whoever reads it later wants what stands there then
    assert len(node.bodies) == 2


async def test_a_head_seen_some_time_ago_or_another_block_is_asked_for(node: Node, opened: Opened) -> None:
    node.methods["eth_getBlockByNumber"] = lambda tag, _whole: block(6 if tag == "0x6" else 7)
    chain = opened.chain(node)
    await chain.head()
    assert (found := await chain.block(6)) is not None
    assert found.header.number == 6
    await chain.head()
    opened.now_s += 1
    await chain.block(7)
    assert node.asked == ["eth_getBlockByNumber"] * 4


# Reads over several endpoints.


async def test_a_read_moves_on_and_the_failed_node_rests(nodes: list[Node], opened: Opened) -> None:
    chain = opened.chain(*nodes[:2])
    nodes[0].respond = status(500)
    nodes[1].methods["eth_getBalance"] = "0x5"
    assert await chain.balance_wei(ADDRESS) == 5
    assert await chain.balance_wei(ADDRESS) == 5
    assert [len(node.bodies) for node in nodes[:2]] == [1, 2]
    opened.now_s += REST_MIN_S
    nodes[0].respond = nodes[0].answer
    nodes[0].methods["eth_getBalance"] = "0x5"
    nodes[1].respond = status(500)
    assert await chain.balance_wei(ADDRESS) == 5
    assert len(nodes[0].bodies) == 2


async def test_rests_grow_to_a_bound(nodes: list[Node], opened: Opened) -> None:
    chain = opened.chain(*nodes[:2])
    nodes[1].methods["eth_getBalance"] = "0x5"
    nodes[0].respond = status(500)
    rests = []
    for _ in range(10):
        before = len(nodes[0].bodies)
        await chain._endpoints.ask_all(lambda endpoint: endpoint.rpc.call("eth_getBalance"))
        assert len(nodes[0].bodies) == before + 1
        rests.append(chain._endpoints.all[0].rests_until_s - opened.now_s)
        opened.now_s += rests[-1]
    assert rests[:4] == [REST_MIN_S, 2 * REST_MIN_S, 4 * REST_MIN_S, 8 * REST_MIN_S]
    assert rests[-1] == REST_MAX_S


async def test_all_down_is_unavailable_and_all_are_tried_again(nodes: list[Node], opened: Opened) -> None:
    chain = opened.chain(*nodes[:2])
    for node in nodes[:2]:
        node.respond = status(503)
    for _ in range(2):
        with pytest.raises(RpcUnavailable, match=r"HTTP 503.*HTTP 503"):
            await chain.balance_wei(ADDRESS)
    assert [len(node.bodies) for node in nodes[:2]] == [2, 2]


async def test_a_busy_node_is_passed_over_but_a_refusal_is_an_answer(
    nodes: list[Node], opened: Opened
) -> None:
    chain = opened.chain(*nodes[:2])
    nodes[0].methods["eth_getBalance"] = RpcRefused("request rate limited", rpc_code=-32005)
    nodes[1].methods["eth_getBalance"] = RpcRefused("header not found")
    with pytest.raises(RpcRefused, match="header not found"):
        await chain.balance_wei(ADDRESS)
    assert [node.asked for node in nodes[:2]] == [["eth_getBalance"]] * 2


async def test_only_a_strangers_read_moves_on(nodes: list[Node], opened: Opened) -> None:
    chain = opened.chain(*nodes[:2])
    nodes[0].respond = status(500)
    nodes[1].methods |= {"eth_getBalance": "0x5", "anvil_mine": None}
    assert await chain.passthrough("eth_getBalance", [ADDRESS, "latest"]) == "0x5"
    with pytest.raises(RpcUnavailable, match="HTTP 500"):
        await chain.passthrough("anvil_mine", [])
    assert nodes[1].asked == ["eth_getBalance"]


async def test_a_strangers_call_says_nothing_about_a_nodes_health(nodes: list[Node], opened: Opened) -> None:
    chain = opened.chain(*nodes[:2])
    nodes[0].methods["eth_call"] = RpcRefused("the node is syncing", rpc_code=-32005, data="0x12")
    for _ in range(2):
        with pytest.raises(RpcRefused, match="syncing") as refused:
            await chain.passthrough("eth_call", [{}, "latest"])
        assert (refused.value.rpc_code, refused.value.data) == (-32005, "0x12")
    nodes[0].respond = status(500)
    with pytest.raises(RpcUnavailable):
        await chain.passthrough("eth_unknown", [])
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
async def test_nonces_of_several_nodes(
    nodes: list[Node], opened: Opened, said: list[str], nonce: int
) -> None:
    asked = nodes[: len(said)]
    for node, answer in zip(asked, said, strict=True):
        node.methods["eth_getTransactionCount"] = answer
    assert await opened.chain(*asked).nonce(ADDRESS, "latest") == nonce
    assert asked[0].bodies[0]["params"] == [ADDRESS, "latest"]


def test_what_is_typical() -> None:
    assert [typical([4]), typical([4, 9]), typical([4, 9, 9]), typical([1, 2, 3, 4])] == [4, 9, 9, 3]


@pytest.mark.parametrize(
    ("heads", "best"),
    [([100, 104, 103], {1}), ([100, 100, 900], {0, 1}), ([90, 100], {1})],
    ids=["the highest", "not the one far ahead of the rest", "of two the higher"],
)
async def test_reads_go_to_the_best_head(
    nodes: list[Node], opened: Opened, heads: list[int], best: set[int]
) -> None:
    used = nodes[: len(heads)]
    for node, number in zip(used, heads, strict=True):
        node.methods |= {"eth_getBlockByNumber": block(number), "eth_getBalance": "0x1"}
    chain = opened.chain(*used)
    head = await chain.head()
    await chain.balance_wei(ADDRESS)
    [asked] = [index for index, node in enumerate(used) if "eth_getBalance" in node.asked]
    assert asked in best
    assert head.number == heads[asked]


# Chain id.


async def test_no_node_and_mixed_nodes_are_unusable(nodes: list[Node], opened: Opened) -> None:
    nodes[1].methods["eth_chainId"] = "0x1"
    with pytest.raises(ChainUnusable, match="is on chain 1, not 31337"):
        await opened.chain(*nodes[:2]).verify_chain_id(31_337)
    with pytest.raises(ChainUnusable, match="is on chain"):
        await opened.chain(*nodes[:2]).verify_chain_id(0)
    nodes[0].respond = status(500)
    with pytest.raises(ChainUnusable, match="no RPC endpoint answers") as unusable:
        await opened.chain(nodes[0]).verify_chain_id(0)
    assert "s3cret" not in str(unusable.value)
    with pytest.raises(ChainUnusable, match="configured"):
        opened.chain()


async def test_a_node_that_comes_up_on_another_chain_is_never_used(nodes: list[Node], opened: Opened) -> None:
    chain = opened.chain(*nodes[:2])
    nodes[1].respond = status(503)
    assert await chain.verify_chain_id(0) == 31_337
    opened.now_s += REST_MIN_S
    nodes[1].respond = nodes[1].answer
    nodes[1].methods |= {"eth_chainId": "0x1", "eth_sendRawTransaction": taken}
    nodes[0].methods["eth_sendRawTransaction"] = taken
    assert [result.category for result in await chain.send([tx()])] == [SendCategory.ACCEPTED]
    assert nodes[1].asked == ["eth_chainId", "eth_chainId"]
