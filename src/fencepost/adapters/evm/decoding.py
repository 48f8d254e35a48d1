"""Decode the JSON of endpoints into the values of the ports, and encode calls.

Contract: an unexpected form raises `RpcUnavailable`, because another endpoint may return a valid one.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Final

from fencepost.application.ports import Block, Header
from fencepost.domain.confirmations import BlockRef
from fencepost.domain.ids import Address, BlockHash, TxHash
from fencepost.domain.transaction import Call
from fencepost.domain.transaction_state import Receipt
from fencepost.errors import RpcUnavailable

_QUANTITY: Final = re.compile(r"0x[0-9a-fA-F]{1,64}")
_HASH: Final = re.compile(r"0x[0-9a-fA-F]{64}")
# A pending block has no hash yet; geth answers null.
_NO_HASH: Final = BlockHash("0x" + "0" * 64)


def quantity(value: object, *, of: str) -> int:
    if isinstance(value, str) and (number := _number(value)) is not None:
        return number
    raise RpcUnavailable(f"malformed answer: {of} is not a hex number")


@lru_cache(maxsize=1024)  # the receipts of a block repeat the same few numbers
def _number(text: str) -> int | None:
    return int(text, 16) if _QUANTITY.fullmatch(text) else None


def hash_text(value: object, *, of: str) -> str:
    if not isinstance(value, str) or not _HASH.fullmatch(value):
        raise RpcUnavailable(f"malformed answer: {of} is not a hash")
    return value.lower()


def header(value: object) -> Header:
    fields = fields_of(value, of="block")
    base_fee = fields.get("baseFeePerGas")
    block_hash = fields.get("hash")
    return Header(
        number=quantity(fields.get("number"), of="block number"),
        hash=_NO_HASH if block_hash is None else BlockHash(hash_text(block_hash, of="block hash")),
        parent_hash=BlockHash(hash_text(fields.get("parentHash"), of="parent hash")),
        base_fee_wei=None if base_fee is None else quantity(base_fee, of="base fee"),
        timestamp_s=quantity(fields.get("timestamp"), of="timestamp"),
        gas_limit=None if (limit := fields.get("gasLimit")) is None else quantity(limit, of="gas limit"),
        gas_used=None if (used := fields.get("gasUsed")) is None else quantity(used, of="gas used"),
    )


def block(value: object, header: Header) -> Block:
    """Decode a block; `header` is the decoded header of the same value."""
    hashes = fields_of(value, of="block").get("transactions")
    if not isinstance(hashes, list):
        raise RpcUnavailable("malformed answer: the block lists no transactions")
    return Block(
        header=header,
        tx_hashes=tuple(TxHash(hash_text(item, of="transaction hash")) for item in hashes),
    )


def receipt(value: object, *, requested_hash: TxHash | None = None) -> Receipt | None:
    """Decode a receipt; return None if the transaction is in no block yet, for which some nodes return one.

    If the receipt has `requested_hash`, its hash is not validated again.
    """
    if value is None:
        return None
    fields = fields_of(value, of="receipt")
    number, block_hash = fields.get("blockNumber"), fields.get("blockHash")
    if number is None or block_hash is None:
        return None
    tx_hash = fields.get("transactionHash")
    return Receipt(
        tx_hash=requested_hash
        if requested_hash is not None and requested_hash == tx_hash
        else TxHash(hash_text(tx_hash, of="transaction hash")),
        block=_block_ref(str(number), str(block_hash)),
        succeeded=quantity(fields.get("status"), of="status") == 1,
        gas_used=quantity(fields.get("gasUsed"), of="gas used"),
        raw=fields,
    )


@lru_cache(maxsize=64)  # all receipts of a block name it
def _block_ref(number: str, block_hash: str) -> BlockRef:
    return BlockRef(
        number=quantity(number, of="block number"), hash=BlockHash(hash_text(block_hash, of="block hash"))
    )


def call_object(sender: Address, call: Call) -> dict[str, Any]:
    fields: dict[str, Any] = {"from": sender, "value": hex(call.value_wei), "data": f"0x{call.data.hex()}"}
    if call.to is not None:
        fields["to"] = call.to
    if call.access_list:
        fields["accessList"] = [
            {"address": entry.address, "storageKeys": [f"0x{key.hex()}" for key in entry.storage_keys]}
            for entry in call.access_list
        ]
    return fields


def replay_object(transaction: object) -> tuple[dict[str, Any], int] | None:
    """Convert a mined transaction to an `eth_call` and the number of its block; None while it is in no block.

    The price is omitted: a replay must not fail because the account can no longer pay the fee.
    """
    if transaction is None:
        return None
    fields = fields_of(transaction, of="transaction")
    if fields.get("blockNumber") is None:
        return None
    call = {name: fields[name] for name in ("from", "to", "value", "gas") if fields.get(name) is not None}
    call["data"] = fields.get("input", "0x")
    return call, quantity(fields["blockNumber"], of="block number")


def fields_of(value: object, *, of: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise RpcUnavailable(f"malformed answer: the {of} is not an object")
    return value
