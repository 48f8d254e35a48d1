"""`/rpc` in place of an endpoint: the core sends, lookups follow replacements, and the endpoint answers the rest."""

from __future__ import annotations

import asyncio
from typing import Any

from fencepost.application.api_keys import Scope
from fixtures.anvil import TestChain
from fixtures.api import RECEIVER, ApiServer, open_api
from integration.rpc_calls import OWN_CHAIN, fault, post, result, rpc_call, transfer, until_receipt

BUMPING: dict[str, Any] = {
    "nonce__mode": "pipelined",
    "resubmit__interval": "100ms",
    "fees__bump__enabled": "true",
    "fees__bump__after_resubmits": "1",
}


# ---- sending


async def test_a_send_returns_the_hash_that_is_mined(api: ApiServer, anvil: TestChain) -> None:
    tx_hash = await result(api, "eth_sendTransaction", transfer(api, gas="0x5300", data="0x"))
    receipt = await until_receipt(api, tx_hash)
    assert (receipt["transactionHash"], receipt["status"]) == (tx_hash, "0x1")
    looked_up = await result(api, "eth_getTransactionByHash", tx_hash)
    assert (looked_up["nonce"], looked_up["value"], looked_up["to"]) == ("0x0", "0x1", RECEIVER)
    assert [tx["hash"] for tx in await anvil.mined_from(api.signers[0])] == [tx_hash]


async def test_rpc_answers_for_its_accounts_and_its_chain(api: ApiServer) -> None:
    assert await result(api, "eth_accounts") == api.signers
    assert await result(api, "eth_chainId") == hex(OWN_CHAIN)
    assert await result(api, "net_version") == str(OWN_CHAIN)
    _, said = await post(api, rpc_call("eth_chainId"), path=f"/rpc/{OWN_CHAIN}")
    assert said["result"] == hex(OWN_CHAIN)
    status, said = await post(api, rpc_call("eth_chainId"), path="/rpc/5")
    assert (status, said["error"]["data"]["code"]) == (400, "chain_unknown")


async def test_other_calls_return_the_answer_of_the_endpoint(api: ApiServer, anvil: TestChain) -> None:
    balance = await anvil.call("eth_getBalance", api.signers[0], "latest")
    assert await result(api, "eth_getBalance", api.signers[0], "latest") == balance
    assert await result(api, "eth_getTransactionReceipt", "0x" + "ab" * 32) is None
    assert await result(api, "eth_getTransactionByHash", "0x" + "ab" * 32) is None
    assert (await _node_fault(api, "eth_noSuchMethod"))[0] == -32601


async def _node_fault(api: ApiServer, method: str, *params: Any) -> tuple[int, str, Any]:
    _, said = await post(api, rpc_call(method, *params))
    return said["error"]["code"], said["error"]["message"], said["error"].get("data")


async def test_a_revert_reported_by_the_endpoint_keeps_its_code_and_data(api: ApiServer) -> None:
    number, message, data = await _node_fault(api, "eth_call", {"data": "0x60ff5f5260205ffd"}, "latest")
    assert (number, data) == (3, "0x" + "ff".rjust(64, "0"))
    assert "revert" in message


async def test_the_same_request_id_is_the_same_transaction(api: ApiServer, anvil: TestChain) -> None:
    first = await result(api, "eth_sendTransaction", transfer(api, requestId="a"))
    assert await result(api, "eth_sendTransaction", transfer(api, requestId="a")) == first
    by_header = {"Idempotency-Key": "a"}
    assert await result(api, "eth_sendTransaction", transfer(api), headers=by_header) == first
    number, _, data = await fault(api, "eth_sendTransaction", transfer(api, requestId="a", value="0x2"))
    assert (number, data["code"], data["field"]) == (-32003, "request_conflict", "requestId")
    assert data["txId"]
    assert len(await anvil.mined_from(api.signers[0])) == 1


async def test_a_batch_with_an_idempotency_key_is_a_duplicate_the_second_time(
    api: ApiServer, anvil: TestChain
) -> None:
    batch = [rpc_call("eth_sendTransaction", transfer(api, value=hex(n)), call_id=n) for n in range(1, 4)]
    first = await post(api, batch, headers={"Idempotency-Key": "b"})
    assert await post(api, batch, headers={"Idempotency-Key": "b"}) == first
    assert len({answer["result"] for answer in first[1]}) == 3
    assert [tx["value"] for tx in await anvil.mined_from(api.signers[0])] == ["0x1", "0x2", "0x3"]


async def test_a_batch_is_sent_and_answered_in_order(dsn: str, anvil: TestChain) -> None:
    async with open_api(dsn, anvil, nonce__mode="pipelined") as api:
        sends = [
            rpc_call("eth_sendTransaction", transfer(api, value=hex(n)), call_id=f"s{n}")
            for n in range(1, 41)
        ]
        batch = [rpc_call("eth_blockNumber", call_id=None), *sends, rpc_call("eth_sign"), {"id": 7}, 5]
        status, said = await post(api, batch)
        assert status == 200
        assert [answer["id"] for answer in said] == [None, *(f"s{n}" for n in range(1, 41)), 1, 7, None]
        assert [answer["error"]["code"] for answer in said[-3:]] == [-32004, -32600, -32600]
        hashes = [answer["result"] for answer in said[1:-3]]
        for tx_hash in hashes:
            await until_receipt(api, tx_hash)
        mined = await anvil.mined_from(api.signers[0])
    assert [tx["hash"] for tx in mined] == hashes
    assert [int(tx["value"], 16) for tx in mined] == list(range(1, 41))
    assert [int(tx["nonce"], 16) for tx in mined] == list(range(40))


# ---- nonces


async def test_the_pending_count_includes_queued_requests(dsn: str, anvil: TestChain) -> None:
    async with open_api(dsn, anvil) as api:
        signer = api.signers[0]
        assert await result(api, "eth_getTransactionCount", signer, "pending") == "0x0"
        await anvil.call("evm_setAutomine", False)
        await result(api, "eth_sendTransaction", transfer(api))
        for name in "ab":
            assert (await api.post("/tx", api.transfer(name))).status == 202
        assert await result(api, "eth_getTransactionCount", signer, "pending") == "0x3"
        assert await result(api, "eth_getTransactionCount", signer, "latest") == "0x0"
        assert await result(api, "eth_getTransactionCount", RECEIVER, "pending") == "0x0"


async def test_a_nonce_is_accepted_once_from_the_caller_that_got_it_and_rejected_from_others(
    api: ApiServer,
) -> None:
    signer = api.signers[0]
    asked = transfer(api, nonce="0x0")
    assert (await fault(api, "eth_sendTransaction", asked))[2]["code"] == "nonce_managed"
    for _ in range(2):
        await result(api, "eth_getTransactionCount", signer, "latest")
    hashes = {await result(api, "eth_sendTransaction", asked) for _ in range(2)}
    assert len(hashes) == 2
    number, message, data = await fault(api, "eth_sendTransaction", asked)
    assert (number, message) == (-32003, "nonces are managed by Fencepost: omit nonce")
    assert data["field"] == "nonce"
    assert await result(api, "eth_sendTransaction", transfer(api, nonce="0x0", requestId="named"))


async def test_a_nonce_hint_of_one_key_does_not_serve_another(api: ApiServer) -> None:
    one, other = [api.with_token(await api.key(Scope.TX_WRITE, name=name)) for name in ("one", "other")]
    await result(one, "eth_getTransactionCount", api.signers[0], "latest")
    asked = transfer(api, nonce="0x0")
    assert (await fault(other, "eth_sendTransaction", asked))[2]["code"] == "nonce_managed"
    assert await result(one, "eth_sendTransaction", asked)


# ---- replacements


async def test_the_hash_of_any_attempt_returns_the_mined_one(dsn: str, anvil: TestChain) -> None:
    async with open_api(dsn, anvil, **BUMPING) as api:
        await anvil.call("evm_setAutomine", False)
        first = await result(api, "eth_sendTransaction", transfer(api, requestId="bumped"))
        async with asyncio.timeout(60):
            while (  # noqa: ASYNC110 - as a client that repeats itself
                now := await result(api, "eth_sendTransaction", transfer(api, requestId="bumped"))
            ) == first:
                await asyncio.sleep(0.05)
        assert await result(api, "eth_getTransactionReceipt", first) is None
        assert (await result(api, "eth_getTransactionByHash", first))["blockNumber"] is None
        await anvil.mine()
        receipt = await until_receipt(api, first)
        (mined,) = await anvil.mined_from(api.signers[0])
        assert receipt["transactionHash"] == mined["hash"] != first
        assert (await result(api, "eth_getTransactionByHash", first))["hash"] == mined["hash"]
        assert (await until_receipt(api, now))["transactionHash"] == mined["hash"]


async def test_a_filler_is_not_returned_for_a_cancelled_transaction(dsn: str, anvil: TestChain) -> None:
    async with open_api(dsn, anvil) as api:
        await anvil.call("evm_setAutomine", False)
        tx_hash = await result(api, "eth_sendTransaction", transfer(api, requestId="x"))
        looked_up = await api.get("/tx/by-request", signer=api.signers[0], requestId="x")
        tx_id = looked_up.json["txId"]
        assert (await api.post(f"/tx/{tx_id}/cancel", {"reason": "changed my mind"})).status == 200
        await anvil.mine()
        async with asyncio.timeout(60):
            while (await api.get(f"/tx/{tx_id}")).json["state"] != "CANCELLED":  # noqa: ASYNC110 - as pollers do
                await asyncio.sleep(0.05)
        (filler,) = await anvil.mined_from(api.signers[0])
        assert filler["hash"] != tx_hash
        assert await result(api, "eth_getTransactionReceipt", tx_hash) is None
        assert await result(api, "eth_getTransactionByHash", tx_hash) is None
        assert (await result(api, "eth_getTransactionReceipt", filler["hash"]))["status"] == "0x1"
        assert await result(api, "eth_sendTransaction", transfer(api, requestId="x")) == tx_hash
