"""Sends through `EvmChain` to nodes that misbehave: what may be out is never called failed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web

from fakes.node import Node, Opened, Respond, hang, reset, says, status, taken, tx
from fencepost.domain.send import SendCategory
from fencepost.errors import RpcRefused


async def test_a_send_goes_to_all_and_one_is_enough(nodes: list[Node], opened: Opened) -> None:
    chain = opened.chain(*nodes)
    nodes[0].methods["eth_sendRawTransaction"] = RpcRefused("already known")
    nodes[1].methods["eth_sendRawTransaction"] = taken
    nodes[2].respond = reset
    results = await chain.send([tx(1), tx(2)])
    assert [(result.category, result.returned_hash) for result in results] == [
        (SendCategory.ACCEPTED, tx(1).hash),
        (SendCategory.ACCEPTED, tx(2).hash),
    ]
    assert [len(node.bodies) for node in nodes] == [1, 1, 1]


async def test_a_lost_answer_beats_a_refusal(nodes: list[Node], opened: Opened) -> None:
    chain = opened.chain(*nodes[:2])
    nodes[0].methods["eth_sendRawTransaction"] = RpcRefused("intrinsic gas too low")
    nodes[1].respond = reset
    assert [result.category for result in await chain.send([tx()])] == [SendCategory.UNKNOWN]
    # While the broken one rests, the refusal stands by itself.
    assert [result.category for result in await chain.send([tx()])] == [SendCategory.FATAL]


async def test_executed_and_then_reset_is_unknown(node: Node, opened: Opened) -> None:
    executed: list[str] = []

    async def respond(request: web.Request, body: Any) -> web.StreamResponse:
        executed.append(body["params"][0])
        return await reset(request, body)

    node.respond = respond
    [result] = await opened.chain(node).send([tx()])
    assert result.category is SendCategory.UNKNOWN
    assert executed == ["0x01"], "sent once, never again by itself"
    assert "s3cret" not in result.message


@pytest.mark.parametrize(
    ("respond", "category"),
    [
        (status(429), SendCategory.NODE_NOT_READY),
        (status(502), SendCategory.NODE_NOT_READY),
        (status(500), SendCategory.UNKNOWN),
        (says("garbage"), SendCategory.UNKNOWN),
        (reset, SendCategory.UNKNOWN),
    ],
)
async def test_no_answer_to_a_send(
    node: Node, opened: Opened, respond: Respond, category: SendCategory
) -> None:
    node.respond = respond
    results = await opened.chain(node).send([tx(1), tx(2)])
    assert [result.category for result in results] == [category] * 2


async def test_a_send_that_times_out_is_unknown(node: Node, opened: Opened) -> None:
    node.respond = hang
    [result] = await opened.chain(node, timeout_s=0.05).send([tx()])
    assert result.category is SendCategory.UNKNOWN
    assert "time-out" in result.message


async def test_a_hanging_node_does_not_hold_up_the_others(nodes: list[Node], opened: Opened) -> None:
    nodes[0].methods["eth_sendRawTransaction"] = taken
    nodes[1].respond = hang
    chain = opened.chain(*nodes[:2], timeout_s=60, grace_s=0.05)
    async with asyncio.timeout(10):
        [result] = await chain.send([tx()])
    assert result.category is SendCategory.ACCEPTED


@pytest.mark.parametrize("answer", [tx(9).hash, "0x12", None, 7])
async def test_another_hash_than_ours_is_unknown(node: Node, opened: Opened, answer: object) -> None:
    node.methods["eth_sendRawTransaction"] = answer
    [result] = await opened.chain(node).send([tx(1)])
    assert result.category is SendCategory.UNKNOWN
    assert result.returned_hash == (answer if answer == tx(9).hash else None)
    assert "the node answered" in result.message


async def test_each_transaction_of_a_batch_has_its_own_result(node: Node, opened: Opened) -> None:
    def said(raw: str) -> object:
        return (
            RpcRefused("Invalid input", data="nonce too low: next nonce 5, tx nonce 1")
            if raw == "0x02"
            else taken(raw)
        )

    async def respond(_request: web.Request, body: Any) -> web.StreamResponse:
        return web.json_response([node.one(call) for call in reversed(body[:-1])])

    node.methods["eth_sendRawTransaction"] = said
    node.respond = respond
    results = await opened.chain(node).send([tx(1), tx(2), tx(3)])
    assert [result.category for result in results] == [
        SendCategory.ACCEPTED,
        SendCategory.NONCE_TOO_LOW,
        SendCategory.UNKNOWN,
    ]
    assert results[1].chain_nonce == 5
