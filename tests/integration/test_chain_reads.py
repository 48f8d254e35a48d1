"""Reads of `EvmChain` over several endpoints, and what it makes of odd answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from fakes.node import ADDRESS, Node, Opened, serving, status, taken, tx
from fencepost.adapters.evm.endpoints import REST_MAX_S, REST_MIN_S, typical
from fencepost.domain.send import SendCategory
from fencepost.domain.transaction import Call, Fees
from fencepost.errors import (
    ChainUnusable,
    InsufficientFunds,
    RpcError,
    RpcRefused,
    RpcUnavailable,
    WouldRevert,
)


@pytest.fixture
async def nodes() -> AsyncIterator[list[Node]]:
    async with serving(3) as made:
        yield made


@pytest.fixture
def node(nodes: list[Node]) -> Node:
    return nodes[0]


@pytest.fixture
async def opened() -> AsyncIterator[Opened]:
    made = Opened()
    yield made
    await made.close()


# A head and its block.


def block(number: int, *hashes: str) -> dict[str, object]:
    return {
        "number": hex(number),
        "hash": f"0x{number:064x}",
        "parentHash": f"0x{number - 1:064x}",
        "timestamp": "0x1",
        "transactions": list(hashes),
    }


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


def header(number: int) -> dict[str, Any]:
    hashes = {"hash": f"0x{number:064x}", "parentHash": f"0x{number - 1:064x}"}
    return {**hashes, "number": hex(number), "timestamp": "0x1", "transactions": []}


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
        node.methods |= {"eth_getBlockByNumber": header(number), "eth_getBalance": "0x1"}
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


# What single methods make of odd answers.


def receipt(tx_hash: str, **other: object) -> dict[str, object]:
    fields = {"transactionHash": tx_hash, "blockNumber": "0x5", "blockHash": tx(5).hash}
    return {**fields, "status": "0x1", "gasUsed": "0x5208", **other}


async def test_a_receipt_one_node_lacks_is_asked_of_all(nodes: list[Node], opened: Opened) -> None:
    nodes[0].methods["eth_getTransactionReceipt"] = None
    nodes[1].methods["eth_getTransactionReceipt"] = lambda tx_hash: (
        receipt(tx_hash) if tx_hash == tx(1).hash else None
    )
    chain = opened.chain(*nodes[:2])
    found, missing = await chain.receipts([tx(1).hash, tx(2).hash])
    assert found is not None
    assert found.block.number == 5
    assert missing is None
    nodes[1].respond = status(500)
    with pytest.raises(RpcUnavailable):
        await chain.receipts([tx(2).hash])


@pytest.mark.parametrize(
    "odd",
    [receipt(tx(9).hash), receipt(tx(1).hash, status=None), receipt(tx(1).hash, gasUsed="many"), "0x", []],
)
async def test_odd_receipts_are_no_answer(node: Node, opened: Opened, odd: object) -> None:
    node.methods["eth_getTransactionReceipt"] = odd
    with pytest.raises(RpcUnavailable):
        await opened.chain(node).receipts([tx(1).hash])


async def test_an_odd_receipt_fails_only_those_who_asked_for_it(node: Node, opened: Opened) -> None:
    node.methods["eth_getTransactionReceipt"] = lambda tx_hash: (
        "odd" if tx_hash == tx(2).hash else receipt(tx_hash)
    )
    chain = opened.chain(node)
    fine, odd, also_fine = await asyncio.gather(
        *(chain.receipts([tx(number).hash]) for number in (1, 2, 3)), return_exceptions=True
    )
    assert isinstance(odd, RpcUnavailable)
    assert not isinstance(fine, BaseException)
    assert not isinstance(also_fine, BaseException)
    assert [found.tx_hash for found in (*fine, *also_fine) if found] == [tx(1).hash, tx(3).hash]
    assert len(node.bodies) == 1


async def test_receipts_and_head_are_one_request_for_all_who_ask_and_tell_the_block_too(
    node: Node, opened: Opened
) -> None:
    node.methods["eth_getTransactionReceipt"] = lambda tx_hash: (
        None if tx_hash == tx(2).hash else "odd" if tx_hash == tx(3).hash else receipt(tx_hash)
    )
    node.methods["eth_getBlockByNumber"] = block(5, tx(1).hash)
    chain = opened.chain(node)
    mined, waiting, odd = await asyncio.gather(
        *(chain.receipts_and_head([tx(number).hash]) for number in (1, 2, 3)), return_exceptions=True
    )
    assert not isinstance(mined, BaseException)
    assert not isinstance(waiting, BaseException)
    assert isinstance(odd, RpcUnavailable)
    assert [found and found.tx_hash for found in (*mined[0], *waiting[0])] == [tx(1).hash, None]
    assert (found := await chain.block(5)) is not None
    assert found.header == mined[1] == waiting[1]
    assert len(node.bodies) == 1


async def test_a_receipt_that_one_node_has_comes_with_the_best_ones_head(
    nodes: list[Node], opened: Opened
) -> None:
    for node, number in zip(nodes, (5, 6, 4), strict=True):
        node.methods["eth_getBlockByNumber"] = block(number)
        node.methods["eth_getTransactionReceipt"] = None
    nodes[0].methods["eth_getTransactionReceipt"] = receipt
    nodes[2].respond = status(500)
    (found,), head = await opened.chain(*nodes).receipts_and_head([tx(1).hash])
    assert found is not None
    assert (found.block.number, head.number) == (5, 6)


async def test_receipts_without_a_head_are_no_answer(node: Node, opened: Opened) -> None:
    node.methods["eth_getTransactionReceipt"] = receipt
    node.methods["eth_getBlockByNumber"] = None
    with pytest.raises(RpcRefused):
        await opened.chain(node).receipts_and_head([tx(1).hash])


async def test_sends_of_several_callers_travel_together_and_each_has_its_own_results(
    node: Node, opened: Opened
) -> None:
    node.methods["eth_sendRawTransaction"] = lambda raw: (
        RpcRefused("nonce too low") if raw == "0x02" else taken(raw)
    )
    chain = opened.chain(node)
    said = await asyncio.gather(
        chain.send([tx(1)]),
        chain.send([tx(2), tx(3)]),
        chain.send([tx(4)]),
    )
    assert [[result.category for result in results] for results in said] == [
        [SendCategory.ACCEPTED],
        [SendCategory.NONCE_TOO_LOW, SendCategory.ACCEPTED],
        [SendCategory.ACCEPTED],
    ]
    assert len(node.bodies) == 1


async def test_a_receipt_of_a_pending_transaction_is_none(node: Node, opened: Opened) -> None:
    node.methods["eth_getTransactionReceipt"] = receipt(tx(1).hash, blockHash=None)
    assert await opened.chain(node).receipts([tx(1).hash]) == [None]


async def test_known_to_one_is_known(nodes: list[Node], opened: Opened) -> None:
    nodes[0].methods["eth_getTransactionByHash"] = None
    nodes[1].methods["eth_getTransactionByHash"] = lambda tx_hash: (
        {"hash": tx_hash} if tx_hash == tx(1).hash else None
    )
    assert await opened.chain(*nodes[:2]).knows([tx(1).hash, tx(2).hash]) == [True, False]


async def test_a_node_without_block_receipts_is_asked_once(node: Node, opened: Opened) -> None:
    chain = opened.chain(node)
    assert await chain.block_receipts(5) is None
    assert await chain.block_receipts(6) is None
    assert node.asked == ["eth_getBlockReceipts"]


@pytest.mark.parametrize(
    ("history", "fees"),
    [
        (
            {"baseFeePerGas": ["0x1", "0x64"], "reward": [["0x5"], ["0x0"], ["0x7"], ["0x9"]]},
            Fees(fee_cap_wei=207, tip_wei=7),
        ),
        ({"baseFeePerGas": ["0x1", "0x64"], "reward": [["0x0"]]}, Fees(fee_cap_wei=300, tip_wei=100)),
        ({"baseFeePerGas": ["0x1", "0x64"]}, Fees(fee_cap_wei=300, tip_wei=100)),
        ({"baseFeePerGas": ["0x1", "0xc8"]}, Fees(fee_cap_wei=401, tip_wei=1)),
        (RpcRefused("method not found", rpc_code=-32601), Fees(fee_cap_wei=200, tip_wei=200)),
        ({"oldestBlock": "0x1"}, Fees(fee_cap_wei=200, tip_wei=200)),
        (None, Fees(fee_cap_wei=200, tip_wei=200)),
    ],
)
async def test_quotes(node: Node, opened: Opened, history: object, fees: Fees) -> None:
    node.methods |= {"eth_feeHistory": history, "eth_gasPrice": "0xc8"}
    assert await opened.chain(node).quote_fees() == fees


async def test_estimates(node: Node, opened: Opened) -> None:
    chain, call = opened.chain(node), Call(to=None, data=b"\x60", value_wei=1)
    node.methods["eth_estimateGas"] = RpcRefused("execution reverted: not today", rpc_code=3)
    with pytest.raises(WouldRevert, match=r"^not today$"):
        await chain.estimate_gas(ADDRESS, call)
    node.methods["eth_estimateGas"] = RpcRefused("insufficient funds for transfer")
    with pytest.raises(InsufficientFunds, match="insufficient funds"):
        await chain.estimate_gas(ADDRESS, call)
    node.methods["eth_estimateGas"] = RpcRefused("gas required exceeds allowance (0)")
    with pytest.raises(RpcRefused, match="allowance"):
        await chain.estimate_gas(ADDRESS, call)
    assert node.bodies[0]["params"] == [{"from": ADDRESS, "value": "0x1", "data": "0x60"}]


async def test_a_replay_tries_the_parents_state_and_then_the_blocks(node: Node, opened: Opened) -> None:
    chain = opened.chain(node)
    mined = {
        "from": ADDRESS,
        "to": None,
        "value": "0x0",
        "gas": "0x5208",
        "input": "0x60",
        "blockNumber": "0x9",
    }
    node.methods["eth_getTransactionByHash"] = mined
    node.methods["eth_call"] = lambda _call, at: (
        "0x" if at == "0x8" else RpcRefused("execution reverted: late", rpc_code=3)
    )
    assert await chain.revert_reason(tx(1).hash) == "late"
    node.methods["eth_call"] = RpcRefused("missing trie node")
    assert await chain.revert_reason(tx(1).hash) is None
    assert node.bodies[1]["params"] == [
        {"from": ADDRESS, "value": "0x0", "gas": "0x5208", "data": "0x60"},
        "0x8",
    ]


async def test_a_finalized_head_that_is_not_there_yet_is_refused(node: Node, opened: Opened) -> None:
    node.methods["eth_getBlockByNumber"] = None
    with pytest.raises(RpcRefused, match="no finalized block"):
        await opened.chain(node).head("finalized")
    assert await opened.chain(node).block(5) is None


@pytest.mark.parametrize(
    "odd", [{}, "0x1", {**header(5), "hash": "0x12"}, {**header(5), "transactions": None}]
)
async def test_odd_blocks_are_no_answer(node: Node, opened: Opened, odd: object) -> None:
    node.methods["eth_getBlockByNumber"] = odd
    with pytest.raises(RpcError, match="malformed"):
        await opened.chain(node).block(5)
