"""Events over HTTP: a transaction's life, the long poll, filters, and what a key may see."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from fencepost.api import pipeline
from fencepost.application.api_keys import Scope
from fencepost.client import AsyncClient
from fencepost.events.log import Place
from fixtures.anvil import TestChain
from fixtures.api import ApiServer, open_api
from fixtures.core import eventually

LIFE = ["tx.queued", "tx.allocated", "tx.submitted", "tx.mined", "tx.confirmed"]


async def read(api: ApiServer, *, until: str = "tx.confirmed", **query: Any) -> list[dict[str, Any]]:
    """Read events page by page until one of the type has come."""
    found: list[dict[str, Any]] = []
    after = ""

    async def came() -> bool:
        nonlocal after
        answer = await api.get("/events", after=after, **query)
        assert answer.status == 200, answer
        found.extend(answer.json["items"])
        after = answer.json["next"]
        return any(event["type"] == until for event in found)

    await eventually(came)
    return found


async def finished(api: ApiServer, request_id: str, **more: Any) -> Mapping[str, Any]:
    answer = await api.post("/tx", api.transfer(request_id, **more), wait="finished", timeout=60)
    assert answer.status == 200, answer
    tx: Mapping[str, Any] = answer.json
    return tx


async def test_the_events_of_a_transaction_tell_its_life_in_order(api: ApiServer) -> None:
    tx = await finished(api, "life")
    events = await read(api)
    assert [event["type"] for event in events if event["type"] in LIFE] == LIFE
    assert [event["id"] for event in events] == sorted(event["id"] for event in events)
    sequences = [int(event["sequence"]) for event in events]
    assert sequences == sorted(set(sequences))
    last = events[-1]
    assert last["signer"] == api.signers[0]
    assert last["data"]["state"] == "CONFIRMED"
    assert last["data"]["newFork"] is False
    assert last["data"]["tx"]["txId"] == tx["txId"]
    assert "nonce" not in str(events)


async def test_filters_select_by_type_signer_and_tag(api: ApiServer) -> None:
    await finished(api, "tagged", tags=["gold"])
    await finished(api, "plain", signer=api.signers[1])
    gold = await read(api, tag="gold", types="tx.queued,tx.confirmed")
    assert [(event["type"], event["data"]["tx"]["requestId"]) for event in gold] == [
        ("tx.queued", "tagged"),
        ("tx.confirmed", "tagged"),
    ]
    other = await read(api, signer=api.signers[1])
    assert {event["signer"] for event in other} == {api.signers[1]}


async def test_a_long_poll_returns_with_the_next_event(api: ApiServer) -> None:
    start = (await api.get("/events", after="now")).json["next"]
    polling = asyncio.create_task(api.get("/events", after=start, types="tx.confirmed", wait=60))
    await finished(api, "awaited")
    answer = await polling
    assert [event["data"]["tx"]["requestId"] for event in answer.json["items"]] == ["awaited"]


async def test_a_long_poll_may_last_longer_than_other_requests(
    dsn: str, anvil: TestChain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "RESPONSE_TIMEOUT_S", 0.3)
    async with open_api(dsn, anvil) as api:
        answer = await api.get("/events", after="now", wait=1)
        assert (answer.status, answer.json["items"]) == (200, [])


async def test_a_key_sees_only_the_events_of_its_signers(api: ApiServer) -> None:
    token = await api.key(Scope.TX_READ, signers=frozenset({api.signers[1]}))
    admin = api.with_token(await api.key(Scope.TX_READ, Scope.TX_WRITE, name="both"))
    await finished(admin, "first")
    await finished(admin, "second", signer=api.signers[1])
    seen = await read(api.with_token(token))
    assert {event["signer"] for event in seen} == {api.signers[1]}
    named = await api.with_token(token).get("/events", signer=api.signers[0])
    assert named.json["items"] == []
    assert (await api.get("/events")).status == 401


async def test_an_operator_sees_the_signers_own_events(api: ApiServer) -> None:
    await api.post(f"/signers/{api.signers[0]}/pause", {"reason": "lunch"}, timeout=60)
    events = await read(api, until="signer.paused")
    assert events[-1]["data"] == {"reason": "lunch"}


async def test_bad_cursors_and_types_are_rejected(api: ApiServer) -> None:
    assert (await api.get("/events", after="evt_12")).problem == (400, "cursor_invalid", "after")
    assert (await api.get("/events", after=Place(1, 1, 2**63).id)).problem[:2] == (400, "cursor_invalid")
    assert (await api.get("/events", types="tx.unheard")).problem[:2] == (400, "query_invalid")
    assert (await api.get("/events", wait="-1")).problem[:2] == (400, "query_invalid")


async def test_a_reader_behind_the_retention_gets_an_error(api: ApiServer) -> None:
    await finished(api, "old")
    events = await read(api)
    await api.running.pool.execute(
        "UPDATE managed_tx SET finished_at = finished_at - interval '40 days', created_at = created_at - interval '40 days'"
    )
    await api.running.pool.execute("UPDATE journal_batch SET at = at - interval '40 days'")
    assert await api.running.events.log.prune(older_than_s=30 * 86_400) > 0
    answer = await api.get("/events", after=events[0]["id"])
    assert answer.problem == (410, "events_expired", "after")
    assert (await api.get("/events")).status == 200


async def test_the_sdk_iterates_over_the_same_events(dsn: str, anvil: TestChain) -> None:
    async with open_api(dsn, anvil) as api, AsyncClient(api.url) as client:
        await finished(api, "iterated")
        seen = []
        async with asyncio.timeout(60):
            async for event in client.events():
                seen.append(event.id)
                if event.type == "tx.confirmed":
                    break
        listed = await read(api)
        assert seen == [event["id"] for event in listed]


async def test_the_openapi_document_describes_every_event(api: ApiServer) -> None:
    document = (await api.get("//openapi.json")).json
    assert set(LIFE) <= set(document["webhooks"])
    assert "EventOut" in document["components"]["schemas"]
