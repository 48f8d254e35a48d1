"""`/rpc` in place of a node: sends go through the core, looks know replacements, the rest is the node's own answer."""

from __future__ import annotations

import asyncio
from typing import Any

from fencepost.application.api_keys import Scope
from fix_anvil import TestChain
from fix_api import SOMEBODY, Door, open_door
from integration.rpc_door import OWN_CHAIN, asking, fault, post, result, transfer, until_receipt

BUMPING: dict[str, Any] = {
    "nonce__mode": "pipelined",
    "resubmit__interval": "100ms",
    "fees__bump__enabled": "true",
    "fees__bump__after_resubmits": "1",
}


# ---- sending


async def test_a_send_is_answered_with_the_hash_of_what_gets_mined(door: Door, anvil: TestChain) -> None:
    tx_hash = await result(door, "eth_sendTransaction", transfer(door, gas="0x5300", data="0x"))
    receipt = await until_receipt(door, tx_hash)
    assert (receipt["transactionHash"], receipt["status"]) == (tx_hash, "0x1")
    looked_up = await result(door, "eth_getTransactionByHash", tx_hash)
    assert (looked_up["nonce"], looked_up["value"], looked_up["to"]) == ("0x0", "0x1", SOMEBODY)
    assert [tx["hash"] for tx in await anvil.mined_from(door.signers[0])] == [tx_hash]


async def test_it_is_the_node_of_its_accounts_and_its_chain(door: Door) -> None:
    assert await result(door, "eth_accounts") == door.signers
    assert await result(door, "eth_chainId") == hex(OWN_CHAIN)
    assert await result(door, "net_version") == str(OWN_CHAIN)
    _, said = await post(door, asking("eth_chainId"), path=f"/rpc/{OWN_CHAIN}")
    assert said["result"] == hex(OWN_CHAIN)
    status, said = await post(door, asking("eth_chainId"), path="/rpc/5")
    assert (status, said["error"]["data"]["code"]) == (400, "chain_unknown")


async def test_what_else_is_asked_is_the_nodes_answer(door: Door, anvil: TestChain) -> None:
    balance = await anvil.call("eth_getBalance", door.signers[0], "latest")
    assert await result(door, "eth_getBalance", door.signers[0], "latest") == balance
    assert await result(door, "eth_getTransactionReceipt", "0x" + "ab" * 32) is None
    assert await result(door, "eth_getTransactionByHash", "0x" + "ab" * 32) is None
    assert (await _node_fault(door, "eth_noSuchMethod"))[0] == -32601


async def _node_fault(door: Door, method: str, *params: Any) -> tuple[int, str, Any]:
    _, said = await post(door, asking(method, *params))
    return said["error"]["code"], said["error"]["message"], said["error"].get("data")


async def test_a_revert_that_the_node_tells_keeps_its_number_and_its_data(door: Door) -> None:
    number, message, data = await _node_fault(door, "eth_call", {"data": "0x60ff5f5260205ffd"}, "latest")
    assert (number, data) == (3, "0x" + "ff".rjust(64, "0"))
    assert "revert" in message


async def test_the_same_request_id_is_the_same_transaction(door: Door, anvil: TestChain) -> None:
    first = await result(door, "eth_sendTransaction", transfer(door, requestId="a"))
    assert await result(door, "eth_sendTransaction", transfer(door, requestId="a")) == first
    by_header = {"Idempotency-Key": "a"}
    assert await result(door, "eth_sendTransaction", transfer(door), headers=by_header) == first
    number, _, data = await fault(door, "eth_sendTransaction", transfer(door, requestId="a", value="0x2"))
    assert (number, data["code"], data["field"]) == (-32003, "request_conflict", "requestId")
    assert data["txId"]
    assert len(await anvil.mined_from(door.signers[0])) == 1


async def test_a_batch_with_a_key_is_the_same_batch_again(door: Door, anvil: TestChain) -> None:
    batch = [asking("eth_sendTransaction", transfer(door, value=hex(n)), call_id=n) for n in range(1, 4)]
    first = await post(door, batch, headers={"Idempotency-Key": "b"})
    assert await post(door, batch, headers={"Idempotency-Key": "b"}) == first
    assert len({answer["result"] for answer in first[1]}) == 3
    assert [tx["value"] for tx in await anvil.mined_from(door.signers[0])] == ["0x1", "0x2", "0x3"]


async def test_a_batch_is_answered_in_its_order_and_sent_in_its_order(dsn: str, anvil: TestChain) -> None:
    async with open_door(dsn, anvil, nonce__mode="pipelined") as door:
        sends = [
            asking("eth_sendTransaction", transfer(door, value=hex(n)), call_id=f"s{n}") for n in range(1, 41)
        ]
        batch = [asking("eth_blockNumber", call_id=None), *sends, asking("eth_sign"), {"id": 7}, 5]
        status, said = await post(door, batch)
        assert status == 200
        assert [answer["id"] for answer in said] == [None, *(f"s{n}" for n in range(1, 41)), 1, 7, None]
        assert [answer["error"]["code"] for answer in said[-3:]] == [-32004, -32600, -32600]
        hashes = [answer["result"] for answer in said[1:-3]]
        for tx_hash in hashes:
            await until_receipt(door, tx_hash)
        mined = await anvil.mined_from(door.signers[0])
    assert [tx["hash"] for tx in mined] == hashes
    assert [int(tx["value"], 16) for tx in mined] == list(range(1, 41))
    assert [int(tx["nonce"], 16) for tx in mined] == list(range(40))


# ---- nonces


async def test_the_pending_count_counts_what_waits(dsn: str, anvil: TestChain) -> None:
    async with open_door(dsn, anvil) as door:
        signer = door.signers[0]
        assert await result(door, "eth_getTransactionCount", signer, "pending") == "0x0"
        await anvil.call("evm_setAutomine", False)
        await result(door, "eth_sendTransaction", transfer(door))
        for name in "ab":
            assert (await door.post("/tx", door.transfer(name))).status == 202
        assert await result(door, "eth_getTransactionCount", signer, "pending") == "0x3"
        assert await result(door, "eth_getTransactionCount", signer, "latest") == "0x0"
        assert await result(door, "eth_getTransactionCount", SOMEBODY, "pending") == "0x0"


async def test_a_nonce_is_taken_once_from_whom_it_was_told_and_refused_from_others(door: Door) -> None:
    signer = door.signers[0]
    asked = transfer(door, nonce="0x0")
    assert (await fault(door, "eth_sendTransaction", asked))[2]["code"] == "nonce_managed"
    for _ in range(2):
        await result(door, "eth_getTransactionCount", signer, "latest")
    hashes = {await result(door, "eth_sendTransaction", asked) for _ in range(2)}
    assert len(hashes) == 2
    number, message, data = await fault(door, "eth_sendTransaction", asked)
    assert (number, message) == (-32003, "nonces are managed here: leave nonce out")
    assert data["field"] == "nonce"
    assert await result(door, "eth_sendTransaction", transfer(door, nonce="0x0", requestId="named"))


async def test_what_one_key_was_told_is_no_leave_for_another(door: Door) -> None:
    one, other = [door.with_token(await door.key(Scope.TX_WRITE, name=name)) for name in ("one", "other")]
    await result(one, "eth_getTransactionCount", door.signers[0], "latest")
    asked = transfer(door, nonce="0x0")
    assert (await fault(other, "eth_sendTransaction", asked))[2]["code"] == "nonce_managed"
    assert await result(one, "eth_sendTransaction", asked)


# ---- replacements


async def test_the_hash_of_any_attempt_answers_with_the_one_that_mined(dsn: str, anvil: TestChain) -> None:
    async with open_door(dsn, anvil, **BUMPING) as door:
        await anvil.call("evm_setAutomine", False)
        first = await result(door, "eth_sendTransaction", transfer(door, requestId="bumped"))
        async with asyncio.timeout(60):
            while (  # noqa: ASYNC110 - as a client that repeats itself
                now := await result(door, "eth_sendTransaction", transfer(door, requestId="bumped"))
            ) == first:
                await asyncio.sleep(0.05)
        assert await result(door, "eth_getTransactionReceipt", first) is None
        assert (await result(door, "eth_getTransactionByHash", first))["blockNumber"] is None
        await anvil.mine()
        receipt = await until_receipt(door, first)
        (mined,) = await anvil.mined_from(door.signers[0])
        assert receipt["transactionHash"] == mined["hash"] != first
        assert (await result(door, "eth_getTransactionByHash", first))["hash"] == mined["hash"]
        assert (await until_receipt(door, now))["transactionHash"] == mined["hash"]


async def test_a_filler_is_not_given_out_for_what_was_cancelled(dsn: str, anvil: TestChain) -> None:
    async with open_door(dsn, anvil) as door:
        await anvil.call("evm_setAutomine", False)
        tx_hash = await result(door, "eth_sendTransaction", transfer(door, requestId="x"))
        looked_up = await door.get("/tx/by-request", signer=door.signers[0], requestId="x")
        tx_id = looked_up.json["txId"]
        assert (await door.post(f"/tx/{tx_id}/cancel", {"reason": "changed my mind"})).status == 200
        await anvil.mine()
        async with asyncio.timeout(60):
            while (await door.get(f"/tx/{tx_id}")).json["state"] != "CANCELLED":  # noqa: ASYNC110 - as pollers do
                await asyncio.sleep(0.05)
        (filler,) = await anvil.mined_from(door.signers[0])
        assert filler["hash"] != tx_hash
        assert await result(door, "eth_getTransactionReceipt", tx_hash) is None
        assert await result(door, "eth_getTransactionByHash", tx_hash) is None
        assert (await result(door, "eth_getTransactionReceipt", filler["hash"]))["status"] == "0x1"
        assert await result(door, "eth_sendTransaction", transfer(door, requestId="x")) == tx_hash
