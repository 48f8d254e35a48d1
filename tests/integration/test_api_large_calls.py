"""Calls with large arguments over HTTP: bounded, encoded off the event loop, and each batch item on its own."""

from __future__ import annotations

import io
import threading
import tracemalloc
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from fencepost.api import create_app
from fencepost.http.server import bind, serve
from fixtures.api import RECEIVER, Answer, ApiServer

DEEP = "f(uint8" + "[]" * 900 + ")"
PAIRS = "f((address,uint256)[])"


def call(method: str, args: list[Any]) -> dict[str, Any]:
    return {"to": RECEIVER, "method": method, "args": args, "gas": 5_000_000}


def pairs(count: int) -> list[Any]:
    return [[[RECEIVER, number] for number in range(count)]]


@asynccontextmanager
async def watched(api: ApiServer, threads: list[str]) -> AsyncIterator[ApiServer]:
    """Serve the same node on another port and record which thread encodes which call."""

    def encode_call(**call: Any) -> bytes:
        threads.append(threading.current_thread().name)
        if call["method"] == "bug()":
            raise RecursionError
        return api.services.codec.encode_call(**call)

    services = replace(api.services, codec=replace(api.services.codec, encode_call=encode_call))
    with bind("127.0.0.1", 0) as listener:
        async with serve(create_app(services), listener) as url:
            yield replace(api, url=url)


async def test_one_bad_item_does_not_fail_its_batch(api: ApiServer) -> None:
    payloads = [
        call(DEEP, [[]]),
        call(PAIRS, pairs(15_000)),
        call("f(bytes32)", [RECEIVER]),
        call(PAIRS, pairs(1)),
    ]
    asked = [api.transfer(f"r{number}", payload=payload) for number, payload in enumerate(payloads)]
    answer = await api.post("/tx/batch", {"requests": asked})
    assert answer.status == 200
    results = answer.json["results"]
    assert [result["status"] for result in results] == [400, 400, 400, 202]
    fields = [result["problem"]["field"] for result in results[:3]]
    assert fields == ["payload.method", "payload.args", "payload.args[0]"]
    small = await api.post("/tx/batch", {"requests": [asked[0], asked[3]]})
    assert [result["status"] for result in small.json["results"]] == [400, 200]


async def test_an_internal_error_in_one_item_does_not_fail_its_batch(
    api: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    padding = ["x" * 100 for _ in range(300)]
    for more in ([], padding):  # encoded on the event loop and off it
        asked = [api.transfer(payload=call("bug()", more)), api.transfer()]
        async with watched(api, []) as broken:
            answer = await broken.post("/tx/batch", {"requests": asked})
        assert [result["status"] for result in answer.json["results"]] == [500, 202]
        assert answer.json["results"][0]["problem"]["id"] in caplog.text


async def test_large_calls_are_encoded_off_the_event_loop(api: ApiServer) -> None:
    threads: list[str] = []
    async with watched(api, threads) as at:
        assert (await at.post("/tx", api.transfer("small", payload=call(PAIRS, pairs(2))))).status == 202
        large = api.transfer("large", payload=call(PAIRS, pairs(1_000)))
        assert (await at.post("/tx", large)).status == 202
        again = await at.post("/tx", large, wait="submitted")
        assert again.status == 200
        many = [api.transfer(payload=call(PAIRS, pairs(2))) for _ in range(200)]
        answer = await at.post("/tx/batch", {"requests": many})
        assert {result["status"] for result in answer.json["results"]} == {202}
    here = threading.current_thread().name
    assert threads[0] == here
    assert len(threads) == 203
    assert here not in threads[1:]


async def test_the_arguments_of_a_batch_share_a_bound(api: ApiServer) -> None:
    many = [api.transfer(payload=call("f(uint8[])", [[1] * 9_000])) for _ in range(13)]
    answer = await api.post("/tx/batch", {"requests": many})
    codes = [result.get("problem", {}).get("code") for result in answer.json["results"]]
    assert codes[-2:] == ["body_too_large"] * 2
    assert set(codes[:11]) == {"field_invalid"}  # each item alone has more calldata than endpoints accept


def _post(api: ApiServer, path: str, body: bytes) -> Awaitable[Answer]:
    return api.send("POST", path, data=io.BytesIO(body), headers={"Content-Type": "application/json"})


EMPTY = b",".join([b"[]"] * 2_500_000)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tx/batch", b'{"requests":[{"payload":{"args":[' + EMPTY + b"]}}]}"),
        ("//rpc", b'{"jsonrpc":"2.0","id":1,"method":"eth_call","params":[' + EMPTY + b"]}"),
        ("//rpc", b'{"jsonrpc":"2.0","id":[' + EMPTY + b'],"method":"eth_call"}'),
    ],
)
async def test_a_body_of_too_many_values_is_not_decoded(api: ApiServer, path: str, body: bytes) -> None:
    tracemalloc.start()
    try:
        answer = await _post(api, path, body)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert answer.status == 413
    assert "body_too_large" in str(answer.json)
    assert peak < 60_000_000


@pytest.mark.parametrize("method", ["eth_sendTransaction", "eth_sendRawTransaction"])
async def test_a_long_text_of_hex_digits_costs_no_more_than_its_bytes(api: ApiServer, method: str) -> None:
    data = "0x" + "11" * 3_500_000
    param = data if method == "eth_sendRawTransaction" else {"from": api.signers[0], "data": data}
    asked = {"jsonrpc": "2.0", "id": 1, "method": method, "params": [param]}
    tracemalloc.start()
    try:
        answer = await _post(api, "//rpc", msgspec.json.encode(asked))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert answer.json["error"]["code"] == -32602
    assert peak < 150_000_000


async def test_an_access_list_has_no_more_keys_than_a_transaction_can_hold(api: ApiServer) -> None:
    entry = {"address": RECEIVER, "storageKeys": ["0x" + "11" * 32] * 1_000}
    payload = {"to": RECEIVER, "accessList": [entry] * 5}
    answer = await api.post("/tx/batch", {"requests": [api.transfer(payload=payload), api.transfer()]})
    assert [result["status"] for result in answer.json["results"]] == [400, 202]
    assert answer.json["results"][0]["problem"]["field"] == "payload.accessList"
