"""What people ask over HTTP: cancel, suspend, resume, resubmit, bump; pause, drain, protect and the decision after it."""

from __future__ import annotations

from typing import Any

from fix_anvil import TestChain
from fix_api import SOMEBODY, Door, open_door
from fix_core import eventually

WITHIN: dict[str, Any] = {"timeout": 20}


async def test_cancel_before_a_nonce_drops_and_after_it_replaces(dsn: str, anvil: TestChain) -> None:
    await anvil.call("evm_setAutomine", False)
    async with open_door(dsn, anvil) as door:
        first = (await door.post("/tx", door.transfer("1"), wait="submitted", timeout=60)).json
        second = (await door.post("/tx", door.transfer("2"))).json
        dropped = await door.post(f"/tx/{second['txId']}/cancel", {"reason": "no more"}, **WITHIN)
        assert (dropped.status, dropped.json["tx"]["state"]) == (200, "CANCELLED")
        assert dropped.json["tx"]["error"] == "no more"
        again = await door.post(f"/tx/{second['txId']}/cancel", **WITHIN)
        assert again.problem == (409, "tx_ended", None)
        replaced = await door.post(f"/tx/{first['txId']}/cancel", **WITHIN)
        assert (replaced.status, replaced.json["outcome"]) == (200, "a filler goes for its nonce")
        asked = await door.get(replaced.headers["Location"])
        assert asked.json["done"]
        both_out = await door.get(f"/tx/{first['txId']}", include="attempts")
        assert [attempt["purpose"] for attempt in both_out.json["attempts"]] == ["intent", "filler"]

        async def is_out() -> bool:
            shown = await door.get(f"/tx/{first['txId']}", include="attempts")
            return bool(shown.json["attempts"][1]["sentCount"])

        await eventually(is_out)
        await anvil.mine()
        done = await door.get(f"/tx/{first['txId']}", wait="confirmed", timeout=60)
        assert done.json["state"] == "CANCELLED"
        mined = await anvil.mined_from(door.signers[0])
        assert [(tx["to"], tx["value"]) for tx in mined] == [(door.signers[0], "0x0")]


async def test_suspend_resume_and_resubmit(dsn: str, anvil: TestChain) -> None:
    await anvil.call("evm_setAutomine", False)
    async with open_door(dsn, anvil) as door:
        first = (await door.post("/tx", door.transfer("1"), wait="submitted", timeout=60)).json
        second = (await door.post("/tx", door.transfer("2"))).json
        held = await door.post(f"/tx/{second['txId']}/suspend", **WITHIN)
        assert (held.status, held.json["tx"]["state"]) == (200, "SUSPENDED")
        sent = await door.post(f"/tx/{first['txId']}/resubmit", **WITHIN)
        assert sent.json["outcome"] == "it goes out again"

        async def went_out_again() -> bool:
            return bool((await door.get(f"/tx/{first['txId']}")).json["submitCount"] >= 2)

        await eventually(went_out_again)
        await anvil.call("evm_setAutomine", True)
        await anvil.mine()
        await door.get(f"/tx/{first['txId']}", wait="confirmed", timeout=60)
        assert (await door.get(f"/tx/{second['txId']}")).json["state"] == "SUSPENDED"
        resumed = await door.post(f"/tx/{second['txId']}/resume", **WITHIN)
        assert resumed.status == 200
        done = await door.get(f"/tx/{second['txId']}", wait="confirmed", timeout=60)
        assert done.json["state"] == "CONFIRMED"


async def test_bump_replaces_it_by_itself_at_a_better_price(dsn: str, anvil: TestChain) -> None:
    await anvil.call("evm_setAutomine", False)
    async with open_door(dsn, anvil) as door:
        first = (await door.post("/tx", door.transfer("1"), wait="submitted", timeout=60)).json
        bumped = await door.post(f"/tx/{first['txId']}/bump", **WITHIN)
        assert (bumped.status, bumped.json["outcome"][:14]) == (200, "attempt 2 pays")

        async def is_out() -> bool:
            shown = await door.get(f"/tx/{first['txId']}", include="attempts")
            return bool(shown.json["attempts"][1]["sentCount"])

        await eventually(is_out)
        await anvil.mine()
        done = await door.get(f"/tx/{first['txId']}", wait="confirmed", timeout=60, include="attempts")
        before, after = done.json["attempts"]
        assert (done.json["state"], done.json["hash"]) == ("CONFIRMED", after["hash"])
        assert int(after["maxFeePerGas"]) > int(before["maxFeePerGas"])
        assert [tx["hash"] for tx in await anvil.mined_from(door.signers[0])] == [after["hash"]]


async def test_pause_drain_and_resume_a_signer(dsn: str, anvil: TestChain) -> None:
    await anvil.call("evm_setAutomine", False)
    async with open_door(dsn, anvil) as door:
        signer = door.signers[0]
        first = (await door.post("/tx", door.transfer("1"), wait="submitted", timeout=60)).json
        second = (await door.post("/tx", door.transfer("2"))).json
        waiting = await door.post(f"/signers/{signer}/drain", timeout=1)
        assert (waiting.status, waiting.json["drained"]) == (202, False)
        assert (waiting.json["signer"]["state"], waiting.json["signer"]["inFlight"]) == ("PAUSED", 1)
        await anvil.mine()
        drained = await door.post(f"/signers/{signer}/drain", **WITHIN)
        assert (drained.status, drained.json["drained"]) == (200, True)
        assert (await door.get(f"/tx/{first['txId']}")).json["state"] == "CONFIRMED"
        assert (await door.get(f"/tx/{second['txId']}")).json["state"] == "QUEUED"
        assert (await door.post(f"/signers/{signer}/pause")).problem == (409, "signer_state", "address")
        await anvil.call("evm_setAutomine", True)
        opened = await door.post(f"/signers/{signer}/resume", **WITHIN)
        assert opened.json["signer"]["state"] == "ACTIVE"
        done = await door.get(f"/tx/{second['txId']}", wait="confirmed", timeout=60)
        assert done.json["state"] == "CONFIRMED"


async def test_protect_refuses_new_requests_until_a_person_decides(door: Door) -> None:
    signer = door.signers[0]
    protected = await door.post(f"/signers/{signer}/protect", {"reason": "a leak?"}, **WITHIN)
    assert (protected.status, protected.json["signer"]["state"]) == (200, "PROTECT")
    refused = await door.post("/tx", door.transfer("p"))
    assert refused.problem == (409, "signer_protected", "signer")
    assert "a leak?" in refused.json["detail"]
    path = f"/signers/{signer}/unprotect"
    assert (await door.post(path)).problem[:2] == (400, "json_malformed")
    assert (await door.post(path, {"decision": "adopt"})).problem == (400, "field_missing", "reason")
    bad = await door.post(path, {"decision": "guess", "reason": "r"})
    assert bad.problem == (400, "field_invalid", "decision")
    decided = await door.post(path, {"decision": "adopt", "reason": "key is safe", "by": "Ada"}, **WITHIN)
    assert (decided.status, decided.json["signer"]["state"]) == (200, "ACTIVE")
    assert decided.json["askedBy"] == "Ada (local)"
    done = await door.post("/tx", door.transfer("p"), wait="confirmed", timeout=60)
    assert done.json["state"] == "CONFIRMED"
    row = await door.running.pool.fetchrow(
        "SELECT reason, detail FROM audit WHERE action = 'signer.unprotect'"
    )
    assert row is not None
    assert row["reason"] == "key is safe"
    assert "adopt" in row["detail"]


async def test_a_wish_about_nothing_is_a_404(door: Door) -> None:
    nothing = "00000000-0000-4000-8000-000000000000"
    assert (await door.post(f"/tx/{nothing}/cancel")).problem[:2] == (404, "tx_not_found")
    assert (await door.post(f"/signers/{SOMEBODY}/pause")).problem[:2] == (404, "signer_not_found")
    for command_id in ("1", "x", "9" * 30):
        assert (await door.get(f"/commands/{command_id}")).problem[:2] == (404, "command_not_found")
