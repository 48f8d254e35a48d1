"""Calls to `/rpc`, and what is made of their answers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from eth_account import Account

from fix_api import SOMEBODY, Door

OWN_CHAIN = 31337
RECEIVER = "0x" + "11" * 20


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
