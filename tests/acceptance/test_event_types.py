"""Every type of event, provoked on a real chain and database, and read as a caller reads it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

from fencepost.adapters.postgres.database import open_pool
from fencepost.adapters.postgres.event_log import PostgresEventLog
from fencepost.adapters.postgres.nodes import PostgresMembers
from fencepost.application.membership import Member
from fencepost.events.log import BEGINNING
from fencepost.events.reader import EventReader
from fencepost.events.types import EventType
from fixtures.api import ApiServer, open_api
from fixtures.core import OwnChain, eventually

REQUIRED = 2
PATIENT_S = 60


async def until_event(api: ApiServer, kind: str, *, times: int = 1) -> list[dict[str, Any]]:
    """Read all events until one of the type has come so often."""
    found: list[dict[str, Any]] = []
    after = ""

    async def came() -> bool:
        nonlocal after
        answer = await api.get("/events", after=after, limit=500)
        found.extend(answer.json["items"])
        after = answer.json["next"]
        return sum(bool(event["type"] == kind) for event in found) >= times

    await eventually(came)
    sequences = [int(event["sequence"]) for event in found if event["signer"] is not None]
    assert sequences == sorted(set(sequences))
    assert "nonce" not in {key for event in found for key in event["data"].get("tx", {})}
    return [event for event in found if event["type"] == kind]


async def submit(api: ApiServer, request_id: str, **payload: Any) -> str:
    body = api.transfer(request_id)
    body["payload"] |= payload
    answer = await api.post("/tx", body)
    assert answer.status == 202, answer
    return str(answer.json["txId"])


async def block(chain: OwnChain, number: int) -> dict[str, Any]:
    found = await chain.call("eth_getBlockByNumber", hex(number), False)
    return {"number": number, "hash": found["hash"]}


async def test_a_life_with_a_bump_and_a_fork_that_reopens_it(dsn: str, manual_chain: OwnChain) -> None:
    """tx.queued, allocated, submitted, replaced, mined, confirming, confirmed, new_fork and reopened."""
    async with open_api(dsn, manual_chain, confirmations__required=str(REQUIRED)) as api:
        tx_id = await submit(api, "forked")
        for kind in ("tx.queued", "tx.allocated", "tx.submitted"):
            (event,) = await until_event(api, kind)
            assert (event["data"]["tx"]["txId"], event["chainId"]) == (tx_id, manual_chain.chain_id)
        assert (await api.post(f"/tx/{tx_id}/bump", timeout=PATIENT_S)).status == 200
        (replaced,) = await until_event(api, "tx.replaced")
        assert replaced["data"]["attempt"] == 2
        await until_event(api, "tx.submitted", times=2)
        await manual_chain.mine()
        await until_event(api, "tx.mined")
        await manual_chain.mine()
        (confirming,) = await until_event(api, "tx.confirming")
        assert confirming["data"]["newFork"] is False
        await manual_chain.mine()
        (confirmed,) = await until_event(api, "tx.confirmed")
        assert confirmed["data"]["state"] == "CONFIRMED"
        await manual_chain.reorg(REQUIRED + 1)
        (fork,) = await until_event(api, "tx.new_fork")
        (reopened,) = await until_event(api, "tx.reopened")
        for event in (fork, reopened):
            assert (event["data"]["newFork"], event["data"]["confirmations"]) == (True, [])
        assert int(confirmed["sequence"]) < int(fork["sequence"]) < int(reopened["sequence"])
        assert len(fork["data"]["replaced"]) == REQUIRED + 1


async def test_a_fork_above_the_transaction_has_the_full_new_list(dsn: str, manual_chain: OwnChain) -> None:
    async with open_api(dsn, manual_chain, confirmations__required="5") as api:
        await submit(api, "above")
        await until_event(api, "tx.submitted")
        await manual_chain.mine()
        await until_event(api, "tx.mined")
        for times in (1, 2):
            await manual_chain.mine()
            await until_event(api, "tx.confirming", times=times)
        await manual_chain.reorg(2)
        (fork, *_) = await until_event(api, "tx.new_fork")
        head = int(await manual_chain.call("eth_blockNumber"), 16)
        mined_at = fork["data"]["tx"]["blockNumber"]
        expected = [await block(manual_chain, number) for number in range(mined_at + 1, head + 1)]
        assert fork["data"]["newFork"] is True
        assert fork["data"]["confirmations"] == expected


async def test_requests_that_fail_wait_or_are_cancelled(dsn: str, manual_chain: OwnChain) -> None:
    """tx.failed, tx.waiting, signer.unfunded, signer.low_balance, signer.paused, tx.cancelled and signer.resumed."""
    async with open_api(dsn, manual_chain, funds__low_balance="100000000000000000") as api:
        signer = api.signers[0]
        await api.post("/tx", {"signer": signer, "requestId": "reverts", "payload": {"data": "0xfe"}})
        (failed,) = await until_event(api, "tx.failed")
        assert failed["data"]["error"]
        tx_id = await submit(api, "too dear", value=str(10**24))
        (waiting,) = await until_event(api, "tx.waiting")
        (unfunded,) = await until_event(api, "signer.unfunded")
        assert waiting["data"]["tx"]["txId"] == tx_id
        assert int(unfunded["data"]["missingWei"]) > 9 * 10**23
        (low, *_) = await until_event(api, "signer.low_balance")
        assert (low["signer"], low["data"]["thresholdWei"]) == (signer, str(10**26))
        assert isinstance(low["data"]["balanceWei"], str)
        assert (await api.post(f"/signers/{signer}/pause", timeout=PATIENT_S)).status == 200
        await until_event(api, "signer.paused")
        assert (await api.post(f"/tx/{tx_id}/cancel", timeout=PATIENT_S)).status == 200
        await until_event(api, "tx.cancelled")
        assert (await api.post(f"/signers/{signer}/resume", timeout=PATIENT_S)).status == 200
        await until_event(api, "signer.resumed")


async def test_a_signer_in_protect_and_a_stuck_transaction(dsn: str, manual_chain: OwnChain) -> None:
    """tx.stuck, signer.protected and signer.unprotected."""
    async with open_api(dsn, manual_chain, resubmit__max_attempts="1", resubmit__interval="1s") as api:
        signer = api.signers[0]
        await submit(api, "never mined")
        (stuck,) = await until_event(api, "tx.stuck")
        assert stuck["data"]["reason"]
        assert (
            await api.post(f"/signers/{signer}/protect", {"reason": "odd"}, timeout=PATIENT_S)
        ).status == 200
        (protected,) = await until_event(api, "signer.protected")
        assert protected["data"]["reason"] == "odd"
        decision = {"decision": "keep", "reason": "checked"}
        answer = await api.post(f"/signers/{signer}/unprotect", decision, timeout=PATIENT_S)
        assert answer.status == 200, answer
        await until_event(api, "signer.unprotected")


async def test_a_price_above_the_cap(dsn: str, manual_chain: OwnChain) -> None:
    """signer.fee_cap_reached."""
    await manual_chain.call("anvil_setNextBlockBaseFeePerGas", hex(100 * 10**9))
    await manual_chain.mine()
    async with open_api(
        dsn,
        manual_chain,
        fees__source="fixed",
        fees__fixed_fee_cap="2",
        fees__fixed_tip="1",
        fees__cap="2",
        resubmit__interval="1s",
    ) as api:
        tx_id = await submit(api, "too cheap")
        (reached, *_) = await until_event(api, "signer.fee_cap_reached")
        assert reached["signer"] == api.signers[0]
        assert reached["data"]["tx"]["txId"] == tx_id
        assert reached["data"]["reason"]


async def test_stable_blocks_and_a_fork_below_their_depth(dsn: str, manual_chain: OwnChain) -> None:
    """block.stable and block.reorg."""
    await manual_chain.mine(5)
    async with open_api(dsn, manual_chain, chains__default__stable_depth="2") as api:
        (first,) = await until_event(api, "block.stable")
        assert (first["chainId"], first["signer"]) == (manual_chain.chain_id, None)
        assert first["data"]["block"] == await block(manual_chain, 3)
        await manual_chain.mine(2)
        stable = await until_event(api, "block.stable", times=3)
        assert [event["data"]["block"] for event in stable] == [
            await block(manual_chain, n) for n in (3, 4, 5)
        ]
        assert [event["data"]["parentHash"] for event in stable[1:]] == [
            event["data"]["block"]["hash"] for event in stable[:-1]
        ]
        await manual_chain.reorg(4)  # replaces the blocks 4 to 7
        await manual_chain.mine()
        (fork,) = await until_event(api, "block.reorg")
        assert fork["data"]["block"] == stable[0]["data"]["block"]
        assert fork["data"]["replaced"] == [event["data"]["block"] for event in stable[1:]]
        again = await until_event(api, "block.stable", times=6)
        assert [event["data"]["block"] for event in again[3:]] == [
            await block(manual_chain, n) for n in (4, 5, 6)
        ]


@asynccontextmanager
async def events_of(dsn: str) -> AsyncIterator[EventReader]:
    async with open_pool(dsn, size=2, connect_timeout_s=10, lease_duration_s=5, application="test") as pool:
        yield EventReader(PostgresEventLog(pool))


async def node_events(reader: EventReader) -> list[tuple[str, str | None, str | None]]:
    page = await reader.page(BEGINNING)
    kinds = {EventType.NODE_JOINED, EventType.NODE_LEFT}
    assert not [event for event in page.events if event.type in kinds and (event.chain_id or event.address)]
    return [(event.type.value, event.node, event.reason) for event in page.events if event.type in kinds]


async def test_a_node_joins_and_leaves(dsn: str, manual_chain: OwnChain) -> None:
    async with events_of(dsn) as reader:
        async with open_api(dsn, manual_chain, node__id="first") as api:
            (joined,) = await until_event(api, "node.joined")
            assert (joined["chainId"], joined["signer"], joined["data"]) == (None, None, {"node": "first"})

        async def has_left() -> bool:
            return ("node.left", "first", "it was stopped") in await node_events(reader)

        await eventually(has_left)
        assert len(await node_events(reader)) == 2


async def test_a_node_whose_heartbeats_stop_has_left_once(dsn: str) -> None:
    def members(pool: Any, name: str, live_for_s: float) -> PostgresMembers:
        me = Member(name=name, incarnation=uuid4(), mode="basic", serves="all")
        return PostgresMembers(pool, me=me, url=None, version="0", live_for_s=live_for_s)

    async with (
        open_pool(dsn, size=2, connect_timeout_s=10, lease_duration_s=5, application="test") as pool,
        events_of(dsn) as reader,
    ):
        lost, *others = members(pool, "lost", 0.0), members(pool, "a", 600), members(pool, "b", 600)
        for node in (lost, *others):
            assert await node.join()
        for node in (*others, *others):
            assert await node.beat()
        assert await lost.beat()  # it was only paused
        for node in others:
            assert await node.beat()
        assert await members(pool, "lost", 600).join()  # a restarted process, after the row was marked
        await others[0].leave()
        await others[0].leave()

        async def all_came() -> bool:
            return ("node.left", "a", "it was stopped") in await node_events(reader)

        await eventually(all_came)
        assert [event for event in await node_events(reader) if event[1] == "lost"] == [
            ("node.joined", "lost", None),
            ("node.left", "lost", "its heartbeats stopped"),
            ("node.joined", "lost", "its heartbeats returned"),
            ("node.left", "lost", "its heartbeats stopped"),
            ("node.joined", "lost", None),
        ]
        assert [event[0] for event in await node_events(reader) if event[1] == "a"] == [
            "node.joined",
            "node.left",
        ]


async def test_a_process_that_takes_the_name_of_a_dead_one_replaces_it(dsn: str) -> None:
    async with (
        open_pool(dsn, size=2, connect_timeout_s=10, lease_duration_s=5, application="test") as pool,
        events_of(dsn) as reader,
    ):
        for _ in range(2):
            me = Member(name="again", incarnation=uuid4(), mode="basic", serves="all")
            assert await PostgresMembers(pool, me=me, url=None, version="0", live_for_s=0.0).join()

        async def all_came() -> bool:
            return len(await node_events(reader)) == 3

        await eventually(all_came)
        assert await node_events(reader) == [
            ("node.joined", "again", None),
            ("node.left", "again", "another process took its name"),
            ("node.joined", "again", None),
        ]
