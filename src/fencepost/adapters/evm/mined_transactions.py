"""Read the transactions of a block, and rebuild their signed bytes from the fields that a node returns.

The bytes count only if they hash to the transaction's hash. So a node can hide a transaction, but it can't invent one:
decoding the bytes recovers the account that signed them.
"""

from __future__ import annotations

from typing import Any

from fencepost.adapters.evm import decoding
from fencepost.adapters.evm.encoding import encode_fields, seal
from fencepost.domain.attribution import MinedTx
from fencepost.domain.confirmations import BlockRef
from fencepost.domain.ids import Address, TxHash, parse_address
from fencepost.domain.transaction import AccessEntry, Call, Fees, TxType, UnsignedTx
from fencepost.errors import RpcUnavailable

_EIP155_V = 35
_TYPES = {int(tx_type): tx_type for tx_type in TxType}


def transactions_of(value: object, *, sender: Address, chain_id: int) -> list[MinedTx]:
    """Return the transactions of `sender` in a block that was fetched with full transactions."""
    header = decoding.header(value)
    block = BlockRef(header.number, header.hash)
    items = decoding.fields_of(value, of="block").get("transactions")
    if not isinstance(items, list):
        raise RpcUnavailable("malformed answer: the block lists no transactions")
    return [
        _mined(fields, block, sender, chain_id).changed(timestamp_s=header.timestamp_s)
        for fields in (decoding.fields_of(item, of="transaction") for item in items)
        if str(fields.get("from")).lower() == sender
    ]


def _mined(fields: dict[str, Any], block: BlockRef, sender: Address, chain_id: int) -> MinedTx:
    tx_hash = TxHash(decoding.hash_text(fields.get("hash"), of="transaction hash"))
    try:
        call = _call(fields)
    except ValueError as error:
        raise RpcUnavailable(f"malformed answer: transaction {tx_hash}: {error}") from error
    return MinedTx(
        chain_id=chain_id,
        hash=tx_hash,
        sender=sender,
        nonce=decoding.quantity(fields.get("nonce"), of="nonce"),
        block=block,
        call=call,
        raw=_raw(fields, call, tx_hash, chain_id),
    )


def _call(fields: dict[str, Any]) -> Call:
    to, data = fields.get("to"), fields.get("input", fields.get("data", "0x"))
    return Call(
        to=None if to is None else parse_address(str(to)),
        value_wei=decoding.quantity(fields.get("value"), of="value"),
        data=bytes.fromhex(str(data).removeprefix("0x")),
        access_list=tuple(_access_entry(entry) for entry in fields.get("accessList") or ()),
    )


def _access_entry(entry: object) -> AccessEntry:
    fields = decoding.fields_of(entry, of="access list entry")
    keys = tuple(bytes.fromhex(str(key).removeprefix("0x")) for key in fields.get("storageKeys") or ())
    return AccessEntry(address=parse_address(str(fields.get("address"))), storage_keys=keys)


def _raw(fields: dict[str, Any], call: Call, tx_hash: TxHash, chain_id: int) -> bytes | None:
    """Return the signed bytes, or None if the fields don't produce bytes that hash to the transaction's hash."""
    try:
        tx_type = _TYPES.get(decoding.quantity(fields.get("type", "0x0"), of="type"))
        if tx_type is None:
            return None
        tx = _unsigned(fields, call, tx_type, chain_id)
        signed = seal(tx, encode_fields(tx), _signature(fields, tx_type, chain_id))
    except (RpcUnavailable, ValueError, OverflowError):
        return None  # a field is missing, or the transaction is of a form that Fencepost never signs
    return signed.raw if signed.hash == tx_hash else None


def _unsigned(fields: dict[str, Any], call: Call, tx_type: TxType, chain_id: int) -> UnsignedTx:
    if tx_type is TxType.DYNAMIC_FEE:
        cap_wei = decoding.quantity(fields.get("maxFeePerGas"), of="fee cap")
        tip_wei = decoding.quantity(fields.get("maxPriorityFeePerGas"), of="tip")
    else:
        cap_wei = tip_wei = decoding.quantity(fields.get("gasPrice"), of="gas price")
    return UnsignedTx(
        chain_id=chain_id,
        nonce=decoding.quantity(fields.get("nonce"), of="nonce"),
        call=call,
        gas=decoding.quantity(fields.get("gas"), of="gas"),
        fees=Fees(fee_cap_wei=cap_wei, tip_wei=tip_wei),
        type=tx_type,
    )


def _signature(fields: dict[str, Any], tx_type: TxType, chain_id: int) -> bytes:
    if tx_type is TxType.LEGACY:
        parity = decoding.quantity(fields.get("v"), of="v") - _EIP155_V - 2 * chain_id
    else:
        parity = decoding.quantity(fields.get("yParity", fields.get("v")), of="y parity")
    if parity not in (0, 1):
        raise ValueError("the signature has another chain id")
    r, s = (decoding.quantity(fields.get(name), of=name) for name in ("r", "s"))
    return r.to_bytes(32, "big") + s.to_bytes(32, "big") + bytes((parity,))
