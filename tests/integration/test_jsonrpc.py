"""`/rpc` in place of a node: sends go through the core, looks know replacements, the rest is the node's own answer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from io import BytesIO
from typing import Any

from eth_account import Account

from fencepost.application.api_keys import Scope
from fencepost.domain.ids import Signer
from fix_anvil import TestChain
from fix_api import SOMEBODY, Door, open_door

OWN_CHAIN = 31337
RECEIVER = "0x" + "11" * 20
# Code that always reverts: PUSH0 PUSH0 REVERT, put there by the constructor before it.
REVERTING_CODE = "0x625f5ffd5f526003601df3"
BUMPING: dict[str, Any] = {
    "nonce__mode": "pipelined",
    "resubmit__interval": "100ms",
    "fees__bump__enabled": "true",
    "fees__bump__after_resubmits": "1",
}


async def post(
    door: Door, body: Any, *, headers: Mapping[str, str] | None = None, path: str = "/rpc"
) -> tuple[int, Any]:
    sent = dict(headers or {})
    if door.token is not None:
        sent["Authorization"] = f"Bearer {door.token}"
    kind = {"data": body} if isinstance(body, bytes) else {"json": body}
    if isinstance(body, bytes):
        sent.setdefault("Content-Type", "application/json")
    async with door.session.post(door.url + path, headers=sent, **kind) as response:
        return response.status, await response.json() if response.status != 204 else None


def asking(method: str, *params: Any, call_id: Any = 1) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": call_id, "method": method, "params": list(params)}


async def result(door: Door, method: str, *params: Any, headers: Mapping[str, str] | None = None) -> Any:
    status, said = await post(door, asking(method, *params), headers=headers)
    assert (status, said["jsonrpc"], said["id"]) == (200, "2.0", 1)
    assert "error" not in said, said
    return said["result"]


async def fault(
    door: Door, method: str, *params: Any, headers: Mapping[str, str] | None = None
) -> tuple[int, str, dict[str, Any]]:
    """Number, message and data of what must be an error."""
    status, said = await post(door, asking(method, *params), headers=headers)
    assert status == 200, said
    assert "result" not in said, said
    error = said["error"]
    return error["code"], error["message"], error["data"]


def transfer(door: Door, **more: Any) -> dict[str, Any]:
    return {"from": door.signers[0], "to": SOMEBODY, "value": "0x1", **more}


def raw_of(key: bytes, *, nonce: int = 0) -> str:
    """A transfer that somebody signs for themselves."""
    tx = {
        "to": RECEIVER,
        "gas": 21_000,
        "gasPrice": 2 * 10**9,
        "nonce": nonce,
        "chainId": OWN_CHAIN,
        "value": 1,
    }
    return "0x" + bytes(Account.sign_transaction(tx, key).raw_transaction).hex()


async def until_receipt(door: Door, tx_hash: str) -> Any:
    async with asyncio.timeout(60):
        while (receipt := await result(door, "eth_getTransactionReceipt", tx_hash)) is None:  # noqa: ASYNC110 - clients ask
            await asyncio.sleep(0.02)
    return receipt


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


# ---- refusals


async def test_what_would_revert_is_refused_before_it_costs_a_nonce(door: Door, anvil: TestChain) -> None:
    deployed = await until_receipt(
        door, await result(door, "eth_sendTransaction", {"from": door.signers[0], "input": REVERTING_CODE})
    )
    asked = transfer(door, to=deployed["contractAddress"], value="0x0")
    number, message, data = await fault(door, "eth_sendTransaction", asked)
    assert (number, message, data["code"]) == (3, "execution reverted", "would_revert")
    assert data["txId"]
    assert await anvil.nonce(door.signers[0]) == 1


WRONG: list[tuple[dict[str, Any], int, str, str]] = [
    ({"from": "0x" + "12" * 20}, -32003, "signer_unknown", "signer"),
    ({"from": "0xF39fd6e51aad88F6F4ce6aB8827279cffFb92266"}, -32602, "address_invalid", "signer"),
    ({"from": None}, -32602, "field_invalid", "from"),
    ({"to": "0x12"}, -32602, "address_invalid", "to"),
    ({"value": "0x1" + "0" * 64}, -32602, "field_invalid", "value"),
    ({"value": -1}, -32602, "number_out_of_range", "value"),
    ({"data": "0x1"}, -32602, "field_invalid", "data"),
    ({"data": "0x11", "input": "0x12"}, -32602, "field_invalid", "input"),
    ({"maxFeePerGas": "0x1"}, -32602, "field_missing", "maxPriorityFeePerGas"),
    ({"type": "0x3"}, -32602, "field_invalid", "type"),
    ({"chainId": "0x1"}, -32602, "chain_unknown", "chainId"),
    ({"blobs": []}, -32602, "field_unknown", "blobs"),
    ({"requestId": ""}, -32602, "field_invalid", "requestId"),
]


async def test_a_wrong_transaction_object_names_its_fault(door: Door) -> None:
    for change, *wanted in WRONG:
        number, _, data = await fault(door, "eth_sendTransaction", transfer(door) | change)
        assert [number, data["code"], data["field"]] == wanted, change


async def test_a_signer_that_waits_for_a_person_refuses_at_once(dsn: str, anvil: TestChain) -> None:
    """Its address was used before, which a strict signer must not have been: that shows at its first turn."""
    await anvil.call("eth_sendRawTransaction", raw_of(anvil.private_keys[0]))
    async with open_door(dsn, anvil) as door:
        for _ in range(2):  # found out by the lane, then known before it is taken
            number, message, data = await fault(door, "eth_sendTransaction", transfer(door))
            assert (number, data["code"]) == (-32003, "signer_protected")
            assert message == "The signer takes nothing new"


async def test_the_signers_policy_holds_here_too(door: Door, anvil: TestChain) -> None:
    put = await door.send("PUT", f"/signers/{door.signers[0]}/policy", json={"valueWeiMax": "1"})
    assert put.status == 200
    assert await result(door, "eth_sendTransaction", transfer(door))
    number, message, data = await fault(door, "eth_sendTransaction", transfer(door, value="0x2"))
    assert (number, message) == (-32003, "The signer's policy forbids this")
    assert data["code"] == "policy_refused"
    assert await anvil.nonce(door.signers[0]) == 1


async def test_another_nodes_signer_is_refused_where_only_the_leader_takes_in(
    dsn: str, anvil: TestChain
) -> None:
    options: dict[str, Any] = {
        "api__intake": "leader",
        "lease__duration": "10s",
        "lease__renew_interval": "2s",
    }
    async with (
        open_door(dsn, anvil, keys=1, node__id="first", **options) as first,
        open_door(dsn, anvil, keys=1, node__id="second", **options) as second,
    ):
        await result(first, "eth_sendTransaction", transfer(first))
        # Nobody had the signer, so either of them may have taken it.
        owner = await first.services.reader.owner_of(Signer(OWN_CHAIN, first.signers[0]))
        leader, follower = (first, second) if owner == "first" else (second, first)
        number, _, data = await fault(follower, "eth_sendTransaction", transfer(first))
        assert (number, data["code"], data["owner"]) == (-32003, "not_leader", owner)
        assert await result(leader, "eth_sendTransaction", transfer(first))


async def test_without_a_turn_in_time_nothing_is_sent_ever(dsn: str, anvil: TestChain) -> None:
    async with open_door(dsn, anvil) as door:
        await anvil.call("evm_setAutomine", False)
        soon = {"Prefer": "wait=1"}
        first = await result(door, "eth_sendTransaction", transfer(door))
        number, _, data = await fault(door, "eth_sendTransaction", transfer(door, value="0x2"), headers=soon)
        assert (number, data["code"]) == (-32002, "tx_too_late")
        named = transfer(door, value="0x3", requestId="named")
        number, _, data = await fault(door, "eth_sendTransaction", named, headers=soon)
        assert (number, data["code"]) == (-32002, "tx_waiting")
        await anvil.mine()
        await until_receipt(door, first)
        third = await result(door, "eth_sendTransaction", named)
        await anvil.mine()
        assert (await until_receipt(door, third))["status"] == "0x1"
        assert [tx["hash"] for tx in await anvil.mined_from(door.signers[0])] == [first, third]
        assert await result(door, "eth_getTransactionCount", door.signers[0], "pending") == "0x2"


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


# ---- what strangers sign, and who may sign


async def test_raw_transactions_pass_unless_their_nonces_are_ours(door: Door, anvil: TestChain) -> None:
    ours, theirs = (raw_of(anvil.private_keys[index]) for index in (0, 9))
    number, message, data = await fault(door, "eth_sendRawTransaction", ours)
    assert (number, data["code"]) == (-32003, "signer_managed")
    assert message == "the sender is managed here: use eth_sendTransaction"
    tx_hash = await result(door, "eth_sendRawTransaction", theirs)
    assert (await until_receipt(door, tx_hash))["status"] == "0x1"
    assert (await fault(door, "eth_sendRawTransaction", "0x02c0"))[2]["code"] == "params_invalid"
    assert await anvil.nonce(door.signers[0]) == 0


async def test_a_signer_of_another_node_is_managed_here_too(dsn: str, anvil: TestChain) -> None:
    async with open_door(dsn, anvil) as there:
        await result(there, "eth_sendTransaction", transfer(there))
    raw = raw_of(anvil.private_keys[0], nonce=1)
    async with open_door(dsn, anvil, first_key=1) as here:
        assert (await fault(here, "eth_sendRawTransaction", raw))[2]["code"] == "signer_managed"


async def test_signing_needs_a_permission_that_somebody_gave(door: Door, anvil: TestChain) -> None:
    asked = ("eth_sign", door.signers[0], "0x1234")
    assert (await fault(door, *asked))[0] == -32004
    assert (await fault(door, "personal_listAccounts"))[2]["code"] == "method_not_allowed"
    writer = door.with_token(await door.key(Scope.TX_WRITE, Scope.OPERATOR))
    admin = door.with_token(await door.key(Scope.ADMIN, name="admin"))
    assert (await fault(writer, *asked))[1] == "method not allowed"
    assert await result(admin, *asked) == await anvil.call(*asked)
    # Even an admin can't have transactions made for our signers elsewhere.
    said = await fault(admin, "eth_signTransaction", transfer(door, gas="0x5208", nonce="0x0"))
    assert said[2]["code"] == "signer_managed"
    assert (await fault(admin, "eth_sendUnsignedTransaction", transfer(door)))[0] == -32004


async def test_what_runs_a_node_is_for_admins(door: Door) -> None:
    assert await result(door, "anvil_mine", "0x1") is None  # on this machine, without keys
    reader = door.with_token(await door.key(Scope.TX_READ))
    admin = door.with_token(await door.key(Scope.ADMIN, name="admin"))
    assert (await fault(reader, "anvil_mine", "0x1"))[2]["code"] == "method_not_allowed"
    assert await result(admin, "anvil_mine", "0x1") is None


async def test_keys_are_asked_for_and_scopes_and_signers_hold(door: Door) -> None:
    mine = door.signers[1]
    token = await door.key(Scope.TX_WRITE, signers=frozenset({mine}))
    status, said = await post(door, asking("eth_chainId"))
    assert (status, said["error"]["code"], said["error"]["data"]["code"]) == (401, 4100, "key_missing")
    limited = door.with_token(token)
    assert await result(limited, "eth_accounts") == [mine]
    assert (await fault(limited, "eth_sendTransaction", transfer(door)))[2]["code"] == "signer_forbidden"
    assert await result(limited, "eth_sendTransaction", transfer(door) | {"from": mine})
    reader = door.with_token(await door.key(Scope.TX_READ, name="reader"))
    assert (await fault(reader, "eth_sendTransaction", transfer(door)))[0] == 4100
    slow = door.with_token(await door.key(Scope.TX_READ, name="slow", rate_per_s=1.0))
    assert (await post(slow, [asking("eth_chainId")] * 5))[0] == 200
    status, said = await post(slow, asking("eth_chainId"))
    assert (status, said["error"]["code"]) == (429, -32005)


# ---- bad input


NO_CALLS: list[tuple[bytes, int, int, str]] = [
    (b"{", 400, -32700, "json_malformed"),
    (b"", 400, -32700, "json_malformed"),
    (b"[1,", 400, -32700, "json_malformed"),
    (b"\xff", 400, -32700, "json_malformed"),
    (b"[]", 200, -32600, "request_invalid"),
    (b"{}", 200, -32600, "request_invalid"),
    (b'"text"', 200, -32600, "request_invalid"),
    (b'{"id": 1, "method": "eth_chainId"}', 200, -32600, "request_invalid"),
    (b'{"jsonrpc": "2.0", "id": 1, "method": 5}', 200, -32600, "request_invalid"),
    (b'{"jsonrpc": "2.0", "id": 1, "method": "eth_call", "params": {"a": 1}}', 200, -32600, "request_invalid"),
    (b'{"jsonrpc": "2.0", "id": [], "method": "eth_chainId"}', 200, -32600, "request_invalid"),
    (b'{"jsonrpc": "2.0", "id": 1, "method": "../admin"}', 200, -32004, "method_not_allowed"),
    (b"[" + b'{"jsonrpc":"2.0","id":1,"method":"eth_chainId"},' * 100 + b"1]", 200, -32005, "batch_too_large"),
    (b"[" * 100_000, 400, -32700, "json_malformed"),
    (b'{"jsonrpc":"2.0","id":1,"method":"eth_call","params":' + b"[" * 50 + b"]" * 50 + b"}", 200, -32602, "json_too_deep"),
]  # fmt: skip


async def test_what_is_no_call_gets_its_own_error(door: Door) -> None:
    for body, *wanted in NO_CALLS:
        status, said = await post(door, body)
        assert [status, said["error"]["code"], said["error"]["data"]["code"]] == wanted, body[:100]
        assert said["jsonrpc"] == "2.0"
    assert await result(door, "eth_chainId") == hex(OWN_CHAIN)


async def test_a_body_that_is_too_large_is_refused(door: Door) -> None:
    async with door.session.post(
        door.url + "/rpc",
        data=BytesIO(b" " * (9 * 1024 * 1024)),
        headers={"Content-Type": "application/json"},
    ) as response:
        said = await response.json()
    assert (response.status, said["error"]["data"]["code"]) == (413, "body_too_large")


async def test_a_notification_gets_no_answer(door: Door) -> None:
    silent = {"jsonrpc": "2.0", "method": "eth_chainId"}
    assert await post(door, silent) == (204, None)
    assert await post(door, [silent, asking("eth_chainId")]) == (
        200,
        [{"jsonrpc": "2.0", "id": 1, "result": hex(OWN_CHAIN)}],
    )


async def test_only_json_is_taken_and_only_by_post(door: Door) -> None:
    status, said = await post(door, b"{}", headers={"Content-Type": "text/plain"})
    assert (status, said["error"]["data"]["code"]) == (415, "media_type")
    async with door.session.get(door.url + "/rpc") as response:
        assert response.status == 405
