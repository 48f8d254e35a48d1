"""`/rpc` in place of a node: what it refuses, to whom, and in which words."""

from __future__ import annotations

from io import BytesIO
from typing import Any

from fencepost.application.api_keys import Scope
from fencepost.domain.ids import Signer
from fix_anvil import TestChain
from fix_api import Door, open_door
from integration.rpc_door import OWN_CHAIN, asking, fault, post, raw_of, result, transfer, until_receipt

# Code that always reverts: PUSH0 PUSH0 REVERT, put there by the constructor before it.
REVERTING_CODE = "0x625f5ffd5f526003601df3"


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
