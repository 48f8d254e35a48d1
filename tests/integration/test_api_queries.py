"""Queries over HTTP: one transaction in full, consistent pages, completions without gaps, signers, nodes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

from fencepost.adapters.evm.endpoints import Endpoints
from fencepost.api.transactions import SILENT_AFTER_S
from fencepost.application.api_keys import Scope
from fixtures.anvil import TestChain
from fixtures.api import RECEIVER, ApiServer, open_api


async def sent(api: ApiServer, request_id: str, **more: Any) -> dict[str, Any]:
    answer = await api.post("/tx", api.transfer(request_id, **more), wait="confirmed", timeout=60)
    assert answer.status == 200, answer
    assert isinstance(answer.json, dict)
    return answer.json


async def test_a_transaction_is_returned_with_all_details(api: ApiServer, anvil: TestChain) -> None:
    tx = await sent(api, "all", tags=["t"])
    plain = (await api.get(f"/tx/{tx['txId']}")).json
    assert not {"attempts", "receipt", "confirmations", "history", "payload"} & set(plain)
    full = (await api.get(f"/tx/{tx['txId']}", include="attempts,receipt,confirmations,history,payload")).json
    assert full["tags"] == ["t"]
    assert full["createdAt"] <= full["updatedAt"]
    assert full["finishedAt"]
    assert [attempt["hash"] for attempt in full["attempts"]] == [full["hash"]]
    assert full["attempts"][0]["lastResult"] == "accepted"
    assert full["attempts"][0]["feeSource"] == "node"
    assert full["receipt"]["transactionHash"] == full["hash"]
    assert full["confirmations"] == {"count": 0, "required": 0, "blocks": [], "newFork": False}
    assert full["payload"]["to"] == RECEIVER
    assert await anvil.call("eth_getTransactionByHash", full["hash"])


async def test_the_fees_of_a_chain_are_listed_by_tier(api: ApiServer) -> None:
    chain_id = (await api.get("/version")).json["chainIds"][0]
    fees = (await api.get(f"/chains/{chain_id}/fees")).json
    assert (fees["chainId"], fees["configured"], fees["source"]) == (chain_id, "node", "node")
    prices = [int(fees[tier]["maxFeePerGas"]) for tier in ("slow", "normal", "fast", "urgent")]
    assert 0 < prices[0] < prices[1] <= prices[2] < prices[3] <= int(fees["cap"])
    for unknown in ("7", "x", "9" * 30):
        answer = await api.get(f"/chains/{unknown}/fees")
        assert (answer.status, answer.json["code"]) == (400, "chain_unknown")


async def test_a_request_pays_the_price_of_its_tier(api: ApiServer) -> None:
    body = api.transfer("tiered")
    body["payload"]["feeTier"] = "urgent"
    tx = (await api.post("/tx", body, wait="confirmed", timeout=60)).json
    full = (await api.get(f"/tx/{tx['txId']}", include="attempts,payload")).json
    assert full["payload"]["tier"] == "urgent"
    normal = await sent(api, "normal")
    other = (await api.get(f"/tx/{normal['txId']}", include="attempts")).json
    assert int(full["attempts"][0]["maxFeePerGas"]) > int(other["attempts"][0]["maxFeePerGas"])
    body["requestId"] = "both"
    body["payload"]["fees"] = {"maxFeePerGas": "1", "maxPriorityFeePerGas": "1"}
    answer = await api.post("/tx", body)
    assert (answer.status, answer.json["field"]) == (400, "payload.feeTier")


async def test_the_history_lists_each_phase_once_with_its_actions(api: ApiServer) -> None:
    tx = await sent(api, "reported")
    full = (await api.get(f"/tx/{tx['txId']}", include="history")).json
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


async def test_a_transaction_is_found_by_request_id_and_by_the_hash_of_any_attempt(
    dsn: str, anvil: TestChain
) -> None:
    await anvil.call("evm_setAutomine", False)
    async with open_api(dsn, anvil) as api:
        tx = (await api.post("/tx", api.transfer("bumped"), wait="submitted", timeout=60)).json
        cancelled = await api.post(f"/tx/{tx['txId']}/cancel", timeout=60)
        assert cancelled.json["done"], cancelled
        found = await api.get("/tx/by-request", signer=api.signers[0], requestId="bumped", include="attempts")
        hashes = [attempt["hash"] for attempt in found.json["attempts"]]
        assert len(hashes) == 2
        for tx_hash in (hashes[0], hashes[1].upper().replace("0X", "0x")):
            assert (await api.get(f"/tx/by-hash/{tx_hash}")).json["txId"] == tx["txId"]
        assert (await api.get("/tx/by-hash/0x" + "00" * 32)).problem == (404, "tx_not_found", None)
        assert (await api.get("/tx/by-hash/0x12")).problem == (400, "field_invalid", "hash")
        named = await api.get("/tx/by-request", submitter=api.signers[0], requestId="bumped")
        assert named.json["txId"] == tx["txId"]
        both = {"signer": api.signers[0], "submitter": api.signers[1]}
        differ = await api.get("/tx/by-request", requestId="bumped", **both)
        assert differ.problem == (400, "field_invalid", "submitter")
        without_signer = await api.get("/tx/by-request", requestId="bumped")
        assert without_signer.problem == (400, "field_missing", "signer")
        listed = [(await api.get("/tx", submitter=signer)).json["items"] for signer in api.signers[:2]]
        assert [len(items) for items in listed] == [1, 0]
        missing = await api.get("/tx/by-request", signer=api.signers[0], requestId="unknown")
        assert missing.problem == (404, "tx_not_found", None)
        assert (await api.get("/tx/not-an-id")).problem[1] == "tx_not_found"


@pytest_asyncio.fixture
async def quiet(dsn: str, anvil: TestChain) -> AsyncIterator[ApiServer]:
    """Serve a node whose signers are paused: stored requests stay QUEUED."""
    async with open_api(dsn, anvil) as api:
        for signer in api.signers:
            assert (await api.post(f"/signers/{signer}/pause", timeout=60)).json["done"]
        yield api


async def stored(api: ApiServer, *asked: dict[str, Any]) -> list[str]:
    answer = await api.post("/tx/batch", {"requests": list(asked)})
    assert {result["status"] for result in answer.json["results"]} == {202}, answer
    return [result["tx"]["txId"] for result in answer.json["results"]]


async def test_pages_stay_consistent_while_rows_are_added(quiet: ApiServer) -> None:
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


async def test_a_list_is_filtered_by_signer_state_time_and_tags(quiet: ApiServer) -> None:
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


async def test_completions_come_once_each_in_a_stable_order(api: ApiServer) -> None:
    ids = [(await sent(api, f"c-{number}"))["txId"] for number in range(5)]
    dropped = (await api.post("/tx", api.transfer("x", signer=api.signers[1]))).json["txId"]
    await api.get(f"/tx/{dropped}", wait="confirmed", timeout=60)
    shown = await api.completions(6, limit=2)
    assert [item["txId"] for item in shown] == [*ids, dropped]
    after = shown[-1]["cursor"]
    rest = (await api.get("/completions", after=after)).json
    assert rest == {"items": [], "next": after}
    assert (await api.get("/completions", after="nonsense")).problem == (400, "cursor_invalid", "cursor")


async def test_a_completion_that_commits_late_is_not_skipped(quiet: ApiServer, dsn: str) -> None:
    """Two writers: the one that began first commits last. Its row has the smaller number and must still be returned."""
    early, late = await stored(quiet, quiet.transfer("early"), quiet.transfer("late"))
    finish = (
        "INSERT INTO journal_batch (chain_id, signer, tx_ids, events, states)"
        " SELECT chain_id, signer, ARRAY[tx_id], '{Finish}', '{CONFIRMED}' FROM managed_tx WHERE tx_id = $1"
    )
    slow, quick = await asyncpg.connect(dsn), await asyncpg.connect(dsn)
    try:
        open_one = slow.transaction()
        await open_one.start()
        await slow.execute(finish, early)
        await quick.execute(finish, late)
        first = (await quiet.get("/completions")).json
        assert first["items"] == [], "a row above an open transaction is not listed yet"
        await open_one.commit()
        shown = await quiet.completions(2)
        assert [item["txId"] for item in shown] == [early, late]
    finally:
        await slow.close()
        await quick.close()


async def test_signers_are_listed_and_shown_in_detail(api: ApiServer, anvil: TestChain) -> None:
    await sent(api, "s")
    first = api.signers[0]
    listed = (await api.get("/signers")).json["items"]
    assert {item["address"] for item in listed} == set(api.signers)
    assert all("balanceWei" not in item for item in listed)
    paged: list[str] = []
    query: dict[str, Any] = {"limit": 2}
    for _ in range(3):
        page = (await api.get("/signers", **query)).json
        paged += [item["address"] for item in page["items"]]
        if page["next"] is None:
            break
        query["cursor"] = page["next"]
    assert paged == sorted(api.signers)

    api = api.with_token(await api.key(Scope.ADMIN))
    signer = (await api.get(f"/signers/{first}")).json
    assert (signer["state"], signer["mode"], signer["maxInFlight"]) == ("ACTIVE", "strict", 1)
    assert (signer["nextNonce"], signer["chainNonces"]) == (1, {"latest": 1, "pending": 1})
    assert signer["lease"]["held"]
    assert signer["lease"]["owner"] == api.running.node.name
    assert int(signer["balanceWei"]) == int(await anvil.call("eth_getBalance", first, "latest"), 16)
    assert (signer["inFlight"], signer["queued"]) == (0, 0)
    assert (await api.get("/signers/0x" + "99" * 20)).problem == (404, "signer_not_found", "address")
    assert (await api.get("/signers/0x12")).problem == (400, "address_invalid", "address")


async def test_nodes_health_readiness_and_version_are_reported(api: ApiServer) -> None:
    await sent(api, "n")
    nodes = (await api.get("/nodes")).json["items"]
    assert [(node["name"], node["isThis"], node["signers"]) for node in nodes] == [
        (api.running.node.name, True, 1)
    ]
    for prefix in ("/", "/api/v1"):
        assert (await api.get(f"{prefix}/healthz")).json == {"status": "ok"}
        assert (await api.get(f"{prefix}/readyz")).json["database"] is True
        assert (await api.get(f"{prefix}/version")).json["chainIds"] == [31337]


async def test_readiness_names_the_chain_that_is_silent(
    api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await api.get("//readyz")).json["silentChainIds"] == []
    monkeypatch.setattr(Endpoints, "silent_for_s", SILENT_AFTER_S)
    ready = await api.get("//readyz")
    assert (ready.status, ready.json["silentChainIds"]) == (200, [31337])
    assert (ready.json["intake"], ready.json["sending"]) == (True, False)


async def test_a_silent_chain_makes_a_node_unready_if_the_settings_say_so(
    dsn: str, anvil: TestChain, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_api(dsn, anvil, api__ready_needs_chain="true") as api:
        assert (await api.get("//readyz")).json["sending"] is True
        monkeypatch.setattr(Endpoints, "silent_for_s", SILENT_AFTER_S)
        ready = await api.get("//readyz")
        assert ready.problem[:2] == (503, "chain_unavailable")
        assert "intake works, sending does not" in ready.json["detail"]


async def test_the_nonce_is_hidden_without_the_permission_to_see_it(dsn: str, anvil: TestChain) -> None:
    async with open_api(dsn, anvil) as api:
        tx = await sent(api, "hidden")
        # A caller without a key may do everything, and still sees no nonce.
        assert "nonce" not in (await api.get(f"/tx/{tx['txId']}")).json
        assert {"nextNonce", "startNonce", "chainNonces"}.isdisjoint(
            (await api.get(f"/signers/{api.signers[0]}")).json
        )
        assert "nonce" not in (await api.completions(1))[0]
        reader = api.with_token(await api.key(Scope.TX_READ))
        operator = api.with_token(await api.key(Scope.OPERATOR))
        assert "nonce" not in (await reader.get(f"/tx/{tx['txId']}")).json
        assert "nextNonce" not in (await reader.get(f"/signers/{api.signers[0]}")).json
        assert "nonce" not in (await reader.completions(1))[0]
        assert (await operator.get(f"/tx/{tx['txId']}")).json["nonce"] == 0
    async with open_api(dsn, anvil, api__expose_nonce="true") as api:
        reader = api.with_token(await api.key(Scope.TX_READ))
        assert (await reader.get(f"/tx/{tx['txId']}")).json["nonce"] == 0


async def test_confirmations_report_the_last_fork_and_the_blocks_it_replaced(
    api: ApiServer, dsn: str
) -> None:
    tx = await sent(api, "forked")
    gone = [[7, "0x" + "ab" * 32], [8, "0x" + "cd" * 32]]
    connection = await asyncpg.connect(dsn)
    try:
        for replaced in ([], gone):
            await connection.execute(
                "INSERT INTO journal_batch (chain_id, signer, id_prefix, tx_ids, events, states, details)"
                " VALUES ($1, $2, left($3, 11), ARRAY[$3::uuid], '{Fork}', '{TRACKING}', $4)",
                tx["chainId"],
                tx["signer"],
                tx["txId"],
                json.dumps([{"newFork": True, "replaced": replaced}]),
            )
    finally:
        await connection.close()
    shown = (await api.get(f"/tx/{tx['txId']}", include="confirmations")).json["confirmations"]
    assert shown["newFork"]
    assert shown["forkedAt"]
    assert shown["replaced"] == [{"number": number, "hash": block_hash} for number, block_hash in gone]


async def test_the_history_counts_repeats_that_the_journal_omits(api: ApiServer, dsn: str) -> None:
    tx = await sent(api, "repeated")
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(
            'UPDATE managed_tx SET submit_count = 41, sends = \'[[41, "accepted", ""]]\','
            " journal_count = journal_count + 80 WHERE tx_id = $1::uuid",
            tx["txId"],
        )
    finally:
        await connection.close()
    full = (await api.get(f"/tx/{tx['txId']}", include="history")).json
    counted = {line["action"]: line["count"] for line in full["historySummary"] if "action" in line}
    assert (counted["SendResult"], counted["Resubmit"], full["submitCount"]) == (41, 40, 41)
