"""A spending policy is checked before a request is stored, and so before a nonce is used."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

from fencepost.adapters.postgres.policies import PostgresPolicies
from fencepost.application import spending_policy
from fencepost.application.api_keys import Scope
from fencepost.application.ports import Actor
from fencepost.application.spending_policy import Limits, refusal
from fencepost.domain.ids import Address, Signer
from fencepost.domain.transaction import Call
from fixtures.api import RECEIVER, Answer, ApiServer
from fixtures.core import eventually

ELSE = "0x" + "77" * 20
TRANSFER = "transfer(address,uint256)"


async def with_policy(api: ApiServer, **asked: Any) -> Answer:
    answer = await api.send("PUT", f"/signers/{api.signers[0]}/policy", json=asked)
    assert answer.status == 200, answer
    await asyncio.sleep(spending_policy.CACHE_TTL_S + 0.1)  # wait until the cached policy expires
    return answer


def test_each_limit_rejects_what_exceeds_it() -> None:
    here, there = Address(RECEIVER), Address(ELSE)
    call = Call(to=here, value_wei=5, data=bytes.fromhex("a9059cbb00"))
    assert refusal(Limits(), call) is None
    assert refusal(Limits(receivers=frozenset({here})), call) is None
    assert refusal(Limits(receivers=frozenset({there})), call) == f"{here} is none of its receivers"
    assert refusal(Limits(receivers=frozenset()), call)
    assert refusal(Limits(selectors=frozenset({"0xa9059cbb"})), call) is None
    assert refusal(Limits(selectors=frozenset({"0x"})), call)
    assert refusal(Limits(selectors=frozenset({"0x"})), Call(to=here)) is None
    assert refusal(Limits(selectors=frozenset({"0xa9059cbb"})), Call(to=here))
    assert refusal(Limits(selectors=frozenset({"0xa9059cbb", "0x"})), Call(to=here, data=b"\xa9\x05"))
    assert refusal(Limits(value_wei_max=5), call) is None
    assert refusal(Limits(value_wei_max=4), call)
    deploy = Call(to=None, data=b"\0")
    assert refusal(Limits(value_wei_max=4), deploy) is None
    assert refusal(Limits(receivers=frozenset({here})), deploy) == "it may not deploy contracts"
    assert refusal(Limits(selectors=frozenset({"0x"})), deploy) == "it may not deploy contracts"


async def test_a_forbidden_request_is_rejected_before_it_is_stored(api: ApiServer) -> None:
    known = await api.post("/tx", api.transfer("before", payload={"to": ELSE}), wait="confirmed", timeout=60)
    put = await with_policy(api, receivers=[RECEIVER], selectors=["0x", TRANSFER], valueWeiMax="10")
    assert put.json["selectors"] == ["0x", "0xa9059cbb"]
    payloads: list[tuple[dict[str, Any], int]] = [
        ({"to": RECEIVER, "value": 10}, 202),
        ({"to": RECEIVER, "value": 11}, 403),
        ({"to": ELSE}, 403),
        ({"to": RECEIVER, "method": TRANSFER, "args": [ELSE, 1]}, 202),
        ({"to": RECEIVER, "method": "approve(address,uint256)", "args": [ELSE, 1]}, 403),
        ({"data": "0x00"}, 403),
    ]
    asked = [api.transfer(f"p-{number}", payload=payload) for number, (payload, _) in enumerate(payloads)]
    batch = (await api.post("/tx/batch", {"requests": asked})).json["results"]
    assert [result["status"] for result in batch] == [status for _, status in payloads]
    refused = await api.post("/tx", asked[2])
    assert refused.problem == (403, "policy_refused", "payload")
    stored = await api.running.pool.fetch("SELECT request_id FROM managed_tx ORDER BY seq")
    assert [row["request_id"] for row in stored] == ["before", "p-0", "p-3"]
    again = await api.post("/tx", api.transfer("before", payload={"to": ELSE}))
    assert (again.status, again.json["txId"]) == (200, known.json["txId"]), (
        "what is known is not refused any more"
    )
    other = await api.post("/tx", api.transfer("free", signer=api.signers[1], payload={"to": ELSE}))
    assert other.status == 202


FINNEY = 10**15
FEES = {"maxFeePerGas": 2 * 10**9, "maxPriorityFeePerGas": 1}


def paying(value: int, **more: Any) -> dict[str, Any]:
    return {"to": RECEIVER, "value": value, "gas": 21_000, "fees": FEES} | more


async def test_a_daily_budget_is_neither_spent_nor_refunded_by_retries(api: ApiServer) -> None:
    await with_policy(api, dailyWeiMax=100 * FINNEY)
    path = f"/signers/{api.signers[0]}/policy"

    async def status(request_id: str, value: int) -> int:
        asked = api.transfer(request_id, payload=paying(value * FINNEY))
        return (await api.post("/tx", asked)).status

    assert await status("a", 60) == 202
    assert await status("b", 60) == 403
    assert [await status("a", 60) for _ in range(5)] == [200] * 5
    assert await status("a", 30) == 409
    await ended(api, "a")
    assert await spent(api) == 60 * FINNEY + await gas_cost(api, "a"), (
        "what created nothing gave its part back"
    )
    statuses = await asyncio.gather(*(status(f"c-{number}", 9) for number in range(12)))
    assert sorted(statuses) == [202] * 4 + [403] * 8
    assert 96 * FINNEY < await spent(api) <= 100 * FINNEY
    removed = await api.send("DELETE", path)
    assert removed.json["dailyWeiMax"] is None
    await asyncio.sleep(spending_policy.CACHE_TTL_S + 0.1)
    assert await status("d", 1000) == 202


async def spent(api: ApiServer) -> int:
    return int((await api.get(f"/signers/{api.signers[0]}/policy")).json["spentTodayWei"])


async def ended(api: ApiServer, request_id: str) -> dict[str, Any]:
    async def tx() -> dict[str, Any]:
        query = {"signer": api.signers[0], "requestId": request_id, "include": "receipt"}
        found: dict[str, Any] = (await api.get("/tx/by-request", **query)).json
        return found

    async def has_ended() -> bool:
        return (await tx())["state"] in ("CONFIRMED", "FAILED", "CANCELLED")

    await eventually(has_ended)
    return await tx()


async def gas_cost(api: ApiServer, request_id: str) -> int:
    receipt = (await ended(api, request_id))["receipt"]
    return int(receipt["gasUsed"], 16) * int(receipt["effectiveGasPrice"], 16)


async def test_gas_counts_against_the_daily_budget(api: ApiServer) -> None:
    await with_policy(api, dailyWeiMax=250)
    entries = [{"address": RECEIVER, "storageKeys": ["0x" + f"{n:064x}" for n in range(50)]}]
    tip = 500 * 10**9
    fees = {"maxFeePerGas": tip, "maxPriorityFeePerGas": tip}
    dear = paying(1, gas=200_000, fees=fees, accessList=entries)
    assert (await api.post("/tx", api.transfer("dear", payload=dear))).problem[:2] == (
        403,
        "policy_refused",
    )
    # Without gas and price the cost is known only at signing.
    open_price = {"to": RECEIVER, "value": 1, "accessList": entries}
    assert (await api.post("/tx", api.transfer("open", payload=open_price))).status == 202
    tx = await ended(api, "open")
    assert (tx["state"], tx.get("hash")) == ("FAILED", None)
    assert "it may spend per day" in tx["error"]
    assert await spent(api) == 0


async def test_gas_and_price_have_their_own_limits(api: ApiServer) -> None:
    put = await with_policy(api, gasMax=30_000, feeCapMax=str(3 * 10**9))
    assert (put.json["gasMax"], put.json["feeCapMax"]) == ("30000", "3000000000")
    cases: list[tuple[str, dict[str, Any], int]] = [
        ("plain", paying(1), 202),
        ("gas", paying(1, gas=30_001), 403),
        ("price", paying(1, fees={"maxFeePerGas": 3 * 10**9 + 1, "maxPriorityFeePerGas": 1}), 403),
    ]
    for request_id, payload, status in cases:
        assert (await api.post("/tx", api.transfer(request_id, payload=payload))).status == status
    big = {"to": RECEIVER, "data": "0x" + "ff" * 2000}  # the estimate gives the gas
    assert (await api.post("/tx", api.transfer("big", payload=big))).status == 202
    tx = await ended(api, "big")
    assert (tx["state"], tx.get("hash")) == ("FAILED", None)
    assert "gasMax" in tx["error"]
    assert (await ended(api, "plain"))["state"] == "CONFIRMED"


async def test_a_budget_is_exact_across_nodes(api: ApiServer) -> None:
    signer = Signer(api.running.default_chain_id, api.signers[0])
    nodes = [PostgresPolicies(api.running.pool, node=f"node-{number}") for number in range(3)]
    await nodes[0].put(signer, Limits(daily_wei_max=1000), Actor("a test", None))
    tx_ids = [uuid4() for _ in range(40)]

    async def reserved(number: int, wei: int) -> bool:
        return await nodes[number % 3].reserve(signer, tx_ids[number], value_wei=1, wei=wei)

    got = await asyncio.gather(*(reserved(number, 37) for number in range(40)))
    assert sum(got) == 1000 // 37
    assert await nodes[0].spent_today_wei(signer) == 27 * 37
    held = [number for number, has in enumerate(got) if has]
    # Several nodes reserve for the same transaction: only the increase is reserved, and only once.
    assert await asyncio.gather(*(reserved(held[0], 38) for _ in range(5))) == [True] * 5
    assert await nodes[0].spent_today_wei(signer) == 27 * 37 + 1
    assert not await reserved(held[1], 38)
    assert await nodes[1].reserve(signer, tx_ids[held[1]], value_wei=0, wei=40, force=True)
    assert await nodes[0].spent_today_wei(signer) == 27 * 37 + 4
    await asyncio.gather(*(nodes[0].release(signer, tx_ids[number]) for number in held * 2))
    assert await nodes[0].spent_today_wei(signer) == 0


async def test_a_request_cancelled_before_its_nonce_returns_its_share_of_the_budget(api: ApiServer) -> None:
    await with_policy(api, dailyWeiMax=10**18)
    await api.post(f"/signers/{api.signers[0]}/pause", {"reason": "so that nothing gets a nonce"})
    tx_id = (await api.post("/tx", api.transfer("a", payload=paying(10**17)))).json["txId"]
    assert await spent(api) == 10**17 + 21_000 * 2 * 10**9
    cancelled = await api.post(f"/tx/{tx_id}/cancel", {"reason": "no"})
    assert cancelled.status in (200, 202)
    await ended(api, "a")
    assert await spent(api) == 0


async def test_only_an_admin_sets_a_policy_and_the_audit_records_it(api: ApiServer) -> None:
    path = f"/signers/{api.signers[0]}/policy"
    operator = api.with_token(await api.key(Scope.OPERATOR))
    admin = api.with_token(await api.key(Scope.ADMIN, name="chief"))
    assert (await operator.get(path)).status == 200
    assert (await operator.send("PUT", path, json={})).problem[:2] == (403, "scope_missing")
    assert (await admin.send("PUT", path, json={"valueWeiMax": 1})).status == 200
    for bad, field in [
        ({"receivers": ["0x12"]}, "receivers[0]"),
        ({"selectors": ["0x1234"]}, "selectors[0]"),
        ({"selectors": ["f(uint7)"]}, "selectors[0]"),
        ({"valueWeiMax": -1}, "valueWeiMax"),
        ({"gas": 1}, "gas"),
        ({"gasMax": "many"}, "gasMax"),
        ({"feeCapMax": -1}, "feeCapMax"),
    ]:
        answer = await admin.send("PUT", path, json=bad)
        assert (answer.status, answer.problem[2]) == (400, field)
    rows = await api.running.pool.fetch("SELECT actor, signer FROM audit WHERE action = 'policy.put'")
    assert [tuple(row) for row in rows] == [("chief", api.signers[0])]
