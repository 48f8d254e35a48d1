"""Sends through `EvmChain` to misbehaving endpoints: bytes that may be in a pool never count as failed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web

from fakes.endpoint import FakeEndpoint, OpenChains, Respond, answer_with, hang, hash_of, reset, status, tx
from fencepost.domain.send_result import SendCategory
from fencepost.errors import RpcRefused


async def test_a_send_goes_to_all_endpoints_and_one_success_is_enough(
    nodes: list[FakeEndpoint], chains: OpenChains
) -> None:
    chain = chains.chain(*nodes)
    nodes[0].methods["eth_sendRawTransaction"] = RpcRefused("already known")
    nodes[1].methods["eth_sendRawTransaction"] = hash_of
    nodes[2].respond = reset
    results = await chain.send([tx(1), tx(2)])
    assert [(result.category, result.returned_hash) for result in results] == [
        (SendCategory.ACCEPTED, tx(1).hash),
        (SendCategory.ACCEPTED, tx(2).hash),
    ]
    assert [len(node.bodies) for node in nodes] == [1, 1, 1]


async def test_a_lost_answer_outranks_a_rejection(nodes: list[FakeEndpoint], chains: OpenChains) -> None:
    chain = chains.chain(*nodes[:2])
    nodes[0].methods["eth_sendRawTransaction"] = RpcRefused("intrinsic gas too low")
    nodes[1].respond = reset
    assert [result.category for result in await chain.send([tx()])] == [SendCategory.UNKNOWN]
    # While the broken endpoint backs off, only the rejection counts.
    assert [result.category for result in await chain.send([tx()])] == [SendCategory.FATAL]


async def test_each_transaction_keeps_its_own_text_when_all_answers_are_unknown(
    node: FakeEndpoint, chains: OpenChains
) -> None:
    node.methods["eth_sendRawTransaction"] = lambda raw: RpcRefused(f"strange words about {raw}")
    results = await chains.chain(node).send([tx(1), tx(2), tx(3)])
    assert [result.category for result in results] == [SendCategory.UNKNOWN] * 3
    assert [result.message for result in results] == [f"strange words about 0x0{n}" for n in (1, 2, 3)]


async def test_a_send_executed_before_a_reset_is_unknown(node: FakeEndpoint, chains: OpenChains) -> None:
    executed: list[str] = []

    async def respond(request: web.Request, body: Any) -> web.StreamResponse:
        executed.append(body["params"][0])
        return await reset(request, body)

    node.respond = respond
    [result] = await chains.chain(node).send([tx()])
    assert result.category is SendCategory.UNKNOWN
    assert executed == ["0x01"], "sent once, never again by itself"
    assert "s3cret" not in result.message


@pytest.mark.parametrize(
    ("respond", "category"),
    [
        (status(429), SendCategory.NODE_NOT_READY),
        (status(502), SendCategory.NODE_NOT_READY),
        (status(500), SendCategory.UNKNOWN),
        (answer_with("garbage"), SendCategory.UNKNOWN),
        (reset, SendCategory.UNKNOWN),
    ],
)
async def test_a_send_without_an_answer_is_unknown(
    node: FakeEndpoint, chains: OpenChains, respond: Respond, category: SendCategory
) -> None:
    node.respond = respond
    results = await chains.chain(node).send([tx(1), tx(2)])
    assert [result.category for result in results] == [category] * 2


async def test_a_send_that_times_out_is_unknown(node: FakeEndpoint, chains: OpenChains) -> None:
    node.respond = hang
    [result] = await chains.chain(node, timeout_s=0.05).send([tx()])
    assert result.category is SendCategory.UNKNOWN
    assert "time-out" in result.message


async def test_a_hanging_endpoint_does_not_delay_the_others(
    nodes: list[FakeEndpoint], chains: OpenChains
) -> None:
    nodes[0].methods["eth_sendRawTransaction"] = hash_of
    nodes[1].respond = hang
    chain = chains.chain(*nodes[:2], timeout_s=60, grace_s=0.05)
    async with asyncio.timeout(10):
        [result] = await chain.send([tx()])
    assert result.category is SendCategory.ACCEPTED


@pytest.mark.parametrize("answer", [tx(9).hash, "0x12", None, 7])
async def test_an_answer_with_another_hash_is_unknown(
    node: FakeEndpoint, chains: OpenChains, answer: object
) -> None:
    node.methods["eth_sendRawTransaction"] = answer
    [result] = await chains.chain(node).send([tx(1)])
    assert result.category is SendCategory.UNKNOWN
    assert result.returned_hash == (answer if answer == tx(9).hash else None)
    assert "the endpoint returned" in result.message


async def test_each_transaction_of_a_batch_has_its_own_result(node: FakeEndpoint, chains: OpenChains) -> None:
    def said(raw: str) -> object:
        return (
            RpcRefused("Invalid input", data="nonce too low: next nonce 5, tx nonce 1")
            if raw == "0x02"
            else hash_of(raw)
        )

    async def respond(_request: web.Request, body: Any) -> web.StreamResponse:
        return web.json_response([node.one(call) for call in reversed(body[:-1])])

    node.methods["eth_sendRawTransaction"] = said
    node.respond = respond
    results = await chains.chain(node).send([tx(1), tx(2), tx(3)])
    assert [result.category for result in results] == [
        SendCategory.ACCEPTED,
        SendCategory.NONCE_TOO_LOW,
        SendCategory.UNKNOWN,
    ]
    assert results[1].chain_nonce == 5
