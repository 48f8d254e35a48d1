"""Requests to a node that does not hold the signer's lease, when only the lease holder accepts them: forwarded or rejected."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio

from fencepost.application.api_keys import Scope
from fencepost.application.forwarding import FORWARD_TOKEN_HEADER, ForwardRequest, ForwardTokens
from fencepost.domain.ids import Signer
from fencepost.http.server import bind
from fixtures.anvil import TestChain
from fixtures.api import Answer, ApiServer, open_api

SECRET = "a-secret-that-both-nodes-have-got"
FORWARDING: dict[str, Any] = {"api__intake": "leader", "routing__forward": "true", "routing__secret": SECRET}


@asynccontextmanager
async def two_apis(
    dsn: str, anvil: TestChain, *, of_the_owner: dict[str, str] | None = None, **of_the_other: str
) -> AsyncIterator[tuple[ApiServer, ApiServer]]:
    """Serve two nodes: the first holds the lease of the signer that `transfer` names, the second holds none."""
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(
            open_api(dsn, anvil, node__id="first", **FORWARDING | (of_the_owner or {}))
        )
        taken = await first.post("/tx", first.transfer("of-the-first"), wait="confirmed", timeout=60)
        assert taken.status == 200, taken
        second = await stack.enter_async_context(
            open_api(dsn, anvil, node__id="second", **FORWARDING | of_the_other)
        )
        yield first, second


@pytest_asyncio.fixture
async def apis(dsn: str, anvil: TestChain) -> AsyncIterator[tuple[ApiServer, ApiServer]]:
    async with two_apis(dsn, anvil) as opened:
        yield opened


async def with_pass(
    api: ApiServer,
    body: dict[str, Any],
    *,
    to: ApiServer | None = None,
    hops: int = 1,
    secret: str = SECRET,
    signed_body: dict[str, Any] | None = None,
    caller: str | None = None,
) -> tuple[Answer, str]:
    """Build headers like a forwarding node; return the forward token too, to send it again."""
    asked = ForwardRequest("POST", "/api/v1/tx", json.dumps(signed_body or body).encode())
    to = to or api
    token = ForwardTokens(secret).make(asked, to=to.running.node.incarnation, caller=caller, hops=hops)
    return await send_with(api, token, body), token


async def send_with(api: ApiServer, token: str, body: dict[str, Any]) -> Answer:
    headers = {FORWARD_TOKEN_HEADER: token, "content-type": "application/json"}
    return await api.send("POST", "/tx", data=json.dumps(body).encode(), headers=headers)


async def stored(api: ApiServer) -> set[str]:
    rows = await api.running.pool.fetch("SELECT request_id FROM managed_tx WHERE request_id IS NOT NULL")
    return {row["request_id"] for row in rows} - {"of-the-first"}


async def test_a_request_to_another_node_is_forwarded_and_mined(apis: tuple[ApiServer, ApiServer]) -> None:
    first, second = apis
    fresh = await second.post("/tx", second.transfer("f-1", tags=["é"]))
    assert fresh.status == 202
    assert fresh.headers["Location"] == f"/api/v1/tx/{fresh.json['txId']}"
    mined = await second.post("/tx", second.transfer("f-2"), wait="confirmed", timeout=60)
    assert (mined.status, mined.json["state"]) == (200, "CONFIRMED")
    known = await second.post("/tx", second.transfer("f-2"))
    assert (known.status, known.json["txId"]) == (200, mined.json["txId"])
    conflict = await second.post("/tx", second.transfer("f-2", payload={"to": "0x" + "11" * 20}))
    assert conflict.problem == (409, "request_conflict", "requestId")
    assert first.services.signers.holds(_signer(first)), "the lease did not move"
    assert not second.services.signers.holds(_signer(second))


async def test_headers_and_query_are_forwarded(apis: tuple[ApiServer, ApiServer]) -> None:
    first, second = apis
    headers = {"Idempotency-Key": "by header", "Prefer": "wait=20"}
    asked = second.transfer()
    done = await second.send("POST", "/tx?wait=mine%64", json=asked, headers=headers)
    assert done.status == 200, done
    assert done.json["requestId"] == "by header"
    again = await first.post("/tx", asked, headers={"Idempotency-Key": "by header"})
    assert again.json["txId"] == done.json["txId"]


async def test_each_item_of_a_batch_goes_to_its_lease_holder_and_the_order_stays(
    apis: tuple[ApiServer, ApiServer],
) -> None:
    first, second = apis
    here = second.signers[1]
    asked = [
        second.transfer("b-0"),
        second.transfer("b-1", signer=here),
        second.transfer("b-2", surprise=1),
        second.transfer("b-3"),
        second.transfer("b-0", payload={"to": "0x" + "11" * 20}),
    ]
    answer = await second.post("/tx/batch", {"requests": asked})
    results = answer.json["results"]
    assert [result["status"] for result in results] == [202, 202, 400, 202, 409]
    assert [results[place]["tx"]["requestId"] for place in (0, 1, 3)] == ["b-0", "b-1", "b-3"]
    assert results[4]["problem"]["code"] == "request_conflict"
    for place in (0, 1, 3):
        path = f"/tx/{results[place]['tx']['txId']}"
        assert (await first.get(path, wait="confirmed", timeout=60)).json["state"] == "CONFIRMED"


async def test_the_lease_holder_knows_the_caller_without_its_token(apis: tuple[ApiServer, ApiServer]) -> None:
    first, second = apis
    writer = await second.key(Scope.TX_WRITE, signers=frozenset(second.signers[:1]))
    reader = await second.key(Scope.TX_READ)
    taken = await second.with_token(writer).post("/tx", second.transfer("k-1"))
    assert taken.status == 202, taken
    refused = await second.with_token(reader).post("/tx", second.transfer("k-2"))
    assert refused.problem == (403, "scope_missing", None)
    of_reader, _ = await with_pass(first, first.transfer("k-3"), caller=reader.split("_")[1])
    assert of_reader.problem == (403, "scope_missing", None), "the owner looks at the scopes too"
    of_unknown_key, _ = await with_pass(first, first.transfer("k-4"), caller="00" * 8)
    assert of_unknown_key.problem == (401, "key_invalid", None)
    assert await stored(first) == {"k-1"}


async def test_without_the_setting_the_answer_names_the_lease_holder(dsn: str, anvil: TestChain) -> None:
    async with two_apis(dsn, anvil, routing__forward="false") as (first, second):
        refused = await second.post("/tx", second.transfer("n-1"))
        assert refused.problem == (409, "not_leader", "signer")
        assert (refused.json["owner"], refused.json["ownerUrl"]) == ("first", first.url)
        assert refused.headers["Location"] == f"{first.url}/api/v1/tx"
        followed = await second.session.post(refused.headers["Location"], json=second.transfer("n-2"))
        assert followed.status == 202
        waited = await second.post("/tx", second.transfer("n-1"), wait="mined")
        assert waited.headers["Location"] == f"{first.url}/api/v1/tx?wait=mined"
        batch = await second.post("/tx/batch", {"requests": [second.transfer("n-1")]})
        assert batch.json["results"][0]["problem"]["ownerUrl"] == first.url
        assert await stored(first) == {"n-2"}


NONCES: dict[str, Any] = {
    "nonce_service__enabled": "true",
    "routing__forward": "true",
    "routing__secret": SECRET,
    "keys": 1,
}


async def test_the_lease_holder_issues_nonces_whichever_node_is_called(dsn: str, anvil: TestChain) -> None:
    sender = str((await anvil.call("eth_accounts"))[8]).lower()
    path = f"/nonces/{sender}"
    async with (
        open_api(dsn, anvil, node__id="first", **NONCES) as first,
        open_api(dsn, anvil, node__id="second", **NONCES) as second,
        open_api(dsn, anvil, node__id="third", **NONCES | {"routing__forward": "false"}) as third,
    ):
        begin = (await first.post(path)).json["items"][0]["nonce"]
        handed_on = await second.post(path, {"count": 2})
        assert handed_on.status == 200, handed_on
        assert [item["nonce"] for item in handed_on.json["items"]] == [begin + 1, begin + 2]
        refused = await third.post(path)
        assert refused.problem[:2] == (409, "not_leader")
        assert (refused.json["owner"], refused.json["ownerUrl"]) == ("first", first.url)
        assert refused.headers["Location"] == f"{first.url}/api/v1{path}"
        figures = first.services.node.metrics().decode()
        assert 'fencepost_nonce_allocated_total{scheme="leased"} 3.0' in figures
        failed = 'fencepost_nonce_failed_total{code="not_leader",operation="allocate",scheme="leased"} 1.0'
        assert failed in third.services.node.metrics().decode()


async def test_nodes_with_different_secrets_reject_each_others_calls(
    dsn: str, anvil: TestChain, caplog: pytest.LogCaptureFixture
) -> None:
    async with two_apis(dsn, anvil, routing__secret="another" * 8) as (first, second):
        refused = await second.post("/tx", second.transfer("s-1"))
        assert refused.problem == (409, "not_leader", "signer")
        assert refused.json["owner"] == "first"
        batch = await second.post("/tx/batch", {"requests": [second.transfer("s-2")]})
        assert batch.json["results"][0]["problem"]["code"] == "not_leader"
        assert await stored(first) == set()
    assert "routing.secret" in caplog.text
    assert SECRET not in caplog.text
    assert "another" * 8 not in caplog.text


async def test_an_invalid_forward_token_is_rejected(apis: tuple[ApiServer, ApiServer]) -> None:
    first, second = apis
    body = first.transfer("p-1")
    forged, _ = await with_pass(first, body, secret="x" * 40)
    assert forged.problem == (401, "pass_refused", None)
    changed, _ = await with_pass(first, body, signed_body=first.transfer("p-2"))
    assert changed.problem == (401, "pass_refused", None)
    for_another, _ = await with_pass(first, body, to=second)
    assert for_another.problem == (409, "not_leader", None)
    assert await stored(first) == set()
    good, token = await with_pass(first, body)
    assert good.status == 202, good
    again = await send_with(first, token, body)
    assert again.problem == (401, "pass_refused", None)


async def test_a_forward_token_is_valid_for_no_other_call(dsn: str, anvil: TestChain) -> None:
    async with open_api(dsn, anvil, routing__secret=SECRET) as api:
        key_id = (await api.key(Scope.ADMIN)).split("_")[1]
        incarnation = api.running.node.incarnation
        for method, path in (("GET", "/api/v1/tx"), ("GET", "/api/v1/signers"), ("POST", "//rpc")):
            asked = ForwardRequest(method, path.replace("//", "/"), b"")
            token = ForwardTokens(SECRET).make(asked, to=incarnation, caller=key_id, hops=1)
            refused = await api.send(method, path, headers={FORWARD_TOKEN_HEADER: token})
            assert (refused.status, "key_missing" in str(refused.json)) == (401, True), refused


async def test_a_node_without_a_secret_accepts_no_forward_token(dsn: str, anvil: TestChain) -> None:
    async with open_api(dsn, anvil) as api:
        refused, _ = await with_pass(api, api.transfer("w-1"))
        assert refused.problem == (401, "pass_refused", None)


async def test_a_call_is_forwarded_at_most_twice(apis: tuple[ApiServer, ApiServer]) -> None:
    first, second = apis
    once, _ = await with_pass(second, second.transfer("h-1"), hops=1)
    assert once.status == 202, "it came to the wrong node, which hands it on"
    twice, _ = await with_pass(second, second.transfer("h-2"), hops=2)
    assert twice.problem == (409, "not_leader", "signer")
    assert twice.json["owner"] == "first"
    at_the_owner, _ = await with_pass(first, first.transfer("h-3"), hops=2)
    assert at_the_owner.status == 202
    too_often, _ = await with_pass(first, first.transfer("h-4"), hops=3)
    assert too_often.problem == (409, "not_leader", None)
    assert await stored(first) == {"h-1", "h-3"}


async def test_callers_are_asked_to_retry_when_the_lease_holder_is_gone(dsn: str, anvil: TestChain) -> None:
    with bind("127.0.0.1", 0) as closed_socket:  # bound, but not listening
        gone = f"http://127.0.0.1:{closed_socket.getsockname()[1]}"
        async with two_apis(dsn, anvil, of_the_owner={"node__url": gone}) as (first, second):
            refused = await second.post("/tx", second.transfer("g-1"))
            assert refused.problem == (409, "not_leader", "signer")
            assert int(refused.headers["Retry-After"]) >= 1
            batch = await second.post("/tx/batch", {"requests": [second.transfer("g-2")]})
            assert batch.json["results"][0]["problem"]["code"] == "not_leader"
            assert await stored(first) == set()


async def test_an_owner_that_closes_the_connection_may_have_accepted_the_request(
    dsn: str, anvil: TestChain
) -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with two_apis(dsn, anvil, of_the_owner={"node__url": url}) as (_, second):
            unknown = await second.post("/tx", second.transfer("u-1"))
            assert unknown.problem == (503, "busy", None)
            assert int(unknown.headers["Retry-After"]) >= 1
            batch = await second.post("/tx/batch", {"requests": [second.transfer("u-2")]})
            assert batch.json["results"][0]["problem"]["code"] == "busy"


def _signer(api: ApiServer) -> Signer:
    return Signer(api.running.default_chain_id, api.signers[0])
