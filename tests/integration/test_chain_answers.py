"""How single calls of `EvmChain` handle odd answers, from one endpoint and from several."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web

from fakes.endpoint import ADDRESS, FakeEndpoint, OpenChains, block, hash_of, status, tx
from fencepost.domain.send_result import SendCategory
from fencepost.domain.transaction import AccessEntry, Call, Fees
from fencepost.errors import (
    InsufficientFunds,
    RpcError,
    RpcRefused,
    RpcUnavailable,
    TypeNotSupported,
    WouldRevert,
)


def receipt(tx_hash: str, **other: object) -> dict[str, object]:
    fields = {"transactionHash": tx_hash, "blockNumber": "0x5", "blockHash": tx(5).hash}
    return {**fields, "status": "0x1", "gasUsed": "0x5208", **other}


async def test_a_receipt_that_one_endpoint_lacks_is_requested_from_all(
    nodes: list[FakeEndpoint], chains: OpenChains
) -> None:
    nodes[0].methods["eth_getTransactionReceipt"] = None
    nodes[1].methods["eth_getTransactionReceipt"] = lambda tx_hash: (
        receipt(tx_hash) if tx_hash == tx(1).hash else None
    )
    chain = chains.chain(*nodes[:2])
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
async def test_malformed_receipts_count_as_no_answer(
    node: FakeEndpoint, chains: OpenChains, odd: object
) -> None:
    node.methods["eth_getTransactionReceipt"] = odd
    with pytest.raises(RpcUnavailable):
        await chains.chain(node).receipts([tx(1).hash])


async def test_a_malformed_receipt_fails_only_the_callers_that_requested_it(
    node: FakeEndpoint, chains: OpenChains
) -> None:
    node.methods["eth_getTransactionReceipt"] = lambda tx_hash: (
        "odd" if tx_hash == tx(2).hash else receipt(tx_hash)
    )
    chain = chains.chain(node)
    fine, odd, also_fine = await asyncio.gather(
        *(chain.receipts([tx(number).hash]) for number in (1, 2, 3)), return_exceptions=True
    )
    assert isinstance(odd, RpcUnavailable)
    assert not isinstance(fine, BaseException)
    assert not isinstance(also_fine, BaseException)
    assert [found.tx_hash for found in (*fine, *also_fine) if found] == [tx(1).hash, tx(3).hash]
    assert len(node.bodies) == 1


async def test_receipts_and_head_share_one_request_for_all_callers_and_include_the_block(
    node: FakeEndpoint, chains: OpenChains
) -> None:
    node.methods["eth_getTransactionReceipt"] = lambda tx_hash: (
        None if tx_hash == tx(2).hash else "odd" if tx_hash == tx(3).hash else receipt(tx_hash)
    )
    node.methods["eth_getBlockByNumber"] = block(5, tx(1).hash)
    chain = chains.chain(node)
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


async def test_a_receipt_from_one_endpoint_is_combined_with_the_best_head(
    nodes: list[FakeEndpoint], chains: OpenChains
) -> None:
    for node, number in zip(nodes, (5, 6, 4), strict=True):
        node.methods["eth_getBlockByNumber"] = block(number)
        node.methods["eth_getTransactionReceipt"] = None
    nodes[0].methods["eth_getTransactionReceipt"] = receipt
    nodes[2].respond = status(500)
    (found,), head = await chains.chain(*nodes).receipts_and_head([tx(1).hash])
    assert found is not None
    assert (found.block.number, head.number) == (5, 6)


async def test_receipts_without_a_head_count_as_no_answer(node: FakeEndpoint, chains: OpenChains) -> None:
    node.methods["eth_getTransactionReceipt"] = receipt
    node.methods["eth_getBlockByNumber"] = None
    with pytest.raises(RpcRefused):
        await chains.chain(node).receipts_and_head([tx(1).hash])


async def test_sends_of_several_callers_share_a_request_and_each_gets_its_own_results(
    node: FakeEndpoint, chains: OpenChains
) -> None:
    node.methods["eth_sendRawTransaction"] = lambda raw: (
        RpcRefused("nonce too low") if raw == "0x02" else hash_of(raw)
    )
    chain = chains.chain(node)
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


async def test_a_pending_transaction_has_no_receipt(node: FakeEndpoint, chains: OpenChains) -> None:
    node.methods["eth_getTransactionReceipt"] = receipt(tx(1).hash, blockHash=None)
    assert await chains.chain(node).receipts([tx(1).hash]) == [None]


async def test_a_transaction_known_to_one_endpoint_is_known(
    nodes: list[FakeEndpoint], chains: OpenChains
) -> None:
    nodes[0].methods["eth_getTransactionByHash"] = None
    nodes[1].methods["eth_getTransactionByHash"] = lambda tx_hash: (
        {"hash": tx_hash} if tx_hash == tx(1).hash else None
    )
    assert await chains.chain(*nodes[:2]).knows([tx(1).hash, tx(2).hash]) == [True, False]


async def test_an_endpoint_without_block_receipts_is_asked_once(
    node: FakeEndpoint, chains: OpenChains
) -> None:
    chain = chains.chain(node)
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
async def test_fee_quotes_derive_from_the_fee_history_or_the_gas_price(
    node: FakeEndpoint, chains: OpenChains, history: object, fees: Fees
) -> None:
    node.methods |= {"eth_feeHistory": history, "eth_gasPrice": "0xc8"}
    assert (await chains.chain(node).quote_fees()).normal == fees


@pytest.mark.parametrize("history", [{"baseFeePerGas": ["0x0", "0x0"], "reward": [["0x0"]]}, None])
async def test_the_quote_is_zero_where_gas_is_free(
    node: FakeEndpoint, chains: OpenChains, history: object
) -> None:
    node.methods |= {"eth_feeHistory": history, "eth_gasPrice": "0x0"}
    assert (await chains.chain(node).quote_fees()).normal == Fees(fee_cap_wei=0, tip_wei=0)


async def test_errors_of_gas_estimates_are_classified(node: FakeEndpoint, chains: OpenChains) -> None:
    chain, call = chains.chain(node), Call(to=None, data=b"\x60", value_wei=1)
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


async def test_a_dry_run_rejected_for_a_temporary_reason_moves_to_another_endpoint(
    nodes: list[FakeEndpoint], chains: OpenChains
) -> None:
    chain, call = chains.chain(*nodes[:2]), Call(to=ADDRESS)
    nodes[0].methods["eth_estimateGas"] = RpcRefused("header not found")
    nodes[1].methods["eth_estimateGas"] = "0x5208"
    assert await chain.estimate_gas(ADDRESS, call) == 21_000
    nodes[1].methods["eth_estimateGas"] = RpcRefused("missing trie node")
    with pytest.raises(RpcRefused):
        await chain.estimate_gas(ADDRESS, call)
    nodes[1].methods["eth_estimateGas"] = RpcRefused("execution reverted", rpc_code=3)
    with pytest.raises(WouldRevert):
        await chain.estimate_gas(ADDRESS, call)


async def test_an_access_list_on_a_chain_without_them_is_a_verdict(
    node: FakeEndpoint, chains: OpenChains
) -> None:
    chain, entry = chains.chain(node), AccessEntry(ADDRESS, ())
    node.methods["eth_estimateGas"] = RpcRefused("Eip2930 is not supported")
    with pytest.raises(TypeNotSupported):
        await chain.estimate_gas(ADDRESS, Call(to=ADDRESS, access_list=(entry,)))
    with pytest.raises(RpcRefused) as refused:  # without a list it says nothing about the call
        await chain.estimate_gas(ADDRESS, Call(to=ADDRESS))
    assert not isinstance(refused.value, TypeNotSupported)


async def test_a_read_that_one_node_refuses_is_asked_of_another(
    nodes: list[FakeEndpoint], chains: OpenChains
) -> None:
    chain = chains.chain(*nodes[:2])
    nodes[0].methods["eth_getBalance"] = RpcRefused("the method does not exist", rpc_code=-32601)
    nodes[1].methods["eth_getBalance"] = "0x7"
    assert await chain.balance_wei(ADDRESS) == 7
    nodes[1].methods["eth_getBalance"] = RpcRefused("missing trie node")
    with pytest.raises(RpcRefused, match="does not exist"):
        await chain.balance_wei(ADDRESS)


async def test_an_endpoint_that_cannot_replay_stays_in_use(node: FakeEndpoint, chains: OpenChains) -> None:
    chain = chains.chain(node)
    endpoint = chain._endpoints.all[0]
    answer = node.respond

    async def forbid_replays(request: web.Request, body: Any) -> web.StreamResponse:
        return web.Response(status=403) if body["method"] == "eth_call" else await answer(request, body)

    node.respond = forbid_replays
    node.methods["eth_getTransactionByHash"] = {"blockNumber": "0x5", "from": ADDRESS, "input": "0x"}
    with pytest.raises(RpcUnavailable):
        await chain.revert_reason(tx(1).hash)
    assert (endpoint.failures, endpoint.backs_off_until_s) == (0, 0.0)


async def test_a_replay_uses_the_parent_state_and_then_the_block_state(
    node: FakeEndpoint, chains: OpenChains
) -> None:
    chain = chains.chain(node)
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


async def test_a_missing_finalized_head_is_rejected(node: FakeEndpoint, chains: OpenChains) -> None:
    node.methods["eth_getBlockByNumber"] = None
    with pytest.raises(RpcRefused, match="no finalized block"):
        await chains.chain(node).head("finalized")
    assert await chains.chain(node).block(5) is None


@pytest.mark.parametrize("odd", [{}, "0x1", {**block(5), "hash": "0x12"}, {**block(5), "transactions": None}])
async def test_malformed_blocks_count_as_no_answer(
    node: FakeEndpoint, chains: OpenChains, odd: object
) -> None:
    node.methods["eth_getBlockByNumber"] = odd
    with pytest.raises(RpcError, match="malformed"):
        await chains.chain(node).block(5)
