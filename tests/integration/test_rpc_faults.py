"""`JsonRpc` against an endpoint that misbehaves, call by call and in batches."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from fakes.node import Node, Respond, hang, reset, says, serving, status
from fencepost.adapters.evm.rpc import BATCH_MAX, Calls, JsonRpc
from fencepost.errors import (
    RpcRefused,
    RpcUnavailable,
)


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    async with serving(1) as [made]:
        yield made


@pytest.fixture
async def rpc(node: Node) -> AsyncIterator[JsonRpc]:
    made = JsonRpc(node.url, timeout_s=5)
    yield made
    await made.close()


# One endpoint.


async def test_a_call_and_its_observer(node: Node) -> None:
    heard: list[tuple[str, str, float, str]] = []
    rpc = JsonRpc(node.url, on_call=lambda *call: heard.append(call))
    try:
        assert await rpc.call("eth_chainId") == "0x7a69"
        with pytest.raises(RpcRefused, match="method not found") as refused:
            await rpc.call("nope")
        node.respond = reset
        with pytest.raises(RpcUnavailable):
            await rpc.call("eth_chainId")
    finally:
        await rpc.close()
    assert refused.value.rpc_code == -32601
    assert [(endpoint, method, outcome) for endpoint, method, _, outcome in heard] == [
        (rpc.endpoint, "eth_chainId", "ok"),
        (rpc.endpoint, "nope", "refused"),
        (rpc.endpoint, "eth_chainId", "unavailable"),
    ]
    assert all(0 <= seconds < 5 for _, _, seconds, _ in heard)


@pytest.mark.parametrize(
    ("respond", "why"),
    [
        (reset, "ConnectionLost"),
        (status(429), "HTTP 429"),
        (status(500), "HTTP 500"),
        (status(307), "HTTP 307"),
        (status(404, '{"jsonrpc":"2.0","id":1,"result":"0x1"}'), "HTTP 404"),
        (says("<html>sorry</html>"), "not JSON"),
        (says("[" * 100_000), "not JSON"),
        (says("[]"), "not JSON-RPC"),
        (says('"0x1"'), "not JSON-RPC"),
        (says('{"jsonrpc":"2.0","id":77,"result":"0x1"}'), "not JSON-RPC"),
        (says('{"jsonrpc":"2.0","id":1}'), "neither result nor error"),
        (says('{"jsonrpc":"2.0","id":1,"result":"0x1","error":"no"}'), "neither result nor error"),
        (says('{"jsonrpc":"2.0","id":1,"result":"' + "x" * 2000 + '"}'), "larger than 1000 bytes"),
    ],
)
async def test_no_usable_answer(node: Node, respond: Respond, why: str) -> None:
    rpc = JsonRpc(node.url, max_body_bytes=1000 if "larger" in why else 10**6)
    node.respond = respond
    try:
        with pytest.raises(RpcUnavailable, match=why) as unavailable:
            await rpc.call("eth_sendRawTransaction", ["0x00"])
    finally:
        await rpc.close()
    assert "s3cret" not in str(unavailable.value)
    assert unavailable.value.__cause__ is None
    assert str(unavailable.value).startswith("http://127.0.0.1:")
    assert len(node.bodies) == 1, "a call is never repeated"


async def test_a_time_out_is_no_answer(node: Node) -> None:
    node.respond = hang
    rpc = JsonRpc(node.url, timeout_s=0.05)
    try:
        with pytest.raises(RpcUnavailable, match="time-out"):
            await rpc.call("eth_chainId")
    finally:
        await rpc.close()


async def test_nobody_listens(unused_tcp_port: int) -> None:
    rpc = JsonRpc(f"http://127.0.0.1:{unused_tcp_port}/s3cret")
    try:
        with pytest.raises(RpcUnavailable, match="ConnectionRefusedError") as unavailable:
            await rpc.call("eth_chainId")
    finally:
        await rpc.close()
    assert "s3cret" not in str(unavailable.value)


async def test_a_refusal_may_come_without_id_and_message(node: Node, rpc: JsonRpc) -> None:
    node.respond = says('{"jsonrpc":"2.0","id":null,"error":{"code":"x"}}')
    with pytest.raises(RpcRefused, match="no message") as refused:
        await rpc.call("eth_chainId")
    assert refused.value.rpc_code is None


NAMES_NO_CALL = '{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"nonce too low"}}'


async def test_an_error_that_names_no_call_is_no_verdict_on_the_next_one(node: Node, rpc: JsonRpc) -> None:
    assert await rpc.call("eth_chainId") == "0x7a69"
    node.respond = says(NAMES_NO_CALL)  # to what was asked before, for all that anybody knows
    with pytest.raises(RpcUnavailable, match="names no call") as unavailable:
        await rpc.call("eth_sendRawTransaction", ["0x00"])
    assert "nonce" not in str(unavailable.value), "texts are read for what they say of the transaction"
    with pytest.raises(RpcRefused, match="nonce too low"):
        await rpc.call("eth_sendRawTransaction", ["0x00"])  # where nothing else was asked, it is meant
    node.respond = node.answer
    assert await rpc.call("eth_chainId") == "0x7a69"
    node.respond = says(NAMES_NO_CALL)
    with pytest.raises(RpcRefused, match="nonce too low"):
        await rpc.call("eth_sendRawTransaction", ["0x00"])  # for a while, nothing else is ever asked there


# Batches.


def doubled(number: int) -> int:
    return 2 * number


async def test_a_large_batch_is_split_and_keeps_its_order(node: Node, rpc: JsonRpc) -> None:
    node.methods["double"] = doubled
    count = 2 * BATCH_MAX + 1
    assert await rpc.batch([("double", [number]) for number in range(count)]) == [2 * n for n in range(count)]
    assert [len(body) if isinstance(body, list) else 1 for body in node.bodies] == [BATCH_MAX, BATCH_MAX, 1]
    assert await rpc.batch([]) == []


async def test_answers_in_any_order_with_some_missing_and_some_foreign(node: Node, rpc: JsonRpc) -> None:
    async def respond(_request: web.Request, body: Any) -> web.StreamResponse:
        answers = [node.one(call) for call in body]
        foreign = {"jsonrpc": "2.0", "id": 10**6, "result": "foreign"}
        return web.json_response([foreign, "junk", *reversed([answers[0], *answers[2:]])])

    node.methods["double"] = doubled
    node.respond = respond
    first, missing, third, refused = await rpc.batch(
        [("double", [1]), ("double", [2]), ("double", [3]), ("no", [])]
    )
    assert (first, third) == (2, 6)
    assert isinstance(missing, RpcUnavailable)
    assert isinstance(refused, RpcRefused)


@pytest.mark.parametrize(
    "refusal",
    [
        says('{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"invalid request"}}'),
        says(
            '{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"Batch requests are not allowed"}}'
        ),
        status(400, "no"),
        status(405),
    ],
)
async def test_an_endpoint_without_batches_is_asked_one_by_one(
    node: Node, rpc: JsonRpc, refusal: Respond
) -> None:
    async def respond(request: web.Request, body: Any) -> web.StreamResponse:
        return await (refusal if isinstance(body, list) else node.answer)(request, body)

    node.methods["double"] = doubled
    node.respond = respond
    calls = [("double", [number]) for number in range(20)]
    assert await rpc.batch(calls) == [2 * number for number in range(20)]
    assert sum(isinstance(body, list) for body in node.bodies) == 1
    assert await rpc.batch(calls) == [2 * number for number in range(20)]
    assert sum(isinstance(body, list) for body in node.bodies) == 1, "it is remembered"


@pytest.mark.parametrize(
    "refusal", [says(NAMES_NO_CALL), says(NAMES_NO_CALL.replace("null", "1")), status(400)]
)
async def test_what_names_no_call_of_the_batch_refuses_none(
    node: Node, rpc: JsonRpc, refusal: Respond
) -> None:
    async def respond(request: web.Request, body: Any) -> web.StreamResponse:
        return await (refusal if isinstance(body, list) else node.answer)(request, body)

    calls: Calls = [("eth_chainId", [])] * 2
    assert await rpc.call("eth_chainId") == "0x7a69"
    node.respond = respond
    assert [type(answer) for answer in await rpc.batch(calls)] == [RpcUnavailable] * 2
    node.respond = node.answer
    assert await rpc.batch(calls) == ["0x7a69"] * 2
    assert isinstance(node.bodies[-1], list), "it was not taken for an endpoint without batches"


@pytest.mark.parametrize("respond", [status(503), status(400), says("{}"), says("7"), reset])
async def test_a_batch_that_fails_as_a_whole(node: Node, rpc: JsonRpc, respond: Respond) -> None:
    node.respond = respond
    answers = await rpc.batch([("eth_chainId", [])] * (3 * BATCH_MAX))
    assert len(answers) == 3 * BATCH_MAX
    assert all(isinstance(answer, RpcUnavailable) for answer in answers)
    assert len(node.bodies) < 20, "the rest isn't asked"
    node.respond = node.answer
    assert await rpc.batch([("eth_chainId", [])] * 2) == ["0x7a69"] * 2
    assert isinstance(node.bodies[-1], list), "a failure says nothing about batches"


async def test_a_busy_node_is_not_taken_for_one_without_batches(node: Node, rpc: JsonRpc) -> None:
    node.respond = says('{"jsonrpc":"2.0","id":null,"error":{"code":-32005,"message":"too many requests"}}')
    answers = await rpc.batch([("eth_chainId", [])] * 2)
    assert [type(answer) for answer in answers] == [RpcRefused] * 2
    assert len(node.bodies) == 1
