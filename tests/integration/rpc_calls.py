"""Calls to `/rpc` and their results."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from eth_account import Account

from fixtures.api import RECEIVER, ApiServer

OWN_CHAIN = 31337
RAW_RECEIVER = "0x" + "11" * 20


async def post(
    api: ApiServer, body: Any, *, headers: Mapping[str, str] | None = None, path: str = "/rpc"
) -> tuple[int, Any]:
    sent = dict(headers or {})
    if api.token is not None:
        sent["Authorization"] = f"Bearer {api.token}"
    kind = {"data": body} if isinstance(body, bytes) else {"json": body}
    if isinstance(body, bytes):
        sent.setdefault("Content-Type", "application/json")
    async with api.session.post(api.url + path, headers=sent, **kind) as response:
        return response.status, await response.json() if response.status != 204 else None


def rpc_call(method: str, *params: Any, call_id: Any = 1) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": call_id, "method": method, "params": list(params)}


async def result(api: ApiServer, method: str, *params: Any, headers: Mapping[str, str] | None = None) -> Any:
    status, said = await post(api, rpc_call(method, *params), headers=headers)
    assert (status, said["jsonrpc"], said["id"]) == (200, "2.0", 1)
    assert "error" not in said, said
    return said["result"]


async def fault(
    api: ApiServer, method: str, *params: Any, headers: Mapping[str, str] | None = None
) -> tuple[int, str, dict[str, Any]]:
    """Return code, message and data; the answer must be an error."""
    status, said = await post(api, rpc_call(method, *params), headers=headers)
    assert status == 200, said
    assert "result" not in said, said
    error = said["error"]
    if "info" in error:  # a client would take an object in `data` for a revert
        assert isinstance(error["data"], str)
    return error["code"], error["message"], error.get("info", error.get("data", {}))


def transfer(api: ApiServer, **more: Any) -> dict[str, Any]:
    return {"from": api.signers[0], "to": RECEIVER, "value": "0x1", **more}


def raw_of(key: bytes, *, nonce: int = 0) -> str:
    """Sign a transfer outside Fencepost."""
    tx = {
        "to": RAW_RECEIVER,
        "gas": 21_000,
        "gasPrice": 2 * 10**9,
        "nonce": nonce,
        "chainId": OWN_CHAIN,
        "value": 1,
    }
    return "0x" + bytes(Account.sign_transaction(tx, key).raw_transaction).hex()


async def until_receipt(api: ApiServer, tx_hash: str) -> Any:
    async with asyncio.timeout(60):
        while (receipt := await result(api, "eth_getTransactionReceipt", tx_hash)) is None:  # noqa: ASYNC110 - clients ask
            await asyncio.sleep(0.02)
    return receipt
