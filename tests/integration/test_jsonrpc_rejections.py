"""`/rpc` in place of an endpoint: which calls it rejects, for which callers, and with which messages."""

from __future__ import annotations

from io import BytesIO
from typing import Any

from fencepost.application.api_keys import Scope
from fencepost.application.funds import SENT_LATER_TEXT
from fencepost.domain.ids import Signer
from fixtures.anvil import TestChain
from fixtures.api import ApiServer, open_api
from integration.rpc_calls import OWN_CHAIN, fault, post, raw_of, result, rpc_call, transfer, until_receipt

# Code that always reverts: PUSH0 PUSH0 REVERT, put there by the constructor before it.
REVERTING_CODE = "0x625f5ffd5f526003601df3"


# ---- rejections


async def test_a_reverting_call_is_rejected_before_it_uses_a_nonce(api: ApiServer, anvil: TestChain) -> None:
    deployed = await until_receipt(
        api, await result(api, "eth_sendTransaction", {"from": api.signers[0], "input": REVERTING_CODE})
    )
    asked = transfer(api, to=deployed["contractAddress"], value="0x0")
    number, message, data = await fault(api, "eth_sendTransaction", asked)
    assert (number, message, data["code"]) == (
        3,
        "execution reverted: reverted without a reason",
        "would_revert",
    )
    assert data["txId"]
    assert await anvil.nonce(api.signers[0]) == 1


async def test_an_unaffordable_transaction_is_rejected_immediately_and_never_sent(
    api: ApiServer, anvil: TestChain
) -> None:
    too_much = hex(10**30)
    number, message, _ = await fault(api, "eth_sendTransaction", transfer(api, value=too_much))
    assert number == -32000
    assert message.startswith("insufficient funds for gas * price + value")
    assert message.endswith("wei are missing"), "it does not promise to send what it cancels"
    named = transfer(api, value=too_much, requestId="named")
    number, message, _ = await fault(api, "eth_sendTransaction", named)
    assert (number, message.split(":")[0]) == (-32000, "insufficient funds for gas * price + value")
    (waiting,) = (await api.get("/tx", state="QUEUED")).json["items"]
    assert (waiting["requestId"], waiting["subState"]) == ("named", "UNFUNDED")
    assert waiting["error"].endswith("wei are missing; it is sent when the balance suffices")
    behind = transfer(api)  # it would wait for that one
    number, message, _ = await fault(api, "eth_sendTransaction", behind)
    assert (number, message) == (-32000, waiting["error"].removesuffix(SENT_LATER_TEXT))
    await anvil.call("anvil_setBalance", api.signers[0], hex(10**31))
    await api.get(f"/tx/{waiting['txId']}", wait="submitted", timeout=60)  # affordable on its own
    sent = await result(api, "eth_sendTransaction", named)
    assert (await until_receipt(api, sent))["status"] == "0x1"
    assert [tx["hash"] for tx in await anvil.mined_from(api.signers[0])] == [sent]


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


async def test_a_malformed_transaction_object_names_its_fault(api: ApiServer) -> None:
    for change, *wanted in WRONG:
        number, _, data = await fault(api, "eth_sendTransaction", transfer(api) | change)
        assert [number, data["code"], data["field"]] == wanted, change


async def test_a_protected_signer_rejects_immediately(dsn: str, anvil: TestChain) -> None:
    """Its address was used before, which strict mode does not allow; the first step finds that."""
    await anvil.call("eth_sendRawTransaction", raw_of(anvil.private_keys[0]))
    async with open_api(dsn, anvil) as api:
        for _ in range(2):  # the lane finds it first; later requests are rejected on submission
            number, message, data = await fault(api, "eth_sendTransaction", transfer(api))
            assert (number, data["code"]) == (-32003, "signer_protected")
            assert message == "The signer accepts no requests"


async def test_the_spending_policy_applies_to_rpc(api: ApiServer, anvil: TestChain) -> None:
    put = await api.send("PUT", f"/signers/{api.signers[0]}/policy", json={"valueWeiMax": "1"})
    assert put.status == 200
    assert await result(api, "eth_sendTransaction", transfer(api))
    number, message, data = await fault(api, "eth_sendTransaction", transfer(api, value="0x2"))
    assert (number, message) == (-32003, "The spending policy forbids this")
    assert data["code"] == "policy_refused"
    assert await anvil.nonce(api.signers[0]) == 1


async def test_with_intake_leader_a_request_for_another_nodes_signer_is_rejected(
    dsn: str, anvil: TestChain
) -> None:
    options: dict[str, Any] = {
        "api__intake": "leader",
        "lease__duration": "10s",
        "lease__renew_interval": "2s",
    }
    async with (
        open_api(dsn, anvil, keys=1, node__id="first", **options) as first,
        open_api(dsn, anvil, keys=1, node__id="second", **options) as second,
    ):
        await result(first, "eth_sendTransaction", transfer(first))
        # The signer was free, so either node may have acquired it.
        owner = await first.services.reader.owner_of(Signer(OWN_CHAIN, first.signers[0]))
        leader, follower = (first, second) if owner == "first" else (second, first)
        number, _, data = await fault(follower, "eth_sendTransaction", transfer(first))
        assert (number, data["code"], data["owner"]) == (-32003, "not_leader", owner)
        assert await result(leader, "eth_sendTransaction", transfer(first))


async def test_a_request_without_a_nonce_in_time_is_never_sent(dsn: str, anvil: TestChain) -> None:
    async with open_api(dsn, anvil) as api:
        await anvil.call("evm_setAutomine", False)
        soon = {"Prefer": "wait=1"}
        first = await result(api, "eth_sendTransaction", transfer(api))
        number, _, data = await fault(api, "eth_sendTransaction", transfer(api, value="0x2"), headers=soon)
        assert (number, data["code"]) == (-32002, "tx_too_late")
        named = transfer(api, value="0x3", requestId="named")
        number, _, data = await fault(api, "eth_sendTransaction", named, headers=soon)
        assert (number, data["code"]) == (-32002, "tx_waiting")
        await anvil.mine()
        await until_receipt(api, first)
        third = await result(api, "eth_sendTransaction", named)
        await anvil.mine()
        assert (await until_receipt(api, third))["status"] == "0x1"
        assert [tx["hash"] for tx in await anvil.mined_from(api.signers[0])] == [first, third]
        assert await result(api, "eth_getTransactionCount", api.signers[0], "pending") == "0x2"


# ---- raw transactions and signing


async def test_raw_transactions_pass_unless_fencepost_manages_their_nonces(
    api: ApiServer, anvil: TestChain
) -> None:
    ours, theirs = (raw_of(anvil.private_keys[index]) for index in (0, 9))
    number, message, data = await fault(api, "eth_sendRawTransaction", ours)
    assert (number, data["code"]) == (-32003, "signer_managed")
    assert message == "the sender is managed by Fencepost: use eth_sendTransaction"
    tx_hash = await result(api, "eth_sendRawTransaction", theirs)
    assert (await until_receipt(api, tx_hash))["status"] == "0x1"
    assert (await fault(api, "eth_sendRawTransaction", "0x02c0"))[2]["code"] == "params_invalid"
    assert await anvil.nonce(api.signers[0]) == 0


async def test_a_signer_of_another_node_is_managed_here_too(dsn: str, anvil: TestChain) -> None:
    async with open_api(dsn, anvil) as there:
        await result(there, "eth_sendTransaction", transfer(there))
    raw = raw_of(anvil.private_keys[0], nonce=1)
    async with open_api(dsn, anvil, first_key=1) as here:
        assert (await fault(here, "eth_sendRawTransaction", raw))[2]["code"] == "signer_managed"


async def test_signing_needs_an_explicit_permission(api: ApiServer, anvil: TestChain) -> None:
    asked = ("eth_sign", api.signers[0], "0x1234")
    assert (await fault(api, *asked))[0] == -32004
    assert (await fault(api, "personal_listAccounts"))[2]["code"] == "method_not_allowed"
    writer = api.with_token(await api.key(Scope.TX_WRITE, Scope.OPERATOR))
    admin = api.with_token(await api.key(Scope.ADMIN, name="admin"))
    assert (await fault(writer, *asked))[1] == "method not allowed"
    assert await result(admin, *asked) == await anvil.call(*asked)
    # Even an admin cannot make the endpoint sign for managed signers.
    said = await fault(admin, "eth_signTransaction", transfer(api, gas="0x5208", nonce="0x0"))
    assert said[2]["code"] == "signer_managed"
    assert (await fault(admin, "eth_sendUnsignedTransaction", transfer(api)))[0] == -32004


async def test_administrative_methods_need_the_admin_scope(api: ApiServer) -> None:
    assert await result(api, "anvil_mine", "0x1") is None  # on loopback, without keys
    reader = api.with_token(await api.key(Scope.TX_READ))
    admin = api.with_token(await api.key(Scope.ADMIN, name="admin"))
    assert (await fault(reader, "anvil_mine", "0x1"))[2]["code"] == "method_not_allowed"
    assert await result(admin, "anvil_mine", "0x1") is None


async def test_keys_scopes_and_signers_are_enforced(api: ApiServer) -> None:
    mine = api.signers[1]
    token = await api.key(Scope.TX_WRITE, signers=frozenset({mine}))
    status, said = await post(api, rpc_call("eth_chainId"))
    assert (status, said["error"]["code"], said["error"]["data"]["code"]) == (401, 4100, "key_missing")
    limited = api.with_token(token)
    assert await result(limited, "eth_accounts") == [mine]
    assert (await fault(limited, "eth_sendTransaction", transfer(api)))[2]["code"] == "signer_forbidden"
    assert await result(limited, "eth_sendTransaction", transfer(api) | {"from": mine})
    reader = api.with_token(await api.key(Scope.TX_READ, name="reader"))
    assert (await fault(reader, "eth_sendTransaction", transfer(api)))[0] == 4100
    slow = api.with_token(await api.key(Scope.TX_READ, name="slow", rate_per_s=1.0))
    assert (await post(slow, [rpc_call("eth_chainId")] * 5))[0] == 200
    status, said = await post(slow, rpc_call("eth_chainId"))
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


async def test_an_invalid_call_gets_its_own_error(api: ApiServer) -> None:
    for body, *wanted in NO_CALLS:
        status, said = await post(api, body)
        assert [status, said["error"]["code"], said["error"]["data"]["code"]] == wanted, body[:100]
        assert said["jsonrpc"] == "2.0"
    assert await result(api, "eth_chainId") == hex(OWN_CHAIN)


async def test_a_body_that_is_too_large_is_rejected(api: ApiServer) -> None:
    async with api.session.post(
        api.url + "/rpc",
        data=BytesIO(b" " * (9 * 1024 * 1024)),
        headers={"Content-Type": "application/json"},
    ) as response:
        said = await response.json()
    assert (response.status, said["error"]["data"]["code"]) == (413, "body_too_large")


async def test_a_notification_gets_no_answer(api: ApiServer) -> None:
    silent = {"jsonrpc": "2.0", "method": "eth_chainId"}
    assert await post(api, silent) == (204, None)
    assert await post(api, [silent, rpc_call("eth_chainId")]) == (
        200,
        [{"jsonrpc": "2.0", "id": 1, "result": hex(OWN_CHAIN)}],
    )


async def test_only_json_posts_are_accepted(api: ApiServer) -> None:
    status, said = await post(api, b"{}", headers={"Content-Type": "text/plain"})
    assert (status, said["error"]["data"]["code"]) == (415, "media_type")
    async with api.session.get(api.url + "/rpc") as response:
        assert response.status == 405
