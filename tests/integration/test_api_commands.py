"""Operator commands over HTTP: cancel, suspend, resume, resubmit, bump; pause, drain, protect and unprotect."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from fencepost.client.errors import NotFound
from fixtures.anvil import TestChain
from fixtures.api import RECEIVER, ApiServer, open_api
from fixtures.client import caller_of, run_fencepost
from fixtures.core import eventually

pytest_plugins = ["fixtures.web3signer"]

WITHIN: dict[str, Any] = {"timeout": 20}


async def test_cancel_drops_a_request_without_a_nonce_and_replaces_a_transaction_with_one(
    dsn: str, anvil: TestChain
) -> None:
    await anvil.call("evm_setAutomine", False)
    async with open_api(dsn, anvil) as api:
        first = (await api.post("/tx", api.transfer("1"), wait="submitted", timeout=60)).json
        second = (await api.post("/tx", api.transfer("2"))).json
        dropped = await api.post(f"/tx/{second['txId']}/cancel", {"reason": "no more"}, **WITHIN)
        assert (dropped.status, dropped.json["tx"]["state"]) == (200, "CANCELLED")
        assert dropped.json["tx"]["error"] == "no more"
        again = await api.post(f"/tx/{second['txId']}/cancel", **WITHIN)
        assert again.problem == (409, "tx_ended", None)
        replaced = await api.post(f"/tx/{first['txId']}/cancel", **WITHIN)
        assert (replaced.status, replaced.json["outcome"]) == (200, "a filler goes for its nonce")
        asked = await api.get(replaced.headers["Location"])
        assert asked.json["done"]
        too_late = await api.send("DELETE", replaced.headers["Location"])
        assert (too_late.status, too_late.json["outcome"]) == (200, "a filler goes for its nonce")
        assert (await api.send("DELETE", "/commands/987654321")).problem == (404, "command_not_found", None)
        both_out = await api.get(f"/tx/{first['txId']}", include="attempts")
        assert [attempt["purpose"] for attempt in both_out.json["attempts"]] == ["intent", "filler"]

        async def is_out() -> bool:
            shown = await api.get(f"/tx/{first['txId']}", include="attempts")
            return bool(shown.json["attempts"][1]["sentCount"])

        await eventually(is_out)
        await anvil.mine()
        done = await api.get(f"/tx/{first['txId']}", wait="confirmed", timeout=60)
        assert done.json["state"] == "CANCELLED"
        mined = await anvil.mined_from(api.signers[0])
        assert [(tx["to"], tx["value"]) for tx in mined] == [(api.signers[0], "0x0")]


async def test_a_command_that_changes_nothing_reports_it(dsn: str, anvil: TestChain, tmp_path: Path) -> None:
    """A bump that the caller's maximum forbids is answered but not applied: the command line exits with 1."""
    await anvil.call("evm_setAutomine", False)
    fees = {"maxFeePerGas": 5 * 10**9, "maxPriorityFeePerGas": 10**9}
    async with open_api(dsn, anvil) as api:
        asked = api.transfer("1", payload={"to": RECEIVER, "value": 1, "gas": 21_000, "fees": fees})
        tx_id = (await api.post("/tx", asked, wait="submitted", timeout=60)).json["txId"]
        bumped = await api.post(f"/tx/{tx_id}/bump", **WITHIN)
        assert (bumped.status, bumped.json["done"], bumped.json["applied"]) == (200, True, False)
        assert "the caller's maximum fee" in bumped.json["outcome"]
        status, out, errors = await run_fencepost(
            "tx", "bump", tx_id, env={"FENCEPOST_URL": api.url}, cwd=tmp_path
        )
        assert (status, "not applied" in out) == (1, True), (out, errors)
        cancelled = await api.post(f"/tx/{tx_id}/cancel", **WITHIN)
        assert (cancelled.json["done"], cancelled.json["applied"]) == (True, True)


async def test_suspend_resume_and_resubmit_act_on_a_transaction(dsn: str, anvil: TestChain) -> None:
    await anvil.call("evm_setAutomine", False)
    async with open_api(dsn, anvil) as api:
        first = (await api.post("/tx", api.transfer("1"), wait="submitted", timeout=60)).json
        second = (await api.post("/tx", api.transfer("2"))).json
        held = await api.post(f"/tx/{second['txId']}/suspend", **WITHIN)
        assert (held.status, held.json["tx"]["state"]) == (200, "SUSPENDED")
        sent = await api.post(f"/tx/{first['txId']}/resubmit", **WITHIN)
        assert sent.json["outcome"] == "it goes out again"

        async def went_out_again() -> bool:
            return bool((await api.get(f"/tx/{first['txId']}")).json["submitCount"] >= 2)

        await eventually(went_out_again)
        await anvil.call("evm_setAutomine", True)
        await anvil.mine()
        await api.get(f"/tx/{first['txId']}", wait="confirmed", timeout=60)
        assert (await api.get(f"/tx/{second['txId']}")).json["state"] == "SUSPENDED"
        resumed = await api.post(f"/tx/{second['txId']}/resume", **WITHIN)
        assert resumed.status == 200
        done = await api.get(f"/tx/{second['txId']}", wait="confirmed", timeout=60)
        assert done.json["state"] == "CONFIRMED"


async def test_bump_replaces_a_transaction_at_a_higher_price(dsn: str, anvil: TestChain) -> None:
    await anvil.call("evm_setAutomine", False)
    async with open_api(dsn, anvil) as api:
        first = (await api.post("/tx", api.transfer("1"), wait="submitted", timeout=60)).json
        bumped = await api.post(f"/tx/{first['txId']}/bump", **WITHIN)
        assert (bumped.status, bumped.json["outcome"][:14]) == (200, "attempt 2 pays")

        async def is_out() -> bool:
            shown = await api.get(f"/tx/{first['txId']}", include="attempts")
            return bool(shown.json["attempts"][1]["sentCount"])

        await eventually(is_out)
        await anvil.mine()
        done = await api.get(f"/tx/{first['txId']}", wait="confirmed", timeout=60, include="attempts")
        before, after = done.json["attempts"]
        assert (done.json["state"], done.json["hash"]) == ("CONFIRMED", after["hash"])
        assert int(after["maxFeePerGas"]) > int(before["maxFeePerGas"])
        assert [tx["hash"] for tx in await anvil.mined_from(api.signers[0])] == [after["hash"]]


async def test_pause_drain_and_resume_act_on_a_signer(dsn: str, anvil: TestChain) -> None:
    await anvil.call("evm_setAutomine", False)
    async with open_api(dsn, anvil) as api:
        signer = api.signers[0]
        first = (await api.post("/tx", api.transfer("1"), wait="submitted", timeout=60)).json
        second = (await api.post("/tx", api.transfer("2"))).json
        waiting = await api.post(f"/signers/{signer}/drain", timeout=1)
        assert (waiting.status, waiting.json["drained"]) == (202, False)
        assert (waiting.json["signer"]["state"], waiting.json["signer"]["inFlight"]) == ("PAUSED", 1)
        await anvil.mine()
        drained = await api.post(f"/signers/{signer}/drain", **WITHIN)
        assert (drained.status, drained.json["drained"]) == (200, True)
        assert (await api.get(f"/tx/{first['txId']}")).json["state"] == "CONFIRMED"
        assert (await api.get(f"/tx/{second['txId']}")).json["state"] == "QUEUED"
        assert (await api.post(f"/signers/{signer}/pause")).problem == (409, "signer_state", "address")
        await anvil.call("evm_setAutomine", True)
        opened = await api.post(f"/signers/{signer}/resume", **WITHIN)
        assert opened.json["signer"]["state"] == "ACTIVE"
        done = await api.get(f"/tx/{second['txId']}", wait="confirmed", timeout=60)
        assert done.json["state"] == "CONFIRMED"


async def test_protect_rejects_new_requests_until_an_operator_decides(api: ApiServer) -> None:
    signer = api.signers[0]
    protected = await api.post(f"/signers/{signer}/protect", {"reason": "a leak?"}, **WITHIN)
    assert (protected.status, protected.json["signer"]["state"]) == (200, "PROTECT")
    refused = await api.post("/tx", api.transfer("p"))
    assert refused.problem == (409, "signer_protected", "signer")
    assert "a leak?" in refused.json["detail"]
    path = f"/signers/{signer}/unprotect"
    assert (await api.post(path)).problem[:2] == (400, "json_malformed")
    assert (await api.post(path, {"decision": "adopt"})).problem == (400, "field_missing", "reason")
    bad = await api.post(path, {"decision": "guess", "reason": "r"})
    assert bad.problem == (400, "field_invalid", "decision")
    decided = await api.post(path, {"decision": "adopt", "reason": "key is safe", "by": "Ada"}, **WITHIN)
    assert (decided.status, decided.json["signer"]["state"]) == (200, "ACTIVE")
    assert decided.json["askedBy"] == "Ada (local)"
    done = await api.post("/tx", api.transfer("p"), wait="confirmed", timeout=60)
    assert done.json["state"] == "CONFIRMED"
    row = await api.running.pool.fetchrow(
        "SELECT reason, detail FROM audit WHERE action = 'signer.unprotect'"
    )
    assert row is not None
    assert row["reason"] == "key is safe"
    assert "adopt" in row["detail"]


async def test_a_command_for_an_unknown_transaction_or_signer_is_404(api: ApiServer) -> None:
    nothing = "00000000-0000-4000-8000-000000000000"
    assert (await api.post(f"/tx/{nothing}/cancel")).problem[:2] == (404, "tx_not_found")
    assert (await api.post(f"/signers/{RECEIVER}/pause")).problem[:2] == (404, "signer_not_found")
    for command_id in ("1", "x", "9" * 30):
        assert (await api.get(f"/commands/{command_id}")).problem[:2] == (404, "command_not_found")


@pytest.mark.parametrize("kind", ["blocking", "awaited", "command line"])
async def test_an_open_command_is_withdrawn_while_the_signing_service_is_silent(
    dsn: str,
    anvil: TestChain,
    web3signer: Callable[..., Awaitable[str]],
    tmp_path: Path,
    kind: str,
) -> None:
    """A cancel needs a filler, the service does not sign it, and the operator withdraws the cancel."""
    is_silent = False

    async def answer(_request: web.Request, _call: dict[str, Any]) -> web.Response | None:
        return web.Response(status=503) if is_silent else None

    async def fencepost(*arguments: str) -> tuple[int, str, str]:
        return await run_fencepost(*arguments, env={"FENCEPOST_URL": api.url}, cwd=tmp_path)

    await anvil.call("evm_setAutomine", False)
    url = await web3signer(["0x" + anvil.private_keys[1].hex()], answer=answer)
    async with open_api(dsn, anvil, keys=1, keys__remote_url=url) as api, caller_of(kind, api.url) as call:
        request = api.transfer("1", signer=api.signers[1])
        tx_id = (await api.post("/tx", request, wait="submitted", timeout=60)).json["txId"]
        is_silent = True
        cancel = await api.post(f"/tx/{tx_id}/cancel", timeout=0)
        assert (cancel.status, cancel.json["done"]) == (202, False)
        command_id = cancel.json["commandId"]

        async def is_withdrawn() -> bool:
            if kind == "command line":
                status, out, errors = await fencepost("command", "withdraw", command_id, "--json")
                found = json.loads(out)
                assert status == (0 if found["withdrawn"] else 1), errors
                return bool(found["withdrawn"])
            return bool((await call("withdraw_command", command_id)).withdrawn)

        await eventually(is_withdrawn)
        found = (await api.get(f"/commands/{command_id}")).json
        assert (found["done"], found["applied"], found["outcome"]) == (True, False, "withdrawn by local")
        is_silent = False
        await anvil.mine()
        done = await api.get(f"/tx/{tx_id}", wait="finished", timeout=60)
        assert done.json["state"] == "CONFIRMED"


async def test_a_finished_or_unknown_command_cannot_be_withdrawn(api: ApiServer, tmp_path: Path) -> None:
    async def fencepost(*arguments: str) -> tuple[int, str, str]:
        return await run_fencepost(*arguments, env={"FENCEPOST_URL": api.url}, cwd=tmp_path)

    paused = await api.post(f"/signers/{api.signers[0]}/pause", {"reason": "new key"}, **WITHIN)
    command_id = paused.json["commandId"]
    async with caller_of("awaited", api.url) as call:
        done = await call("withdraw_command", command_id)
        assert (done.done, done.withdrawn, done.outcome) == (True, False, "paused")
        with pytest.raises(NotFound) as unknown:
            await call("withdraw_command", "987654321")
        assert unknown.value.code == "command_not_found"
    status, out, _ = await fencepost("command", "withdraw", command_id)
    assert (status, out) == (1, f"pause ({command_id}): not withdrawn: it is done: paused\n")
    status, out, errors = await fencepost("command", "withdraw", "987654321")
    assert (status, out, "there is no command" in errors) == (1, "", True), errors
    status, out, _ = await fencepost("command", "show", command_id)
    assert status == 0
    shown = {line[:11].strip(): line[11:] for line in out.splitlines()}
    assert (shown["command"], shown["state"], shown["reason"]) == (
        f"pause ({command_id})",
        "applied",
        "new key",
    )
    status, out, _ = await fencepost("command", "show", command_id, "--json")
    assert (status, json.loads(out)["outcome"]) == (0, "paused")
