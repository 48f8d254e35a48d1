"""Looking over HTTP: one transaction in full, pages that stay right, completions that never skip, signers, nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest_asyncio

from fencepost.application.api_keys import Scope
from fix_anvil import TestChain
from fix_api import SOMEBODY, Door, open_door


async def sent(door: Door, request_id: str, **more: Any) -> dict[str, Any]:
    answer = await door.post("/tx", door.transfer(request_id, **more), wait="confirmed", timeout=60)
    assert answer.status == 200, answer
    assert isinstance(answer.json, dict)
    return answer.json


async def test_a_transaction_with_everything_that_is_known_about_it(door: Door, anvil: TestChain) -> None:
    tx = await sent(door, "all", tags=["t"])
    plain = (await door.get(f"/tx/{tx['txId']}")).json
    assert not {"attempts", "receipt", "confirmations", "history", "payload"} & set(plain)
    full = (
        await door.get(f"/tx/{tx['txId']}", include="attempts,receipt,confirmations,history,payload")
    ).json
    assert full["tags"] == ["t"]
    assert full["createdAt"] <= full["updatedAt"]
    assert full["finishedAt"]
    assert [attempt["hash"] for attempt in full["attempts"]] == [full["hash"]]
    assert full["attempts"][0]["lastResult"] == "accepted"
    assert full["receipt"]["transactionHash"] == full["hash"]
    assert full["confirmations"] == {"count": 0, "required": 0, "blocks": []}
    assert full["payload"]["to"] == SOMEBODY
    assert await anvil.call("eth_getTransactionByHash", full["hash"])


async def test_the_history_tells_each_stretch_once_with_what_was_done_in_it(door: Door) -> None:
    tx = await sent(door, "told")
    full = (await door.get(f"/tx/{tx['txId']}", include="history")).json
    statuses = [stretch["subStatus"] for stretch in full["history"]]
    assert statuses[0] == "Received"
    assert statuses[-1] == "Confirmed"
    assert len(statuses) == len(set(statuses))
    actions = [action["action"] for stretch in full["history"] for action in stretch["actions"]]
    ordered = ["Receive", "AssignNonce", "RetrieveGasPrice", "Sign", "SendResult", "ReceiveReceipt", "Finish"]
    assert [action for action in actions if action in ordered] == ordered
    counted = {line["action"]: line["count"] for line in full["historySummary"] if "action" in line}
    assert set(counted) == set(actions)
    assert counted["AssignNonce"] == 1
    assert not any(
        "nonce" in str(action.get("lastInfo", ""))
        for stretch in full["history"]
        for action in stretch["actions"]
    )


async def test_by_request_and_by_the_hash_of_any_attempt(dsn: str, anvil: TestChain) -> None:
    await anvil.call("evm_setAutomine", False)
    async with open_door(dsn, anvil) as door:
        tx = (await door.post("/tx", door.transfer("bumped"), wait="submitted", timeout=60)).json
        cancelled = await door.post(f"/tx/{tx['txId']}/cancel", timeout=60)
        assert cancelled.json["done"], cancelled
        found = await door.get(
            "/tx/by-request", signer=door.signers[0], requestId="bumped", include="attempts"
        )
        hashes = [attempt["hash"] for attempt in found.json["attempts"]]
        assert len(hashes) == 2
        for tx_hash in (hashes[0], hashes[1].upper().replace("0X", "0x")):
            assert (await door.get(f"/tx/by-hash/{tx_hash}")).json["txId"] == tx["txId"]
        assert (await door.get("/tx/by-hash/0x" + "00" * 32)).problem == (404, "tx_not_found", None)
        assert (await door.get("/tx/by-hash/0x12")).problem == (400, "field_invalid", "hash")
        missing = await door.get("/tx/by-request", signer=door.signers[0], requestId="nobody's")
        assert missing.problem == (404, "tx_not_found", None)
        assert (await door.get("/tx/not-an-id")).problem[1] == "tx_not_found"


@pytest_asyncio.fixture
async def quiet(dsn: str, anvil: TestChain) -> AsyncIterator[Door]:
    """A door whose signers are paused: what is stored stays QUEUED."""
    async with open_door(dsn, anvil) as door:
        for signer in door.signers:
            assert (await door.post(f"/signers/{signer}/pause", timeout=60)).json["done"]
        yield door


async def stored(door: Door, *asked: dict[str, Any]) -> list[str]:
    answer = await door.post("/tx/batch", {"requests": list(asked)})
    assert {result["status"] for result in answer.json["results"]} == {202}, answer
    return [result["tx"]["txId"] for result in answer.json["results"]]


async def test_pages_stay_right_while_rows_are_added(quiet: Door) -> None:
    before = await stored(quiet, *(quiet.transfer(f"r-{number}") for number in range(25)))
    seen: list[str] = []
    query: dict[str, Any] = {"limit": 7}
    for turn in range(10):
        page = (await quiet.get("/tx", **query)).json
        seen += [item["txId"] for item in page["items"]]
        await stored(quiet, *(quiet.transfer(f"new-{turn}-{number}") for number in range(3)))
        if page["next"] is None:
            break
        query["cursor"] = page["next"]
    assert seen == before[::-1], "each once, newest first, none of those that came later"


async def test_a_list_is_narrowed_by_signer_state_time_and_tags(quiet: Door) -> None:
    first, second = quiet.signers[:2]
    ids = await stored(
        quiet,
        quiet.transfer("a", tags=["red", "big"]),
        quiet.transfer("b", tags=["red"]),
        quiet.transfer("c", signer=second),
        quiet.transfer("d", signer=second, tags=["big"]),
    )

    async def listed(**query: Any) -> set[str]:
        answer = await quiet.get("/tx", **query)
        assert answer.status == 200, answer
        return {"abcd"[ids.index(item["txId"])] for item in answer.json["items"]}

    assert await listed() == set("abcd")
    assert await listed(signer=first) == set("ab")
    assert await listed(signer=f"{first},{second}") == set("abcd")
    assert await listed(tag="red") == set("ab")
    assert await listed(tag="red,big") == set("a")
    assert await listed(tag="big", signer=second) == set("d")
    assert await listed(tag="none") == set()
    assert await listed(state="QUEUED") == set("abcd")
    assert await listed(state="CONFIRMED,FAILED") == set()
    assert await listed(subState="STUCK") == set()
    times = [(await quiet.get(f"/tx/{tx_id}")).json["createdAt"] for tx_id in ids]
    assert await listed(createdFrom=min(times)) == set("abcd")
    assert await listed(createdBefore=min(times)) == set()
    assert await listed(chainId=31337) == set("abcd")
    faults: list[tuple[dict[str, Any], str | None]] = [
        ({"state": "NONE"}, "query_invalid"),
        ({"limit": 501}, "query_invalid"),
        ({"limit": 0}, "query_invalid"),
        ({"cursor": "x"}, "cursor_invalid"),
        ({"cursor": "9" * 30}, "cursor_invalid"),
        ({"offset": 3}, "query_invalid"),
        ({"createdFrom": "yesterday"}, "query_invalid"),
        ({"createdFrom": "2026-01-01T00:00:00"}, "query_invalid"),
        ({"signer": "0x12"}, "query_invalid"),
        ({"chainId": 5}, "chain_unknown"),
        ({"include": "history"}, "query_invalid"),
        ({"tag": "\0"}, None),
    ]
    for query, code in faults:
        answer = await quiet.get("/tx", **query)
        assert answer.status == (400 if code else 200), (query, answer)
        assert code is None or answer.json["code"] == code, (query, answer)


async def test_completions_come_once_each_in_an_order_that_goes_on(door: Door) -> None:
    ids = [(await sent(door, f"c-{number}"))["txId"] for number in range(5)]
    dropped = (await door.post("/tx", door.transfer("x", signer=door.signers[1]))).json["txId"]
    await door.get(f"/tx/{dropped}", wait="confirmed", timeout=60)
    told = await door.completions(6, limit=2)
    assert [item["txId"] for item in told] == [*ids, dropped]
    after = told[-1]["cursor"]
    rest = (await door.get("/completions", after=after)).json
    assert rest == {"items": [], "next": after}
    assert (await door.get("/completions", after="nonsense")).problem == (400, "cursor_invalid", "cursor")


async def test_a_completion_that_commits_late_is_not_skipped(quiet: Door, dsn: str) -> None:
    """Two writers: the one that began first commits last. Its row has the smaller number and must still be told."""
    early, late = await stored(quiet, quiet.transfer("early"), quiet.transfer("late"))
    finish = (
        "INSERT INTO journal_sheet (chain_id, signer, tx_ids, events, states)"
        " SELECT chain_id, signer, ARRAY[tx_id], '{Finish}', '{CONFIRMED}' FROM managed_tx WHERE tx_id = $1"
    )
    slow, quick = await asyncpg.connect(dsn), await asyncpg.connect(dsn)
    try:
        open_one = slow.transaction()
        await open_one.start()
        await slow.execute(finish, early)
        await quick.execute(finish, late)
        first = (await quiet.get("/completions")).json
        assert first["items"] == [], "a row above an open transaction is not told yet"
        await open_one.commit()
        told = await quiet.completions(2)
        assert [item["txId"] for item in told] == [early, late]
    finally:
        await slow.close()
        await quick.close()


async def test_signers_in_a_list_and_in_detail(door: Door, anvil: TestChain) -> None:
    await sent(door, "s")
    first = door.signers[0]
    listed = (await door.get("/signers")).json["items"]
    assert {item["address"] for item in listed} == set(door.signers)
    assert all("balanceWei" not in item for item in listed)
    paged: list[str] = []
    query: dict[str, Any] = {"limit": 2}
    for _ in range(3):
        page = (await door.get("/signers", **query)).json
        paged += [item["address"] for item in page["items"]]
        if page["next"] is None:
            break
        query["cursor"] = page["next"]
    assert paged == sorted(door.signers)

    signer = (await door.get(f"/signers/{first}")).json
    assert (signer["state"], signer["mode"], signer["maxInFlight"]) == ("ACTIVE", "strict", 1)
    assert (signer["nextNonce"], signer["chainNonces"]) == (1, {"latest": 1, "pending": 1})
    assert signer["lease"]["held"]
    assert signer["lease"]["owner"] == door.running.node.name
    assert int(signer["balanceWei"]) == int(await anvil.call("eth_getBalance", first, "latest"), 16)
    assert (signer["inFlight"], signer["queued"]) == (0, 0)
    assert (await door.get("/signers/0x" + "99" * 20)).problem == (404, "signer_not_found", "address")
    assert (await door.get("/signers/0x12")).problem == (400, "address_invalid", "address")


async def test_nodes_health_readiness_and_version(door: Door) -> None:
    await sent(door, "n")
    nodes = (await door.get("/nodes")).json["items"]
    assert [(node["name"], node["isThis"], node["signers"]) for node in nodes] == [
        (door.running.node.name, True, 1)
    ]
    for prefix in ("/", "/api/v1"):
        assert (await door.get(f"{prefix}/healthz")).json == {"status": "ok"}
        assert (await door.get(f"{prefix}/readyz")).json["database"] is True
        assert (await door.get(f"{prefix}/version")).json["chainIds"] == [31337]


async def test_the_nonce_is_hidden_from_those_who_need_not_know(dsn: str, anvil: TestChain) -> None:
    async with open_door(dsn, anvil) as door:
        tx = await sent(door, "hidden")
        reader = door.with_token(await door.key(Scope.TX_READ))
        operator = door.with_token(await door.key(Scope.OPERATOR))
        assert "nonce" not in (await reader.get(f"/tx/{tx['txId']}")).json
        assert "nextNonce" not in (await reader.get(f"/signers/{door.signers[0]}")).json
        assert "nonce" not in (await reader.completions(1))[0]
        assert (await operator.get(f"/tx/{tx['txId']}")).json["nonce"] == 0
    async with open_door(dsn, anvil, api__expose_nonce="true") as door:
        reader = door.with_token(await door.key(Scope.TX_READ))
        assert (await reader.get(f"/tx/{tx['txId']}")).json["nonce"] == 0
