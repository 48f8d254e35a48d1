"""Each cause, provoked on a real chain: the code is right, the proposed action is carried out, and the transaction ends."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from eth_account import Account as EthAccount

from fencepost.application.api_keys import Scope
from fixtures.api import ApiServer, open_api
from fixtures.core import Client, DatabaseReader, OwnChain, eventually
from fixtures.gateway import gateway_to
from fixtures.nodes import StartNode

# The head moves only when a test mines, so it counts as stalled after a moment where a test wants that, and else never.
CALM: dict[str, Any] = {"explain__stalled_after": "10m", "confirmations__required": "1"}
GWEI = 10**9


@pytest.fixture
async def api(dsn: str, manual_chain: OwnChain) -> AsyncIterator[ApiServer]:
    async with open_api(dsn, manual_chain, **CALM) as opened:
        yield opened


async def submit(api: ApiServer, request_id: str = "one", **payload: Any) -> str:
    body = api.transfer(request_id)
    body["payload"] |= payload
    answer = await api.post("/tx", body)
    assert answer.status in (200, 202), answer
    return str(answer.json["txId"])


async def explain(api: ApiServer, tx_id: str) -> dict[str, Any]:
    answer = await api.get(f"/tx/{tx_id}/explain")
    assert answer.status == 200, answer
    return dict(answer.json)


async def until_cause(api: ApiServer, tx_id: str, cause: str) -> dict[str, Any]:
    """Wait until the transaction has this cause."""
    found: dict[str, Any] = {}

    async def is_so() -> bool:
        found.update(await explain(api, tx_id))
        return bool(found["cause"] == cause)

    try:
        await eventually(is_so)
    except AssertionError:
        raise AssertionError(f"{cause} never came: {found}") from None
    assert found["summary"]
    return found


async def ends(api: ApiServer, chain: OwnChain, tx_id: str, state: str = "CONFIRMED") -> None:
    """Mine until the transaction has ended in this state."""

    async def is_over() -> bool:
        await chain.mine()
        tx = (await api.get(f"/tx/{tx_id}")).json
        assert tx["state"] == state or tx["finishedAt"] is None, tx
        return bool(tx["state"] == state)

    await eventually(is_over)


async def run(api: ApiServer, action: dict[str, str]) -> None:
    """Carry out a proposed command of `fencepost tx` or `fencepost signer` through the API."""
    words = action["command"].split()
    assert words[0] == "fencepost"
    kind, verb, name = words[1:4]
    group = {"tx": "tx", "signer": "signers"}[kind]
    body = {}
    if "--decision" in words:
        body = {"decision": words[words.index("--decision") + 1], "reason": "tested"}
    answer = await api.post(f"/{group}/{name}/{verb}", body or None, timeout=60)
    assert answer.status == 200, answer
    assert answer.json["applied"] is True, answer


def action(found: dict[str, Any], part: str) -> dict[str, str]:
    return next(one for one in found["actions"] if part in one["command"])


async def test_waiting_for_confirmations_and_done(api: ApiServer, manual_chain: OwnChain) -> None:
    tx_id = await submit(api)
    await until_cause(api, tx_id, "in_progress")
    await eventually(manual_chain.pool_size)
    await manual_chain.mine()
    found = await until_cause(api, tx_id, "waiting_confirmations")
    assert "0 of 1 confirmations" in found["summary"]
    await ends(api, manual_chain, tx_id)
    assert (await explain(api, tx_id))["cause"] == "done"


async def test_a_stalled_chain(dsn: str, manual_chain: OwnChain) -> None:
    options = CALM | {"explain__stalled_after": "1s"}
    async with open_api(dsn, manual_chain, **options) as api:
        tx_id = await submit(api)
        found = await until_cause(api, tx_id, "chain_stalled")
        assert "has produced no block" in found["summary"]
        assert found["since"] is not None
        await ends(api, manual_chain, tx_id)


async def test_an_unfunded_account_behind_which_others_wait(api: ApiServer, manual_chain: OwnChain) -> None:
    await manual_chain.call("anvil_setBalance", api.signers[0], hex(10**15))
    first = await submit(api, "first", value=10**18)
    second = await submit(api, "second")
    found = await until_cause(api, first, "unfunded")
    assert "1 ether value" in found["summary"]
    behind = await until_cause(api, second, "behind_other")
    assert behind["blockedBy"]["txId"] == first
    assert behind["blockedBy"]["cause"] == "unfunded"
    signer = (await api.get(f"/signers/{api.signers[0]}/explain")).json
    assert (signer["cause"], signer["blockedBy"]["txId"]) == ("unfunded", first)
    # The action is a transfer from another account.
    words = found["actions"][0]["command"].split()
    missing = int(words[words.index("--value") + 1])
    await manual_chain.call("anvil_setBalance", api.signers[0], hex(10**15 + missing))
    await ends(api, manual_chain, first)


async def test_a_full_window(dsn: str, manual_chain: OwnChain) -> None:
    options = CALM | {"nonce__mode": "pipelined", "nonce__max_in_flight": "2"}
    async with open_api(dsn, manual_chain, **options) as api:
        ids = [await submit(api, f"n{index}") for index in range(4)]
        found = await until_cause(api, ids[2], "window_full")
        assert found["blockedBy"]["txId"] == ids[0]
        assert (await until_cause(api, ids[3], "behind_other"))["blockedBy"]["txId"] == ids[0]
        assert (await until_cause(api, ids[1], "behind_other"))["blockedBy"]["txId"] == ids[0]
        await ends(api, manual_chain, ids[3])


async def test_a_price_below_the_base_fee_is_bumped(dsn: str, manual_chain: OwnChain) -> None:
    options = CALM | {"fees__bump__enabled": "true", "resubmit__interval": "1h"}
    async with open_api(dsn, manual_chain, **options) as api:
        tx_id = await submit(api)
        await eventually(manual_chain.pool_size)
        await manual_chain.call("anvil_setNextBlockBaseFeePerGas", hex(20 * GWEI))
        await manual_chain.mine()
        found = await until_cause(api, tx_id, "fee_below_market")
        assert "20 gwei" in found["summary"] or "gwei" in found["summary"]
        await run(api, action(found, "tx bump"))
        await ends(api, manual_chain, tx_id)


async def test_a_price_at_the_limit_of_the_request(dsn: str, manual_chain: OwnChain) -> None:
    options = CALM | {"fees__bump__enabled": "true", "resubmit__interval": "1h"}
    async with open_api(dsn, manual_chain, **options) as api:
        fees = {"maxFeePerGas": str(2 * GWEI), "maxPriorityFeePerGas": "1"}
        tx_id = await submit(api, fees=fees)
        await eventually(manual_chain.pool_size)
        await manual_chain.call("anvil_setNextBlockBaseFeePerGas", hex(20 * GWEI))
        await manual_chain.mine()
        found = await until_cause(api, tx_id, "fee_cap_reached")
        assert "the request's own maximum fee is 2 gwei" in found["summary"]
        await run(api, action(found, "tx cancel"))
        await until_cause(api, tx_id, "cancelling")
        await ends(api, manual_chain, tx_id, "CANCELLED")
        assert (await explain(api, tx_id))["cause"] == "cancelled"


async def test_a_silent_endpoint(dsn: str, manual_chain: OwnChain) -> None:
    async with gateway_to(manual_chain) as gateway:
        chain = replace(manual_chain, rpc_url=gateway.url)
        async with open_api(dsn, chain, **CALM) as api:
            tx_id = await submit(api)
            await eventually(manual_chain.pool_size)
            gateway.hanging_share = 1.0
            found = await until_cause(api, tx_id, "rpc_unavailable")
            assert found["evidence"][0]["source"] in found["summary"]
            status = (await api.get("/status")).json
            assert not status["ok"]
            assert not status["chains"][0]["endpoints"][0]["up"]
            gateway.hanging_share = 0.0
            await ends(api, manual_chain, tx_id)


@pytest.mark.parametrize(("verb", "cause"), [("pause", "signer_paused"), ("drain", "signer_drained")])
async def test_a_paused_or_drained_signer_is_resumed(
    api: ApiServer, manual_chain: OwnChain, verb: str, cause: str
) -> None:
    await run(api, {"command": f"fencepost signer {verb} {api.signers[0]}"})
    tx_id = await submit(api)
    found = await until_cause(api, tx_id, cause)
    assert (await api.get(f"/signers/{api.signers[0]}/explain")).json["cause"] == cause
    await run(api, action(found, "signer resume"))
    await ends(api, manual_chain, tx_id)


async def test_a_suspended_transaction_is_resumed(api: ApiServer, manual_chain: OwnChain) -> None:
    tx_id = await submit(api)
    await eventually(manual_chain.pool_size)
    await run(api, {"command": f"fencepost tx suspend {tx_id}"})
    found = await until_cause(api, tx_id, "suspended")
    await run(api, action(found, "tx resume"))
    await ends(api, manual_chain, tx_id)


async def test_a_foreign_transaction_protects_the_signer_until_adopted(
    dsn: str, manual_chain: OwnChain
) -> None:
    await _send_foreign(manual_chain, manual_chain.accounts[0].key, nonce=0)
    await manual_chain.mine()
    async with open_api(dsn, manual_chain, **CALM) as api:
        tx_id = await submit(api)
        operator = api.with_token(await api.key(Scope.OPERATOR, Scope.TX_READ, Scope.TX_WRITE))
        found = await until_cause(operator, tx_id, "signer_protected")
        assert "--decision adopt" in found["actions"][0]["command"]
        assert "the next nonce would be 1" in found["actions"][0]["consequence"]
        reader = api.with_token(await api.key(Scope.TX_READ, name="reader"))
        assert "next nonce would be 1" not in str(await explain(reader, tx_id))
        shown = (await reader.get(f"/tx/{tx_id}")).json
        assert (shown["state"], shown["subState"]) == ("QUEUED", "PROTECT")
        assert "was used before" in shown["reason"]
        listed = (await reader.get("/tx", subState="PROTECT")).json["items"]
        assert [one["txId"] for one in listed] == [tx_id]
        await run(operator, found["actions"][0])
        await ends(operator, manual_chain, tx_id)


async def _send_foreign(chain: OwnChain, key: str, *, nonce: int) -> None:
    wanted = {"chainId": chain.chain_id, "nonce": nonce, "to": EthAccount.from_key(key).address, "value": 0}
    wanted |= {"gas": 21_000, "maxFeePerGas": 100 * GWEI, "maxPriorityFeePerGas": GWEI, "type": 2}
    signed = EthAccount.sign_transaction(wanted, key)
    await chain.call("eth_sendRawTransaction", "0x" + signed.raw_transaction.hex().removeprefix("0x"))


async def test_without_a_key_the_request_waits_for_a_node_that_has_it(
    dsn: str, manual_chain: OwnChain
) -> None:
    async with open_api(dsn, manual_chain, keys=1, **CALM) as first:
        await first.running.node.stop()
        tx_id = await submit(first)
        address = first.signers[0]
        async with open_api(dsn, manual_chain, keys=1, first_key=1, **CALM) as api:
            found = await until_cause(api, tx_id, "no_key")
            assert "signer add" in found["actions"][0]["command"]
            assert address in found["summary"]
    async with open_api(dsn, manual_chain, keys=1, **CALM) as api:
        await ends(api, manual_chain, tx_id)


async def test_a_node_with_the_key_that_works_no_more(dsn: str, manual_chain: OwnChain) -> None:
    async with open_api(dsn, manual_chain, keys=1, **CALM) as api:
        await api.running.node.stop()
        tx_id = await submit(api)
        await until_cause(api, tx_id, "no_lease_holder")
    async with open_api(dsn, manual_chain, keys=1, **CALM) as api:
        await ends(api, manual_chain, tx_id)


async def test_the_last_lease_holder_stopped(
    dsn: str, manual_chain: OwnChain, start_node: StartNode, client: Client, db: DatabaseReader
) -> None:
    account = manual_chain.accounts[0]
    there = start_node(manual_chain, account)
    await client.ask(account, 1)
    await eventually(manual_chain.pool_size)
    there.signal(signal.SIGSTOP)
    tx_id = str((await db.rows(account))[0]["tx_id"])
    async with open_api(dsn, manual_chain, keys=1, first_key=1, **CALM) as api:
        found = await until_cause(api, tx_id, "no_lease_holder")
        assert "there" in found["summary"]
        there.signal(signal.SIGCONT)
        await ends(api, manual_chain, tx_id)


async def _deployed(api: ApiServer, runtime: str) -> str:
    """Deploy a contract with this code, and return its address."""
    size = len(runtime) // 2
    code = f"0x60{size:02x}600c60003960{size:02x}6000f3{runtime}"
    wanted = {"signer": api.signers[0], "payload": {"data": code}}
    answer = await api.post("/tx", wanted, wait="finished", timeout=60)
    tx = (await api.get(f"/tx/{answer.json['txId']}", include="receipt")).json
    return str(tx["receipt"]["contractAddress"])


async def test_reverts_and_gas(dsn: str, instant_chain: OwnChain) -> None:
    async with open_api(dsn, instant_chain, gas__refuse_reverting="false") as api:
        contract = await _deployed(api, "60006000fd")  # it always reverts
        predicted = await submit(api, "predicted", to=contract, value=0)
        assert (await until_cause(api, predicted, "would_revert"))["actions"]
        mined = await submit(api, "mined", to=contract, value=0, gas=60_000)
        await until_cause(api, mined, "reverted")
        endless = await _deployed(api, "5b600056")  # JUMPDEST, PUSH1 0, JUMP
        burnt = await submit(api, "burnt", to=endless, value=0, gas=60_000)
        found = await until_cause(api, burnt, "out_of_gas")
        assert "used 60000 of its gas limit of 60000" in found["summary"]
        assert "--gas 120000" in found["actions"][0]["command"]


async def test_an_expired_request(api: ApiServer, manual_chain: OwnChain) -> None:
    await run(api, {"command": f"fencepost signer pause {api.signers[0]}"})
    until = datetime.now(UTC) + timedelta(seconds=3)
    tx_id = (await api.post("/tx", api.transfer("late", validUntil=until.isoformat()))).json["txId"]

    async def is_late() -> bool:
        return datetime.now(UTC) > until

    await eventually(is_late)
    await run(api, {"command": f"fencepost signer resume {api.signers[0]}"})
    found = await until_cause(api, tx_id, "expired")
    again = await submit(api, "again")
    assert found["actions"][0]["command"].startswith("fencepost send")
    await ends(api, manual_chain, again)


async def test_dropped_from_the_pool_is_resubmitted(dsn: str, manual_chain: OwnChain) -> None:
    async with open_api(dsn, manual_chain, **(CALM | {"resubmit__interval": "1h"})) as api:
        tx_id = await submit(api)
        await eventually(manual_chain.pool_size)
        await manual_chain.call("anvil_dropAllTransactions")
        found = await until_cause(api, tx_id, "dropped_from_pool")
        await run(api, action(found, "tx resubmit"))
        await eventually(manual_chain.pool_size)
        await ends(api, manual_chain, tx_id)


async def test_a_policy_refuses_a_request(dsn: str, manual_chain: OwnChain) -> None:
    async with open_api(dsn, manual_chain, **CALM) as api:
        await run(api, {"command": f"fencepost signer pause {api.signers[0]}"})
        tx_id = await submit(api, value=10**15)
        token = await api.key(Scope.ADMIN, Scope.OPERATOR, Scope.TX_READ, Scope.TX_WRITE)
        path = f"/signers/{api.signers[0]}/policy"
        assert (await api.with_token(token).send("PUT", path, json={"gasMax": "1000"})).status == 200
    async with open_api(dsn, manual_chain, **CALM) as opened:
        admin = opened.with_token(token)
        await run(admin, {"command": f"fencepost signer resume {admin.signers[0]}"})
        await until_cause(admin, tx_id, "policy_refused")
        assert (await admin.send("DELETE", path)).status == 200
    async with open_api(dsn, manual_chain, **CALM) as opened:  # lanes keep a policy for a while
        admin = opened.with_token(token)
        again = await submit(admin, "again", value=10**15)
        await ends(admin, manual_chain, again)


async def test_the_status_says_that_nothing_is_wrong(api: ApiServer, manual_chain: OwnChain) -> None:
    status = (await api.get("/status")).json
    assert status["ok"], status["problems"]
    assert status["nodes"][0]["isThis"]
    assert status["chains"][0]["endpoints"][0]["up"]
    tx_id = await submit(api)
    await ends(api, manual_chain, tx_id)


async def test_an_unknown_transaction_is_not_found(api: ApiServer) -> None:
    answer = await api.get("/tx/0193d5f0-0000-7000-8000-000000000000/explain")
    assert answer.problem[:2] == (404, "tx_not_found")


async def test_a_caller_sees_only_its_own_signers(api: ApiServer) -> None:
    tx_id = await submit(api)
    other = await api.key(Scope.TX_READ, name="other", signers=frozenset({api.signers[1]}))
    assert (await api.with_token(other).get(f"/tx/{tx_id}/explain")).problem[:2] == (404, "tx_not_found")
    status = (await api.with_token(other).get("/status")).json
    assert api.signers[0] not in str(status)
