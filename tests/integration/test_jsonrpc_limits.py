"""The limits and permissions of `/rpc` and `/metrics`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import aiohttp

from fencepost.api import create_app
from fencepost.api.jsonrpc.parsing import MAX_RESPONSE_BYTES
from fencepost.application.api_keys import Scope
from fencepost.http.server import bind, serve
from fixtures.anvil import TestChain
from fixtures.api import ApiServer
from integration.rpc_calls import fault, post, result, rpc_call

WIDE = "0x" + "c0de" * 10
RETURNS_A_MEGABYTE = "0x621000005ff3"  # PUSH3 0x100000 PUSH0 RETURN: two megabytes of hex


async def test_the_calls_of_a_batch_share_a_byte_limit(api: ApiServer, anvil: TestChain) -> None:
    await anvil.call("anvil_setCode", WIDE, RETURNS_A_MEGABYTE)
    assert len(await result(api, "eth_call", {"to": WIDE}, "latest")) == 2 + 2 * 0x100000
    calls = [rpc_call("eth_call", {"to": WIDE}, "latest", call_id=number) for number in range(25)]
    status, said = await post(api, calls)
    assert status == 200
    good = [answer for answer in said if "result" in answer]
    bad = [answer["error"] for answer in said if "error" in answer]
    assert sum(len(answer["result"]) for answer in good) <= MAX_RESPONSE_BYTES
    assert (len(good), len(bad)) == (7, 18)
    assert {error["code"] for error in bad} == {-32005}


async def test_expensive_reads_need_their_scope(api: ApiServer) -> None:
    asked: dict[str, list[Any]] = {
        "debug_traceTransaction": ["0x" + "11" * 32],
        "trace_block": ["latest"],
        "txpool_content": [],
        "eth_simulateV1": [{}, "latest"],
    }
    for scope in (Scope.TX_READ, Scope.TX_WRITE):
        keyed = api.with_token(await api.key(scope))
        assert await result(keyed, "txpool_status")
        for method, params in asked.items():
            number, _, data = await fault(keyed, method, *params)
            assert (number, data["code"]) == (4100, "scope_missing"), method
            assert "rpc:expensive" in data["detail"]
    for scope in (Scope.RPC_EXPENSIVE, Scope.OPERATOR, Scope.ADMIN):
        keyed = api.with_token(await api.key(scope))
        assert "pending" in await result(keyed, "txpool_content")


async def test_metrics_need_a_key_off_loopback(api: ApiServer) -> None:
    assert (await api.get("//metrics")).status == 200
    proxied = await api.send("GET", "//metrics", headers={"X-Forwarded-For": "203.0.113.7"})
    assert proxied.problem[:2] == (401, "key_missing")
    assert (await api.send("GET", "//metrics", headers={"Host": "rebound.example"})).status == 401
    reads = await api.key(Scope.TX_READ)
    limited = await api.key(Scope.TX_READ, signers=frozenset({api.signers[0]}))
    reachable = replace(api.services.settings, host="0.0.0.0")  # noqa: S104 - what others can reach; it listens on loopback
    app = create_app(replace(api.services, settings=reachable))
    with bind("127.0.0.1", 0) as listener:
        async with serve(app, listener) as url, aiohttp.ClientSession() as session:
            other = replace(api, url=url, session=session)
            assert (await other.get("//metrics")).problem[:2] == (401, "key_missing")
            assert (await other.with_token("fp_wrong").get("//metrics")).status == 401
            assert (await other.with_token(limited).get("//metrics")).problem[:2] == (
                403,
                "scope_missing",
            )
            assert (await other.with_token(reads).get("//metrics")).status == 200
