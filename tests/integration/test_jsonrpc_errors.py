"""Errors of `eth_sendTransaction` in the form that clients expect: an endpoint's message, and the bytes of a revert."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from web3 import Web3
from web3.exceptions import ContractCustomError, Web3RPCError

from fencepost.adapters.evm.chain import EvmChain
from fencepost.domain.send_result import SendCategory, SendResult
from fencepost.domain.transaction import SignedTx
from fixtures.anvil import TestChain
from fixtures.api import ApiServer, open_api
from integration.rpc_calls import post, result, rpc_call, transfer

CONTRACT = "0x" + "c0de" * 10
CUSTOM = "0x" + "deadbeef" + "00" * 31 + "07"
# Copies the 36 bytes behind its own code to memory and reverts with them.
REVERTS_WITH_CUSTOM = (
    "0x602480600a5f395ff3"[:2] + "6024" + "600a" + "5f" + "39" + "6024" + "5f" + "fd" + CUSTOM[2:]
)


async def error_of(api: ApiServer, sent: dict[str, Any], **headers: str) -> dict[str, Any]:
    _, said = await post(api, rpc_call("eth_sendTransaction", sent), headers=headers)
    assert "error" in said, said
    error: dict[str, Any] = said["error"]
    return error


async def test_gas_and_size_that_no_endpoint_accepts_give_an_endpoint_error(
    api: ApiServer, anvil: TestChain
) -> None:
    for change, text in (
        ({"gas": "0x5207"}, "intrinsic gas too low"),
        ({"gas": "0x52d0", "data": "0x" + "11" * 100}, "intrinsic gas too low"),
        ({"gas": hex(2**24 + 1)}, "transaction gas limit too high"),
        ({"gas": hex(2**40)}, "exceeds block gas limit"),
        ({"data": "0x" + "11" * (128 * 1024 - 100)}, "oversized data"),
    ):
        error = await error_of(api, transfer(api) | change)
        assert error["code"] == -32000, error
        assert text in error["message"], error
        assert isinstance(error["data"], str)
        assert error["info"]["code"] == "field_invalid"
    assert await anvil.nonce(api.signers[0]) == 0
    assert (await api.get("/tx")).json["items"] == []


async def test_a_revert_returns_its_bytes_in_data(api: ApiServer, anvil: TestChain) -> None:
    await anvil.call("anvil_setCode", CONTRACT, REVERTS_WITH_CUSTOM)
    sent = transfer(api, to=CONTRACT, value="0x0")
    error = await error_of(api, sent)
    assert (error["code"], error["data"]) == (3, CUSTOM)
    assert error["message"].startswith("execution reverted")
    assert error["info"]["code"] == "would_revert"
    assert error["info"]["txId"]
    web3 = Web3(Web3.HTTPProvider(f"{api.url}/rpc"))
    sent["from"], sent["to"] = Web3.to_checksum_address(sent["from"]), Web3.to_checksum_address(CONTRACT)
    with pytest.raises(ContractCustomError) as decoded:
        await asyncio.to_thread(web3.eth.send_transaction, cast("Any", sent))
    assert decoded.value.data == CUSTOM


async def test_web3_does_not_take_a_timeout_for_a_revert(dsn: str, anvil: TestChain) -> None:
    async with open_api(dsn, anvil) as api:
        assert (await api.post(f"/signers/{api.signers[0]}/pause", timeout=60)).status == 200
        error = await error_of(api, transfer(api), Prefer="wait=1")
        assert (error["code"], error["info"]["code"]) == (-32002, "tx_too_late")
        assert isinstance(error["data"], str)
        web3 = Web3(
            Web3.HTTPProvider(
                f"{api.url}/rpc",
                request_kwargs={"headers": {"Prefer": "wait=1", "Content-Type": "application/json"}},
            )
        )
        sent = {"from": Web3.to_checksum_address(api.signers[0]), "to": Web3.to_checksum_address(CONTRACT)}
        with pytest.raises(Web3RPCError) as late:
            await asyncio.to_thread(web3.eth.send_transaction, cast("Any", sent))
        assert "not sent" in str(late.value)


async def test_a_hash_is_returned_once_an_endpoint_has_the_transaction(
    api: ApiServer, anvil: TestChain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A permanent rejection after the nonce was allocated is an error, not a hash."""
    await anvil.call("evm_setAutomine", False)
    tx_hash = await result(api, "eth_sendTransaction", transfer(api))
    assert await anvil.call("eth_getTransactionByHash", tx_hash)
    await anvil.call("evm_setAutomine", True)
    await anvil.mine()
    real = EvmChain.send

    async def refuses(chain: EvmChain, txs: list[SignedTx]) -> list[SendResult]:
        if any(tx.hash for tx in txs) and not refused:
            refused.append(1)
            return [SendResult(SendCategory.FATAL, message="intrinsic gas too low") for _ in txs]
        return list(await real(chain, txs))

    refused: list[int] = []
    monkeypatch.setattr(EvmChain, "send", refuses)
    error = await error_of(api, transfer(api, value="0x2"))
    assert (error["code"], error["data"]["code"]) == (-32003, "tx_refused")
    assert "intrinsic gas too low" in error["data"]["detail"]
