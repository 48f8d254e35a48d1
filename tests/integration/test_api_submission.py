"""Submission over HTTP: new, duplicate and conflicting requests, waiting, batches."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from fencepost.adapters.postgres.ledger import PostgresLedger
from fencepost.api import create_app, pipeline
from fencepost.application.ports import Accepted, NewRequest
from fencepost.http.server import bind, serve
from fencepost.schemas.requests import MAX_WAIT_S
from fixtures.anvil import TestChain
from fixtures.api import RECEIVER, ApiServer, open_api
from fixtures.core import eventually


async def test_a_new_request_is_202_a_duplicate_200_and_another_payload_409(api: ApiServer) -> None:
    first = await api.post("/tx", api.transfer("order-1", tags=["a", "b", "a"]))
    assert first.status == 202
    tx_id = first.json["txId"]
    assert str(UUID(tx_id)) == tx_id
    assert first.headers["Location"] == f"/api/v1/tx/{tx_id}"
    assert first.json["state"] == "QUEUED"
    assert first.json["tags"] == ["a", "b"]
    assert "nonce" not in first.json or first.json["nonce"] is None

    again = await api.post("/tx", api.transfer("order-1"))
    assert (again.status, again.json["txId"]) == (200, tx_id)

    other = await api.post("/tx", api.transfer("order-1", payload={"to": RECEIVER, "value": 2}))
    assert other.problem == (409, "request_conflict", "requestId")
    assert other.json["txId"] == tx_id


async def test_another_spelling_of_the_same_payload_is_a_duplicate(api: ApiServer) -> None:
    spelt: list[dict[str, Any]] = [
        {"to": RECEIVER, "value": 255},
        {"to": RECEIVER, "value": "255"},
        {"to": RECEIVER.upper().replace("0X", "0x"), "value": "0xff", "data": "0x", "type": "0x2"},
        {"to": RECEIVER, "value": 255, "data": None, "accessList": []},
    ]
    answers = [await api.post("/tx", api.transfer("same", payload=payload)) for payload in spelt]
    assert [answer.status for answer in answers] == [202, 200, 200, 200]
    assert len({answer.json["txId"] for answer in answers}) == 1


async def test_submitter_is_an_alias_of_signer(api: ApiServer) -> None:
    asked = api.transfer("named")
    asked["submitter"] = asked.pop("signer")
    assert (await api.post("/tx", asked)).status == 202
    both = await api.post("/tx", api.transfer("named", submitter=api.signers[1]))
    assert both.problem == (400, "field_invalid", "submitter")


async def test_the_idempotency_key_is_the_request_id_of_a_request_without_one(api: ApiServer) -> None:
    key = {"Idempotency-Key": "from-the-header"}
    first = await api.post("/tx", api.transfer(), headers=key)
    again = await api.post("/tx", api.transfer(), headers=key)
    assert (first.status, again.status) == (202, 200)
    assert first.json["txId"] == again.json["txId"]
    named = await api.post("/tx", api.transfer("its-own"), headers=key)
    assert named.status == 202, "the body's own name wins"
    assert named.json["requestId"] == "its-own"


@pytest.mark.parametrize("milestone", ["allocated", "submitted", "mined", "finished", "confirmed"])
async def test_a_waiting_call_is_answered_when_the_milestone_is_reached(
    api: ApiServer, milestone: str
) -> None:
    answer = await api.post("/tx", api.transfer("w"), wait=milestone, timeout=60)
    assert answer.status == 200
    assert answer.json["hash"].startswith("0x")
    if milestone in ("finished", "confirmed"):
        assert answer.json["state"] == "CONFIRMED"
        assert answer.json["blockNumber"] > 0


async def test_prefer_wait_returns_the_hash(api: ApiServer) -> None:
    answer = await api.post("/tx", api.transfer("p"), headers={"Prefer": "respond-async, wait=20"})
    assert answer.status == 200
    assert answer.json["hash"].startswith("0x")


async def test_a_wait_that_times_out_returns_the_current_state(dsn: str, anvil: TestChain) -> None:
    await anvil.call("evm_setAutomine", False)
    async with open_api(dsn, anvil) as api:
        sent = await api.post("/tx", api.transfer("slow"), wait="submitted", timeout=60)
        assert sent.status == 200
        answer = await api.post("/tx", api.transfer("slow"), wait="mined", timeout=1)
        assert answer.status == 202
        assert answer.json["state"] == "SUBMITTED"
        assert answer.json["hash"].startswith("0x")
        waited = api.get(f"/tx/{answer.json['txId']}", wait="confirmed", timeout=60)
        mined, _ = await asyncio.gather(waited, anvil.mine())
        assert (mined.status, mined.json["state"]) == (200, "CONFIRMED")


async def test_a_caller_that_disconnects_changes_nothing(dsn: str, anvil: TestChain) -> None:
    await anvil.call("evm_setAutomine", False)
    async with open_api(dsn, anvil) as api:
        caller = asyncio.create_task(api.post("/tx", api.transfer("gone"), wait="confirmed", timeout=60))

        async def is_out() -> bool:
            found = await api.get("/tx/by-request", signer=api.signers[0], requestId="gone")
            return found.status == 200 and found.json["state"] == "SUBMITTED"

        await eventually(is_out)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        await anvil.mine()
        found = await api.get("/tx/by-request", signer=api.signers[0], requestId="gone")
        done = await api.get(f"/tx/{found.json['txId']}", wait="confirmed", timeout=60)
        assert done.json["state"] == "CONFIRMED"


async def test_calls_by_signature_and_by_abi_and_a_deployment_are_mined(
    api: ApiServer, anvil: TestChain
) -> None:
    # Code that stores the constructor's word at slot 0 and deploys an empty contract.
    code = "0x602080380360003960005160005560006000f3"
    abi = [
        {"type": "constructor", "inputs": [{"name": "n", "type": "uint256"}]},
        {"type": "function", "name": "set", "inputs": [{"name": "n", "type": "uint256"}]},
    ]
    deployed = await api.post(
        "/tx",
        api.transfer("deploy", payload={"data": code, "abi": abi, "args": ["0x2a"]}),
        wait="confirmed",
        timeout=60,
    )
    assert deployed.json["state"] == "CONFIRMED", deployed
    shown = await api.get(f"/tx/{deployed.json['txId']}", include="receipt,payload")
    contract = shown.json["receipt"]["contractAddress"]
    assert int(await anvil.call("eth_getStorageAt", contract, "0x0", "latest"), 16) == 42
    assert shown.json["payload"]["data"].endswith(f"{42:064x}")
    calls: list[dict[str, Any]] = [
        {"method": "set(uint256)", "args": [7]},
        {"method": "set", "abi": abi, "args": ["7"]},
    ]
    datas = []
    for number, payload in enumerate(calls):
        answer = await api.post("/tx", api.transfer(f"call-{number}", payload=payload | {"to": contract}))
        assert answer.status == 202, answer
        found = await api.get(f"/tx/{answer.json['txId']}", include="payload")
        datas.append(found.json["payload"]["data"])
    assert datas == ["0x60fe47b1" + f"{7:064x}"] * 2


async def test_every_transaction_type_is_mined(api: ApiServer, anvil: TestChain) -> None:
    payloads: list[dict[str, Any]] = [
        {"type": 0, "gasPrice": "3000000000"},
        {"gasPrice": 3_000_000_000, "accessList": [{"address": RECEIVER, "storageKeys": ["0x" + "01" * 32]}]},
        {"fees": {"maxFeePerGas": "0xb2d05e00", "maxPriorityFeePerGas": 1}, "gas": "50000"},
    ]
    hashes = []
    for number, payload in enumerate(payloads):
        asked = api.transfer(f"kind-{number}", payload={"to": RECEIVER, "value": 1} | payload)
        answer = await api.post("/tx", asked, wait="mined", timeout=60)
        assert answer.status == 200, answer
        hashes.append(answer.json["hash"])
    mined = [await anvil.call("eth_getTransactionByHash", tx_hash) for tx_hash in hashes]
    assert [tx["type"] for tx in mined] == ["0x0", "0x1", "0x2"]
    assert mined[2]["gas"] == hex(50_000)


async def test_an_expired_request_is_dropped_without_a_nonce(dsn: str, anvil: TestChain) -> None:
    await anvil.call("evm_setAutomine", False)
    async with open_api(dsn, anvil, api__expose_nonce="true") as api:
        await api.post("/tx", api.transfer("ahead"), wait="submitted", timeout=60)
        soon = (datetime.now(UTC) + timedelta(seconds=3)).isoformat()
        waiting = await api.post("/tx", api.transfer("late", validUntil=soon))
        assert waiting.status == 202
        await asyncio.sleep(3.1)  # only the passage of time can expire it
        await anvil.mine()
        done = await api.get(f"/tx/{waiting.json['txId']}", wait="confirmed", timeout=60)
        assert done.json["state"] in ("CANCELLED", "FAILED")
        assert done.json["nonce"] is None


async def test_a_batch_returns_a_result_per_item_and_a_bad_item_fails_alone(api: ApiServer) -> None:
    await api.post("/tx", api.transfer("known"))
    asked = [
        api.transfer("b-0"),
        {"nonsense": True},
        api.transfer("known"),
        api.transfer("known", payload={"to": RECEIVER, "value": 9}),
        api.transfer("b-0"),
        api.transfer("b-1", signer="0x" + "99" * 20),
        7,
        api.transfer("b-2"),
    ]
    answer = await api.post("/tx/batch", {"requests": asked})
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
        done = await api.get(f"/tx/{result['tx']['txId']}", wait="confirmed", timeout=60)
        assert done.json["state"] == "CONFIRMED"


async def test_a_batch_accepts_a_thousand_requests_and_keeps_their_order(dsn: str, anvil: TestChain) -> None:
    await anvil.call("evm_setAutomine", False)
    async with open_api(dsn, anvil) as api:
        requests = [api.transfer(f"n-{number:04}") for number in range(1000)]
        answer = await api.post("/tx/batch", {"requests": requests})
        assert {result["status"] for result in answer.json["results"]} == {202}
        oldest = await api.running.pool.fetch("SELECT request_id FROM managed_tx ORDER BY seq")
        assert [row["request_id"] for row in oldest] == [request["requestId"] for request in requests]
        again = await api.post("/tx/batch", {"requests": requests})
        assert {result["status"] for result in again.json["results"]} == {200}
        more = await api.post("/tx/batch", {"requests": [*requests, api.transfer("one-more")]})
        assert more.problem == (400, "field_invalid", "requests")
        assert (await api.post("/tx/batch", {"requests": []})).problem[:2] == (400, "field_invalid")


async def test_with_intake_leader_another_node_names_the_lease_holder(dsn: str, anvil: TestChain) -> None:
    async with open_api(dsn, anvil, node__id="first", api__intake="leader") as first:
        done = await first.post("/tx", first.transfer("l-1"), wait="confirmed", timeout=60)
        assert done.status == 200, "a free signer is acquired and then held"
        async with open_api(dsn, anvil, node__id="second", api__intake="leader") as second:
            refused = await second.post("/tx", second.transfer("l-2"))
            assert refused.problem == (409, "not_leader", "signer")
            assert refused.json["owner"] == "first"
            assert int(refused.headers["Retry-After"]) >= 1
            batch = await second.post("/tx/batch", {"requests": [second.transfer("l-3")]})
            assert batch.json["results"][0]["problem"]["code"] == "not_leader"
        assert (await first.post("/tx", first.transfer("l-2"))).status == 202


async def test_a_slow_commit_is_answered_as_busy(api: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The database hangs: the caller is asked to retry, and its request is still accepted once."""
    real = PostgresLedger.accept
    goes_on = asyncio.Event()

    async def hanging(ledger: PostgresLedger, requests: Sequence[NewRequest]) -> Sequence[Accepted]:
        await goes_on.wait()
        return await real(ledger, requests)

    monkeypatch.setattr(PostgresLedger, "accept", hanging)
    monkeypatch.setattr(pipeline, "RESPONSE_TIMEOUT_S", 0.3 - MAX_WAIT_S)
    with bind("127.0.0.1", 0) as listener:
        async with serve(create_app(api.services), listener) as url:
            impatient = replace(api, url=url)
            answers = await asyncio.gather(*(impatient.post("/tx", api.transfer("slow")) for _ in range(3)))
            assert [answer.problem for answer in answers] == [(503, "busy", None)] * 3
            assert {answer.headers["Retry-After"] for answer in answers} == {"1"}
    goes_on.set()
    first = await api.post("/tx", api.transfer("slow"))
    again = await api.post("/tx", api.transfer("slow"))
    assert (first.status, again.status) == (202, 200)
    assert first.json["txId"] == again.json["txId"]
