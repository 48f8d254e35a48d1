"""What a signer may do is looked at before its request is stored, and so before a nonce is spent."""

from __future__ import annotations

import asyncio
from typing import Any

from fencepost.application import policy
from fencepost.application.api_keys import Scope
from fencepost.application.policy import Limits, refusal
from fencepost.domain.ids import Address
from fencepost.domain.transaction import Call
from fix_api import SOMEBODY, Answer, Door

ELSE = "0x" + "77" * 20
TRANSFER = "transfer(address,uint256)"


async def with_policy(door: Door, **asked: Any) -> Answer:
    answer = await door.send("PUT", f"/signers/{door.signers[0]}/policy", json=asked)
    assert answer.status == 200, answer
    await asyncio.sleep(policy.REMEMBER_S + 0.1)  # what must pass is the time that the old one is remembered
    return answer


def test_each_limit_by_itself() -> None:
    here, there = Address(SOMEBODY), Address(ELSE)
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


async def test_what_the_policy_forbids_is_refused_before_it_is_stored(door: Door) -> None:
    known = await door.post(
        "/tx", door.transfer("before", payload={"to": ELSE}), wait="confirmed", timeout=60
    )
    put = await with_policy(door, receivers=[SOMEBODY], selectors=["0x", TRANSFER], valueWeiMax="10")
    assert put.json["selectors"] == ["0x", "0xa9059cbb"]
    payloads: list[tuple[dict[str, Any], int]] = [
        ({"to": SOMEBODY, "value": 10}, 202),
        ({"to": SOMEBODY, "value": 11}, 403),
        ({"to": ELSE}, 403),
        ({"to": SOMEBODY, "method": TRANSFER, "args": [ELSE, 1]}, 202),
        ({"to": SOMEBODY, "method": "approve(address,uint256)", "args": [ELSE, 1]}, 403),
        ({"data": "0x00"}, 403),
    ]
    asked = [door.transfer(f"p-{number}", payload=payload) for number, (payload, _) in enumerate(payloads)]
    batch = (await door.post("/tx/batch", {"requests": asked})).json["results"]
    assert [result["status"] for result in batch] == [status for _, status in payloads]
    refused = await door.post("/tx", asked[2])
    assert refused.problem == (403, "policy_refused", "payload")
    stored = await door.running.pool.fetch("SELECT request_id FROM managed_tx ORDER BY seq")
    assert [row["request_id"] for row in stored] == ["before", "p-0", "p-3"]
    again = await door.post("/tx", door.transfer("before", payload={"to": ELSE}))
    assert (again.status, again.json["txId"]) == (200, known.json["txId"]), (
        "what is known is not refused any more"
    )
    other = await door.post("/tx", door.transfer("free", signer=door.signers[1], payload={"to": ELSE}))
    assert other.status == 202


async def test_a_day_has_a_budget_that_retries_neither_spend_nor_win_back(door: Door) -> None:
    await with_policy(door, dailyWeiMax=100)
    path = f"/signers/{door.signers[0]}/policy"

    async def status(request_id: str, value: int) -> int:
        asked = door.transfer(request_id, payload={"to": SOMEBODY, "value": value})
        return (await door.post("/tx", asked)).status

    assert await status("a", 60) == 202
    assert await status("b", 60) == 403
    assert [await status("a", 60) for _ in range(5)] == [200] * 5
    assert (await door.get(path)).json["spentTodayWei"] == "60"
    assert await status("a", 30) == 409
    assert (await door.get(path)).json["spentTodayWei"] == "60", "what created nothing gave its part back"
    statuses = await asyncio.gather(*(status(f"c-{number}", 9) for number in range(12)))
    assert sorted(statuses) == [202] * 4 + [403] * 8
    assert (await door.get(path)).json["spentTodayWei"] == "96"
    assert await status("free", 0) == 202
    removed = await door.send("DELETE", path)
    assert removed.json["dailyWeiMax"] is None
    await asyncio.sleep(policy.REMEMBER_S + 0.1)
    assert await status("d", 1000) == 202


async def test_only_an_admin_sets_a_policy_and_it_is_written_down(door: Door) -> None:
    path = f"/signers/{door.signers[0]}/policy"
    operator = door.with_token(await door.key(Scope.OPERATOR))
    admin = door.with_token(await door.key(Scope.ADMIN, name="chief"))
    assert (await operator.get(path)).status == 200
    assert (await operator.send("PUT", path, json={})).problem[:2] == (403, "scope_missing")
    assert (await admin.send("PUT", path, json={"valueWeiMax": 1})).status == 200
    for bad, field in [
        ({"receivers": ["0x12"]}, "receivers[0]"),
        ({"selectors": ["0x1234"]}, "selectors[0]"),
        ({"selectors": ["f(uint7)"]}, "selectors[0]"),
        ({"valueWeiMax": -1}, "valueWeiMax"),
        ({"gas": 1}, "gas"),
    ]:
        answer = await admin.send("PUT", path, json=bad)
        assert (answer.status, answer.problem[2]) == (400, field)
    rows = await door.running.pool.fetch("SELECT actor, signer FROM audit WHERE action = 'policy.put'")
    assert [tuple(row) for row in rows] == [("chief", door.signers[0])]
