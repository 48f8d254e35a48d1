"""`JsonRpc` against a misbehaving endpoint, with single calls and batches."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from fakes.endpoint import FakeEndpoint, Respond, answer_with, hang, reset, serve_endpoints, status
from fencepost.adapters.evm.rpc import MAX_BATCH, MAX_SHORT_BYTES, Calls, JsonRpc
from fencepost.errors import (
    RpcRefused,
    RpcUnavailable,
)


@pytest.fixture
async def node() -> AsyncIterator[FakeEndpoint]:
    async with serve_endpoints(1) as [made]:
        yield made


@pytest.fixture
async def rpc(node: FakeEndpoint) -> AsyncIterator[JsonRpc]:
    made = JsonRpc(node.url, timeout_s=5)
    yield made
    await made.close()


# One endpoint.


async def test_a_call_notifies_its_observer(node: FakeEndpoint) -> None:
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
        (answer_with("<html>sorry</html>"), "not JSON"),
        (answer_with("[" * 100_000), "not JSON"),
        (answer_with("[]"), "not JSON-RPC"),
        (answer_with('"0x1"'), "not JSON-RPC"),
        (answer_with('{"jsonrpc":"2.0","id":77,"result":"0x1"}'), "not JSON-RPC"),
        (answer_with('{"jsonrpc":"2.0","id":1}'), "neither result nor error"),
        (answer_with('{"jsonrpc":"2.0","id":1,"result":"0x1","error":"no"}'), "neither result nor error"),
        (answer_with('{"jsonrpc":"2.0","id":1,"result":"' + "x" * 2000 + '"}'), "larger than 1000 bytes"),
    ],
)
async def test_an_unusable_answer_is_an_error(node: FakeEndpoint, respond: Respond, why: str) -> None:
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


async def test_a_timeout_is_no_answer(node: FakeEndpoint) -> None:
    node.respond = hang
    rpc = JsonRpc(node.url, timeout_s=0.05)
    try:
        with pytest.raises(RpcUnavailable, match="time-out"):
            await rpc.call("eth_chainId")
    finally:
        await rpc.close()


async def test_a_closed_port_is_no_answer(unused_tcp_port: int) -> None:
    rpc = JsonRpc(f"http://127.0.0.1:{unused_tcp_port}/s3cret")
    try:
        with pytest.raises(RpcUnavailable, match="ConnectionRefusedError") as unavailable:
            await rpc.call("eth_chainId")
    finally:
        await rpc.close()
    assert "s3cret" not in str(unavailable.value)


async def test_a_rejection_may_come_without_id_and_message(node: FakeEndpoint, rpc: JsonRpc) -> None:
    node.respond = answer_with('{"jsonrpc":"2.0","id":null,"error":{"code":"x"}}')
    with pytest.raises(RpcRefused, match="no message") as refused:
        await rpc.call("eth_chainId")
    assert refused.value.rpc_code is None


NAMES_NO_CALL = '{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"nonce too low"}}'


async def test_an_error_without_an_id_does_not_fail_the_next_call(node: FakeEndpoint, rpc: JsonRpc) -> None:
    assert await rpc.call("eth_chainId") == "0x7a69"
    node.respond = answer_with(NAMES_NO_CALL)  # possibly the answer to an earlier call
    with pytest.raises(RpcUnavailable, match="names no call") as unavailable:
        await rpc.call("eth_sendRawTransaction", ["0x00"])
    assert "nonce" not in str(unavailable.value), "texts are read for what they say of the transaction"
    with pytest.raises(RpcRefused, match="nonce too low"):
        await rpc.call(
            "eth_sendRawTransaction", ["0x00"]
        )  # on a fresh connection it can only be this call's answer
    node.respond = node.answer
    assert await rpc.call("eth_chainId") == "0x7a69"
    node.respond = answer_with(NAMES_NO_CALL)
    with pytest.raises(RpcRefused, match="nonce too low"):
        await rpc.call("eth_sendRawTransaction", ["0x00"])  # for a while, every call uses a fresh connection


# Batches.


def doubled(number: int) -> int:
    return 2 * number


async def test_a_large_batch_is_split_and_keeps_its_order(node: FakeEndpoint, rpc: JsonRpc) -> None:
    node.methods["double"] = doubled
    count = 2 * MAX_BATCH + 1
    assert await rpc.batch([("double", [number]) for number in range(count)]) == [2 * n for n in range(count)]
    assert [len(body) if isinstance(body, list) else 1 for body in node.bodies] == [MAX_BATCH, MAX_BATCH, 1]
    assert await rpc.batch([]) == []


async def test_answers_may_come_in_any_order_with_some_missing_and_some_foreign(
    node: FakeEndpoint, rpc: JsonRpc
) -> None:
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
        answer_with('{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"invalid request"}}'),
        answer_with(
            '{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"Batch requests are not allowed"}}'
        ),
        status(400, "no"),
        status(405),
    ],
)
async def test_an_endpoint_without_batches_gets_single_calls(
    node: FakeEndpoint, rpc: JsonRpc, refusal: Respond
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
    "refusal", [answer_with(NAMES_NO_CALL), answer_with(NAMES_NO_CALL.replace("null", "1")), status(400)]
)
async def test_an_error_without_an_id_rejects_no_call_of_the_batch(
    node: FakeEndpoint, rpc: JsonRpc, refusal: Respond
) -> None:
    async def respond(request: web.Request, body: Any) -> web.StreamResponse:
        return await (refusal if isinstance(body, list) else node.answer)(request, body)

    calls: Calls = [("eth_chainId", [])] * 2
    assert await rpc.call("eth_chainId") == "0x7a69"
    node.respond = respond
    assert [type(answer) for answer in await rpc.batch(calls)] == [RpcUnavailable] * 2
    node.respond = node.answer
    assert await rpc.batch(calls) == ["0x7a69"] * 2
    assert isinstance(node.bodies[-1], list), "it was not hash_of for an endpoint without batches"


@pytest.mark.parametrize("respond", [status(503), status(400), answer_with("{}"), answer_with("7"), reset])
async def test_a_batch_may_fail_as_a_whole(node: FakeEndpoint, rpc: JsonRpc, respond: Respond) -> None:
    node.respond = respond
    answers = await rpc.batch([("eth_chainId", [])] * (3 * MAX_BATCH))
    assert len(answers) == 3 * MAX_BATCH
    assert all(isinstance(answer, RpcUnavailable) for answer in answers)
    assert len(node.bodies) < 20, "the rest isn't asked"
    node.respond = node.answer
    assert await rpc.batch([("eth_chainId", [])] * 2) == ["0x7a69"] * 2
    assert isinstance(node.bodies[-1], list), "a failure answer_with nothing about batches"


async def test_a_busy_endpoint_is_not_taken_for_one_without_batches(node: FakeEndpoint, rpc: JsonRpc) -> None:
    node.respond = answer_with(
        '{"jsonrpc":"2.0","id":null,"error":{"code":-32005,"message":"too many requests"}}'
    )
    answers = await rpc.batch([("eth_chainId", [])] * 2)
    assert [type(answer) for answer in answers] == [RpcRefused] * 2
    assert len(node.bodies) == 1


# Answers that cost more memory than they have bytes.


def empty_lists(megabytes: int) -> Respond:
    body = b'{"jsonrpc":"2.0","id":1,"result":[' + b",".join([b"[]"] * (megabytes * 350_000)) + b"]}"

    async def respond(_request: web.Request, _asked: Any) -> web.StreamResponse:
        return web.Response(body=body, content_type="application/json")

    return respond


async def test_an_answer_with_too_many_values_is_not_decoded(node: FakeEndpoint, rpc: JsonRpc) -> None:
    node.respond = empty_lists(6)
    tracemalloc.start()
    try:
        with pytest.raises(RpcUnavailable, match="elements"):
            await rpc.call("eth_getTransactionReceipt", ["0x"])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 60_000_000


@pytest.mark.parametrize("method", ["eth_chainId", "eth_getTransactionCount", "eth_sendRawTransaction"])
async def test_a_long_answer_to_a_method_with_a_short_one_is_not_read(
    node: FakeEndpoint, method: str
) -> None:
    rpc = JsonRpc(node.url, max_body_bytes=64 * 1024 * 1024)
    node.methods[method] = "0x" + "1" * MAX_SHORT_BYTES
    node.methods["eth_getBlockReceipts"] = node.methods[method]
    try:
        with pytest.raises(RpcUnavailable, match=f"larger than {MAX_SHORT_BYTES} bytes"):
            await rpc.call(method, [])
        [first, second] = await rpc.batch([(method, []), (method, [])])
        assert isinstance(first, RpcUnavailable)
        assert isinstance(second, RpcUnavailable)
        assert await rpc.call("eth_getBlockReceipts", []) == node.methods[method]
    finally:
        await rpc.close()


async def test_an_idle_connection_keeps_no_answer_in_memory(node: FakeEndpoint, rpc: JsonRpc) -> None:
    node.respond = empty_lists(6)
    tracemalloc.start()
    try:
        await rpc.call_raw("debug_traceBlock", [], bytes_max=8 * 1024 * 1024)
        await asyncio.sleep(0)  # the event loop holds the answer until its turn ends
        gc.collect()
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 1_000_000


async def test_a_forwarded_result_is_not_decoded(node: FakeEndpoint, rpc: JsonRpc) -> None:
    node.respond = empty_lists(6)
    tracemalloc.start()
    try:
        raw = await rpc.call_raw("debug_traceBlock", [], bytes_max=8 * 1024 * 1024)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(bytes(raw)) > 6_000_000
    assert peak < 80_000_000


async def test_a_result_above_its_size_limit_fails_its_call(node: FakeEndpoint, rpc: JsonRpc) -> None:
    node.methods["eth_getLogs"] = ["x" * 1000]
    with pytest.raises(RpcRefused, match="larger than 500 bytes") as refused:
        await rpc.call_raw("eth_getLogs", [{}], bytes_max=500)
    assert refused.value.rpc_code == -32005
    assert bytes(await rpc.call_raw("eth_getLogs", [{}], bytes_max=5000)) == b'["' + b"x" * 1000 + b'"]'
    with pytest.raises(RpcRefused, match="method not found"):
        await rpc.call_raw("nope", [], bytes_max=5000)
