"""What single calls of `EvmChain` make of odd answers, of one node and of several."""

from __future__ import annotations

import asyncio

import pytest

from fakes.node import ADDRESS, Node, Opened, block, status, taken, tx
from fencepost.domain.send import SendCategory
from fencepost.domain.transaction import Call, Fees
from fencepost.errors import InsufficientFunds, RpcError, RpcRefused, RpcUnavailable, WouldRevert


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


@pytest.mark.parametrize("odd", [{}, "0x1", {**block(5), "hash": "0x12"}, {**block(5), "transactions": None}])
async def test_odd_blocks_are_no_answer(node: Node, opened: Opened, odd: object) -> None:
    node.methods["eth_getBlockByNumber"] = odd
    with pytest.raises(RpcError, match="malformed"):
        await opened.chain(node).block(5)
