"""Taking transactions over HTTP: new, known, conflicting, waited for, in batches."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from fencepost.adapters.postgres.ledger import PostgresLedger
from fencepost.api import answering, create_app
from fencepost.api.wire_in import MOST_WAIT_S
from fencepost.application.ports import Accepted, NewRequest
from fencepost.serving import bind, serve
from fix_anvil import TestChain
from fix_api import SOMEBODY, Door, open_door
from fix_core import eventually


async def test_new_is_202_known_is_200_another_payload_is_409(door: Door) -> None:
    first = await door.post("/tx", door.transfer("order-1", tags=["a", "b", "a"]))
    assert first.status == 202
    tx_id = first.json["txId"]
    assert str(UUID(tx_id)) == tx_id
    assert first.headers["Location"] == f"/api/v1/tx/{tx_id}"
    assert first.json["state"] == "QUEUED"
    assert first.json["tags"] == ["a", "b"]
    assert "nonce" not in first.json or first.json["nonce"] is None

    again = await door.post("/tx", door.transfer("order-1"))
    assert (again.status, again.json["txId"]) == (200, tx_id)

    other = await door.post("/tx", door.transfer("order-1", payload={"to": SOMEBODY, "value": 2}))
    assert other.problem == (409, "request_conflict", "requestId")
    assert other.json["txId"] == tx_id


async def test_another_spelling_of_the_same_payload_is_the_same_request(door: Door) -> None:
    spelt: list[dict[str, Any]] = [
        {"to": SOMEBODY, "value": 255},
        {"to": SOMEBODY, "value": "255"},
        {"to": SOMEBODY.upper().replace("0X", "0x"), "value": "0xff", "data": "0x", "type": "0x2"},
        {"to": SOMEBODY, "value": 255, "data": None, "accessList": []},
    ]
    answers = [await door.post("/tx", door.transfer("same", payload=payload)) for payload in spelt]
    assert [answer.status for answer in answers] == [202, 200, 200, 200]
    assert len({answer.json["txId"] for answer in answers}) == 1


async def test_submitter_is_another_name_of_signer(door: Door) -> None:
    asked = door.transfer("named")
    asked["submitter"] = asked.pop("signer")
    assert (await door.post("/tx", asked)).status == 202
    both = await door.post("/tx", door.transfer("named", submitter=door.signers[1]))
    assert both.problem == (400, "field_invalid", "submitter")


async def test_the_idempotency_key_names_a_request_that_has_no_name(door: Door) -> None:
    key = {"Idempotency-Key": "from-the-header"}
    first = await door.post("/tx", door.transfer(), headers=key)
    again = await door.post("/tx", door.transfer(), headers=key)
    assert (first.status, again.status) == (202, 200)
    assert first.json["txId"] == again.json["txId"]
    named = await door.post("/tx", door.transfer("its-own"), headers=key)
    assert named.status == 202, "the body's own name wins"
    assert named.json["requestId"] == "its-own"


@pytest.mark.parametrize("milestone", ["allocated", "submitted", "mined", "confirmed"])
async def test_waiting_answers_when_it_is_reached(door: Door, milestone: str) -> None:
    answer = await door.post("/tx", door.transfer("w"), wait=milestone, timeout=60)
    assert answer.status == 200
    assert answer.json["hash"].startswith("0x")
    if milestone == "confirmed":
        assert answer.json["state"] == "CONFIRMED"
        assert answer.json["blockNumber"] > 0


async def test_prefer_wait_gives_the_hash(door: Door) -> None:
    answer = await door.post("/tx", door.transfer("p"), headers={"Prefer": "respond-async, wait=20"})
    assert answer.status == 200
    assert answer.json["hash"].startswith("0x")


async def test_at_the_time_out_what_is_known_is_told(dsn: str, anvil: TestChain) -> None:
    await anvil.call("evm_setAutomine", False)
    async with open_door(dsn, anvil) as door:
        sent = await door.post("/tx", door.transfer("slow"), wait="submitted", timeout=60)
        assert sent.status == 200
        answer = await door.post("/tx", door.transfer("slow"), wait="mined", timeout=1)
        assert answer.status == 202
        assert answer.json["state"] == "SUBMITTED"
        assert answer.json["hash"].startswith("0x")
        waited = door.get(f"/tx/{answer.json['txId']}", wait="confirmed", timeout=60)
        mined, _ = await asyncio.gather(waited, anvil.mine())
        assert (mined.status, mined.json["state"]) == (200, "CONFIRMED")


async def test_a_caller_that_goes_away_changes_nothing(dsn: str, anvil: TestChain) -> None:
    await anvil.call("evm_setAutomine", False)
    async with open_door(dsn, anvil) as door:
        caller = asyncio.create_task(door.post("/tx", door.transfer("gone"), wait="confirmed", timeout=60))

        async def is_out() -> bool:
            found = await door.get("/tx/by-request", signer=door.signers[0], requestId="gone")
            return found.status == 200 and found.json["state"] == "SUBMITTED"

        await eventually(is_out)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        await anvil.mine()
        found = await door.get("/tx/by-request", signer=door.signers[0], requestId="gone")
        done = await door.get(f"/tx/{found.json['txId']}", wait="confirmed", timeout=60)
        assert done.json["state"] == "CONFIRMED"


async def test_a_call_by_signature_a_call_by_abi_and_a_deployment(door: Door, anvil: TestChain) -> None:
    # Code that stores the constructor's word at slot 0 and leaves an empty contract behind.
    code = "0x602080380360003960005160005560006000f3"
    abi = [
        {"type": "constructor", "inputs": [{"name": "n", "type": "uint256"}]},
        {"type": "function", "name": "set", "inputs": [{"name": "n", "type": "uint256"}]},
    ]
    deployed = await door.post(
        "/tx",
        door.transfer("deploy", payload={"data": code, "abi": abi, "args": ["0x2a"]}),
        wait="confirmed",
        timeout=60,
    )
    assert deployed.json["state"] == "CONFIRMED", deployed
    shown = await door.get(f"/tx/{deployed.json['txId']}", include="receipt,payload")
    contract = shown.json["receipt"]["contractAddress"]
    assert int(await anvil.call("eth_getStorageAt", contract, "0x0", "latest"), 16) == 42
    assert shown.json["payload"]["data"].endswith(f"{42:064x}")
    calls: list[dict[str, Any]] = [
        {"method": "set(uint256)", "args": [7]},
        {"method": "set", "abi": abi, "args": ["7"]},
    ]
    datas = []
    for number, payload in enumerate(calls):
        answer = await door.post("/tx", door.transfer(f"call-{number}", payload=payload | {"to": contract}))
        assert answer.status == 202, answer
        found = await door.get(f"/tx/{answer.json['txId']}", include="payload")
        datas.append(found.json["payload"]["data"])
    assert datas == ["0x60fe47b1" + f"{7:064x}"] * 2


async def test_every_kind_of_transaction_is_mined(door: Door, anvil: TestChain) -> None:
    payloads: list[dict[str, Any]] = [
        {"type": 0, "gasPrice": "3000000000"},
        {"gasPrice": 3_000_000_000, "accessList": [{"address": SOMEBODY, "storageKeys": ["0x" + "01" * 32]}]},
        {"fees": {"maxFeePerGas": "0xb2d05e00", "maxPriorityFeePerGas": 1}, "gas": "50000"},
    ]
    hashes = []
    for number, payload in enumerate(payloads):
        asked = door.transfer(f"kind-{number}", payload={"to": SOMEBODY, "value": 1} | payload)
        answer = await door.post("/tx", asked, wait="mined", timeout=60)
        assert answer.status == 200, answer
        hashes.append(answer.json["hash"])
    mined = [await anvil.call("eth_getTransactionByHash", tx_hash) for tx_hash in hashes]
    assert [tx["type"] for tx in mined] == ["0x0", "0x1", "0x2"]
    assert mined[2]["gas"] == hex(50_000)


async def test_what_is_valid_no_longer_is_dropped_without_a_nonce(dsn: str, anvil: TestChain) -> None:
    await anvil.call("evm_setAutomine", False)
    async with open_door(dsn, anvil) as door:
        await door.post("/tx", door.transfer("ahead"), wait="submitted", timeout=60)
        soon = (datetime.now(UTC) + timedelta(seconds=3)).isoformat()
        waiting = await door.post("/tx", door.transfer("late", validUntil=soon))
        assert waiting.status == 202
        await asyncio.sleep(3.1)  # what must pass is the time itself
        await anvil.mine()
        done = await door.get(f"/tx/{waiting.json['txId']}", wait="confirmed", timeout=60)
        assert done.json["state"] in ("CANCELLED", "FAILED")
        assert done.json["nonce"] is None


async def test_a_batch_has_a_result_for_each_and_one_bad_one_harms_nobody(door: Door) -> None:
    await door.post("/tx", door.transfer("known"))
    asked = [
        door.transfer("b-0"),
        {"nonsense": True},
        door.transfer("known"),
        door.transfer("known", payload={"to": SOMEBODY, "value": 9}),
        door.transfer("b-0"),
        door.transfer("b-1", signer="0x" + "99" * 20),
        7,
        door.transfer("b-2"),
    ]
    answer = await door.post("/tx/batch", {"requests": asked})
    assert answer.status == 200
    results = answer.json["results"]
    assert [result["status"] for result in results] == [202, 400, 200, 409, 200, 422, 400, 202]
    assert [result["problem"]["code"] for result in results if "problem" in result] == [
        "field_unknown",
        "request_conflict",
        "signer_unknown",
        "field_invalid",
    ]
    assert results[0]["tx"]["txId"] == results[4]["tx"]["txId"]
    for result in (results[0], results[7]):
        done = await door.get(f"/tx/{result['tx']['txId']}", wait="confirmed", timeout=60)
        assert done.json["state"] == "CONFIRMED"


async def test_a_batch_takes_a_thousand_and_keeps_their_order(dsn: str, anvil: TestChain) -> None:
    await anvil.call("evm_setAutomine", False)
    async with open_door(dsn, anvil) as door:
        requests = [door.transfer(f"n-{number:04}") for number in range(1000)]
        answer = await door.post("/tx/batch", {"requests": requests})
        assert {result["status"] for result in answer.json["results"]} == {202}
        oldest = await door.running.pool.fetch("SELECT request_id FROM managed_tx ORDER BY seq")
        assert [row["request_id"] for row in oldest] == [request["requestId"] for request in requests]
        again = await door.post("/tx/batch", {"requests": requests})
        assert {result["status"] for result in again.json["results"]} == {200}
        more = await door.post("/tx/batch", {"requests": [*requests, door.transfer("one-more")]})
        assert more.problem == (400, "field_invalid", "requests")
        assert (await door.post("/tx/batch", {"requests": []})).problem[:2] == (400, "field_invalid")


async def test_with_intake_leader_another_node_names_the_owner(dsn: str, anvil: TestChain) -> None:
    async with open_door(dsn, anvil, node__id="first", api__intake="leader") as first:
        done = await first.post("/tx", first.transfer("l-1"), wait="confirmed", timeout=60)
        assert done.status == 200, "what nobody holds is taken, and then held"
        async with open_door(dsn, anvil, node__id="second", api__intake="leader") as second:
            refused = await second.post("/tx", second.transfer("l-2"))
            assert refused.problem == (409, "not_leader", "signer")
            assert refused.json["owner"] == "first"
            assert int(refused.headers["Retry-After"]) >= 1
            batch = await second.post("/tx/batch", {"requests": [second.transfer("l-3")]})
            assert batch.json["results"][0]["problem"]["code"] == "not_leader"
        assert (await first.post("/tx", first.transfer("l-2"))).status == 202


async def test_what_takes_too_long_is_said_to_be_busy(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """The database hangs: the caller is told to come again, and what it asked for is still taken once."""
    real = PostgresLedger.accept
    goes_on = asyncio.Event()

    async def hanging(ledger: PostgresLedger, requests: Sequence[NewRequest]) -> Sequence[Accepted]:
        await goes_on.wait()
        return await real(ledger, requests)

    monkeypatch.setattr(PostgresLedger, "accept", hanging)
    monkeypatch.setattr(answering, "ANSWER_WITHIN_S", 0.3 - MOST_WAIT_S)
    with bind("127.0.0.1", 0) as listener:
        async with serve(create_app(door.services), listener) as url:
            impatient = replace(door, url=url)
            answers = await asyncio.gather(*(impatient.post("/tx", door.transfer("slow")) for _ in range(3)))
            assert [answer.problem for answer in answers] == [(503, "busy", None)] * 3
            assert {answer.headers["Retry-After"] for answer in answers} == {"1"}
    goes_on.set()
    first = await door.post("/tx", door.transfer("slow"))
    again = await door.post("/tx", door.transfer("slow"))
    assert (first.status, again.status) == (202, 200)
    assert first.json["txId"] == again.json["txId"]
