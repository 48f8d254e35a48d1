"""Bad input: each kind gets its own clear answer, and nothing is stored."""

from __future__ import annotations

import json
from io import BytesIO
from typing import Any

import aiohttp
import pytest

from fixtures.api import RECEIVER, ApiServer

JSON = {"Content-Type": "application/json"}
UNSET = object()

# The change to a valid request, and the error code and field that follow.
BAD: list[tuple[str, dict[str, Any], str, str | None]] = [
    (
        "wrong checksum",
        {"payload.to": "0x5AAeb6053F3E94C9b9A09f33669435E7Ef1BeAed"},
        "address_invalid",
        "payload.to",
    ),
    ("short address", {"payload.to": "0x12"}, "field_invalid", "payload.to"),
    (
        "signer's checksum",
        {"signer": "0xF39fd6e51aad88F6F4ce6aB8827279cffFb92266"},
        "address_invalid",
        "signer",
    ),
    ("no signer", {"signer": UNSET}, "field_missing", "signer"),
    ("unknown signer", {"signer": "0x" + "99" * 20}, "signer_unknown", "signer"),
    ("wrong chain", {"chainId": 1}, "chain_unknown", "chainId"),
    ("chain zero", {"chainId": 0}, "number_out_of_range", "chainId"),
    ("chain as text", {"chainId": "31337"}, "field_invalid", "chainId"),
    ("chain far too large", {"chainId": 10**30}, "number_out_of_range", "chainId"),
    ("unknown field", {"nonce": 7}, "field_unknown", "nonce"),
    ("unknown field of the payload", {"payload.from": RECEIVER}, "field_unknown", "payload.from"),
    ("no payload", {"payload": UNSET}, "field_missing", "payload"),
    ("payload is a list", {"payload": []}, "field_invalid", "payload"),
    ("negative value", {"payload.value": -1}, "number_out_of_range", "payload.value"),
    ("value of 2^256", {"payload.value": 2**256}, "number_out_of_range", "payload.value"),
    ("value of 2^256 as text", {"payload.value": str(2**256)}, "number_out_of_range", "payload.value"),
    ("a fraction", {"payload.value": 1.5}, "field_invalid", "payload.value"),
    ("value in ether", {"payload.value": "1 ether"}, "field_invalid", "payload.value"),
    ("value with a line break", {"payload.value": "1\n"}, "field_invalid", "payload.value"),
    ("gas zero", {"payload.gas": 0}, "field_invalid", "payload.gas"),
    ("gas of 2^63", {"payload.gas": 2**63}, "number_out_of_range", "payload.gas"),
    ("odd hex", {"payload.data": "0x123"}, "field_invalid", "payload.data"),
    ("no hex", {"payload.data": "hello"}, "field_invalid", "payload.data"),
    ("too much data", {"payload.data": "0x" + "00" * (128 * 1024 + 1)}, "field_invalid", "payload.data"),
    ("nothing to deploy", {"payload.to": UNSET}, "field_invalid", "payload.to"),
    ("unknown type", {"payload.type": 3}, "field_invalid", "payload.type"),
    (
        "half the fees",
        {"payload.fees": {"maxFeePerGas": 1}},
        "field_missing",
        "payload.fees.maxPriorityFeePerGas",
    ),
    (
        "tip above the cap",
        {"payload.fees": {"maxFeePerGas": 1, "maxPriorityFeePerGas": 2}},
        "field_invalid",
        "payload.fees",
    ),
    ("price for type 2", {"payload.gasPrice": 1, "payload.type": 2}, "field_invalid", "payload.gasPrice"),
    (
        "fees for type 0",
        {"payload.fees": {"maxFeePerGas": 2, "maxPriorityFeePerGas": 1}, "payload.type": 0},
        "field_invalid",
        "payload.fees",
    ),
    (
        "access list for type 0",
        {"payload.accessList": [{"address": RECEIVER}], "payload.type": 0},
        "field_invalid",
        "payload.accessList",
    ),
    (
        "short storage key",
        {"payload.accessList": [{"address": RECEIVER, "storageKeys": ["0x01"]}]},
        "field_invalid",
        "payload.accessList[0].storageKeys[0]",
    ),
    ("method without arguments", {"payload.method": "f(uint8)"}, "field_invalid", "payload.args"),
    (
        "bad argument",
        {"payload.method": "f(uint8)", "payload.args": [256]},
        "field_invalid",
        "payload.args[0]",
    ),
    (
        "argument's checksum",
        {"payload.method": "f(address)", "payload.args": ["0x5AAeb6053F3E94C9b9A09f33669435E7Ef1BeAed"]},
        "field_invalid",
        "payload.args[0]",
    ),
    ("bad signature", {"payload.method": "f(uint7)", "payload.args": [1]}, "field_invalid", "payload.method"),
    ("name without abi", {"payload.method": "f", "payload.args": []}, "field_invalid", "payload.method"),
    ("abi without method", {"payload.abi": []}, "field_missing", "payload.method"),
    (
        "method and data",
        {"payload.method": "f()", "payload.data": "0x01"},
        "field_invalid",
        "payload.data",
    ),
    ("empty requestId", {"requestId": ""}, "field_invalid", "requestId"),
    ("long requestId", {"requestId": "x" * 201}, "field_invalid", "requestId"),
    ("requestId with a NUL", {"requestId": "a\0b"}, "field_invalid", "requestId"),
    ("requestId with a line break", {"requestId": "a\nb"}, "field_invalid", "requestId"),
    ("the past", {"validUntil": "2020-01-01T00:00:00Z"}, "field_invalid", "validUntil"),
    ("the end of the calendar", {"validUntil": "9999-12-31T23:59:59Z"}, "field_invalid", "validUntil"),
    ("a time without a zone", {"validUntil": "2099-01-01T00:00:00"}, "field_invalid", "validUntil"),
    ("too many tags", {"tags": [str(number) for number in range(21)]}, "field_invalid", "tags"),
    ("a tag with a NUL", {"tags": ["\0"]}, "field_invalid", "tags"),
    ("a tag with a comma", {"tags": ["a,b"]}, "field_invalid", "tags[0]"),
]


def spoilt(good: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    asked: dict[str, Any] = json.loads(json.dumps(good))
    for place, value in changes.items():
        *path, last = place.split(".")
        inner = asked
        for name in path:
            inner = inner[name]
        if value is UNSET:
            del inner[last]
        else:
            inner[last] = value
    return asked


async def test_every_bad_request_gets_its_own_problem_and_stores_nothing(api: ApiServer) -> None:
    for what, changes, code, field in BAD:
        answer = await api.post("/tx", spoilt(api.transfer("bad"), changes))
        expected = 422 if code == "signer_unknown" else 400
        assert answer.problem == (expected, code, field), (what, answer)
    deep: Any = 1
    for _ in range(40):
        deep = [deep]
    nested = spoilt(api.transfer("bad"), {"payload.method": "f(uint8)", "payload.args": [deep]})
    assert (await api.post("/tx", nested)).problem == (400, "json_too_deep", "payload.args")
    assert (await api.get("/tx")).json == {"items": [], "next": None}


GOOD_PAYLOAD = b'{"payload": {"to": "0x' + b"5e" * 20 + b'"}}'
MALFORMED = [b"", b"{", b"nonsense", b'{"signer": "\xff"}', GOOD_PAYLOAD + b" {}", GOOD_PAYLOAD[:-1] + b",}"]


@pytest.mark.parametrize("body", MALFORMED, ids=lambda body: repr(body[:12]))
async def test_a_body_that_is_not_json_is_rejected(api: ApiServer, body: bytes) -> None:
    answer = await api.send("POST", "/tx", data=body, headers=JSON)
    assert answer.problem == (400, "json_malformed", None)


async def test_an_absurdly_nested_body_is_rejected(api: ApiServer) -> None:
    bottomless = b'{"payload": {"args": ' + b"[" * 200_000
    answer = await api.send("POST", "/tx", data=bottomless, headers=JSON)
    assert answer.problem[:2] == (400, "json_too_deep")


async def test_a_body_that_is_too_large_is_rejected(api: ApiServer) -> None:
    over = b'{"x": "' + b"a" * (1024 * 1024) + b'"}'
    assert (await api.send("POST", "/tx", data=BytesIO(over), headers=JSON)).problem[:2] == (
        413,
        "body_too_large",
    )

    async def in_parts() -> Any:
        for _ in range(20):
            yield b" " * 64 * 1024

    chunked = await api.send("POST", "/tx", data=in_parts(), headers=JSON)
    assert chunked.problem[:2] == (413, "body_too_large")
    batch = b'{"requests": ["' + b"a" * (2 * 1024 * 1024) + b'"]}'
    allowed = await api.send("POST", "/tx/batch", data=BytesIO(batch), headers=JSON)
    assert (allowed.status, allowed.json["results"][0]["status"]) == (200, 400)
    far_over = b'{"requests": ["' + b"a" * (8 * 1024 * 1024) + b'"]}'
    refused = await api.send("POST", "/tx/batch", data=BytesIO(far_over), headers=JSON)
    assert refused.problem[:2] == (413, "body_too_large")


async def test_an_unknown_media_type_path_or_method_is_rejected(api: ApiServer) -> None:
    plain = await api.send("POST", "/tx", data=b"{}", headers={"Content-Type": "text/plain"})
    assert plain.problem[:2] == (415, "media_type")
    assert (await api.get("/nothing")).problem[:2] == (404, "not_found")
    wrong = await api.send("DELETE", "/tx")
    assert wrong.problem[:2] == (405, "method_not_allowed")
    assert set(wrong.headers["Allow"].split(", ")) == {"GET", "HEAD", "POST"}


async def test_the_wait_time_is_bounded_and_validated(api: ApiServer) -> None:
    for query in (
        {"wait": "forever"},
        {"wait": "mined", "timeout": 121},
        {"timeout": -1},
        {"timeout": "nan"},
    ):
        answer = await api.post("/tx", api.transfer(), **query)
        assert answer.problem[:2] == (400, "query_invalid"), query
    assert (await api.get("/tx")).json["items"] == []


async def test_a_browser_page_of_another_origin_is_rejected_while_there_are_no_keys(api: ApiServer) -> None:
    foreign = await api.post("/tx", api.transfer(), headers={"Origin": "https://other.example"})
    assert foreign.problem[:2] == (403, "origin_refused")
    rebound = await api.send("GET", "/tx", headers={"Host": "other.example"})
    assert rebound.problem[:2] == (403, "origin_refused")
    own = await api.send("GET", "/tx", headers={"Origin": api.url})
    assert own.status == 200


async def test_the_openapi_document_and_the_docs_page_are_served(api: ApiServer) -> None:
    document = (await api.get("//openapi.json")).json
    assert document["openapi"] == "3.1.0"
    operations = {(method, path) for path, methods in document["paths"].items() for method in methods}
    for method, path in [
        ("post", "/tx"),
        ("post", "/tx/batch"),
        ("get", "/tx/{txId}"),
        ("post", "/tx/{txId}/cancel"),
        ("post", "/signers/{address}/unprotect"),
        ("get", "/completions"),
        ("get", "/nodes"),
    ]:
        assert (method, f"/api/v1{path}") in operations
    text = json.dumps(document)
    names = set(document["components"]["schemas"])
    used = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert used <= names
    async with aiohttp.ClientSession() as session, session.get(f"{api.url}/docs") as response:
        page = await response.text()
    assert response.status == 200
    assert "/api/v1/tx/batch" in page
    assert "<script" not in page
    assert "http://" not in page.replace(api.url, "")
    assert "https://" not in page
