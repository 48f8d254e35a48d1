"""From what a caller wrote to the request that the core takes: one canonical form, every fault with its field."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from fencepost.api.bodies import check_depth, require_plain
from fencepost.api.calls import Call
from fencepost.api.problems import ApiError
from fencepost.api.wire_in import AccessEntryIn, Payload, TxRequest
from fencepost.application.accept import MOST_DATA_BYTES, MOST_GAS, MOST_REQUEST_ID, MOST_WEI, Request
from fencepost.domain.ids import Signer
from fencepost.domain.managed import Intent
from fencepost.domain.transaction import AccessEntry, Fees, TxType
from fencepost.domain.transaction import Call as ChainCall
from fencepost.errors import InvalidRequest

_MOST_DIGITS = 78
_HEX = re.compile(r"0x[0-9a-fA-F]{1,64}")
_BYTES = re.compile(r"0x(?:[0-9a-fA-F]{2})*")


def to_request(call: Call, asked: TxRequest, *, idempotency_key: str | None = None) -> Request:
    signer = _signer(call, asked)
    call.caller.require_signer(signer.address)
    request_id = asked.request_id if asked.request_id is not None else idempotency_key
    if request_id is not None:
        require_plain(request_id, "requestId")
        if not 0 < len(request_id) <= MOST_REQUEST_ID:
            raise ApiError(
                "field_invalid", f"requestId: must have 1 to {MOST_REQUEST_ID} characters", field="requestId"
            )
    tags = tuple(dict.fromkeys(require_plain(tag, "tags") for tag in asked.tags)) if asked.tags else ()
    valid_for_s = None if asked.valid_until is None else _seconds_until(asked.valid_until)
    request = Request(signer, _intent(call, asked.payload), request_id, valid_for_s, tags)
    call.services.accept.validate(request)
    return request


def _signer(call: Call, asked: TxRequest) -> Signer:
    if asked.submitter is None and asked.signer is not None:
        return call.signer(asked.signer, asked.chain_id, "signer")
    names = [
        (name, text)
        for name, text in (("signer", asked.signer), ("submitter", asked.submitter))
        if text is not None
    ]
    if not names:
        raise ApiError("field_missing", "signer: who shall send it?", field="signer")
    signers = [call.signer(text, asked.chain_id, name) for name, text in names]
    if signers[0] != signers[-1]:
        raise ApiError("field_invalid", "submitter: is not the signer; give one of them", field="submitter")
    return signers[0]


def _seconds_until(time: datetime) -> float:
    return (time - datetime.now(UTC)).total_seconds()


def _intent(call: Call, payload: Payload) -> Intent:
    access_list: tuple[AccessEntry, ...] = ()
    if payload.access_list:
        access_list = tuple(
            _access_entry(call, entry, index) for index, entry in enumerate(payload.access_list)
        )
    to = call.address(payload.to, "payload.to") if payload.to else None
    value_wei = quantity(payload.value, "payload.value", most=MOST_WEI)
    chain_call = ChainCall(to, value_wei, _data(call, payload), access_list)
    gas = None if payload.gas is None else quantity(payload.gas, "payload.gas", most=MOST_GAS)
    tx_type = _type(payload)
    return Intent(chain_call, gas, _fees(payload, tx_type), tx_type)


def quantity(value: int | str, field: str, *, most: int) -> int:
    if isinstance(value, int):
        number = value
    elif value.isascii() and value.isdecimal() and len(value) <= _MOST_DIGITS:
        number = int(value)
    elif _HEX.fullmatch(value):
        number = int(value, 16)
    else:
        raise ApiError("field_invalid", f"{field}: is no whole number", field=field)
    if not 0 <= number <= most:
        bits = most.bit_length()
        raise ApiError("number_out_of_range", f"{field}: must be from 0 to 2^{bits}-1", field=field)
    return number


def _hex_bytes(text: str, field: str, *, most: int) -> bytes:
    if not _BYTES.fullmatch(text):
        raise ApiError("field_invalid", f"{field}: must be 0x and an even number of hex digits", field=field)
    if len(text) > 2 + 2 * most:
        raise ApiError("field_invalid", f"{field}: has more than {most} bytes", field=field)
    return bytes.fromhex(text[2:])


def _data(call: Call, payload: Payload) -> bytes:
    data = _hex_bytes(payload.data, "payload.data", most=MOST_DATA_BYTES) if payload.data else b""
    if payload.method is None and payload.abi is None and payload.args is None:
        return data
    check_depth(payload.abi, "payload.abi")
    check_depth(payload.args, "payload.args")
    args = payload.args or []
    if payload.method is not None and data:
        raise ApiError(
            "field_invalid", "payload.data: give it or method and args, not both", field="payload.data"
        )
    if payload.method is None and (payload.to or not data or payload.abi is None):
        raise ApiError(
            "field_missing",
            "payload.method: without it abi and args are a constructor's, for code in data and no receiver",
            field="payload.method",
        )
    try:
        if payload.method is not None:
            return call.services.encode_call(method=payload.method, abi=payload.abi, args=args)
        return data + call.services.encode_constructor(abi=payload.abi or [], args=args)
    except InvalidRequest as error:
        field = f"payload.{error.field}"
        raise ApiError("field_invalid", f"{field}: {error}", field=field) from None


def _type(payload: Payload) -> TxType:
    if payload.type is not None:
        return TxType(int(payload.type, 16) if isinstance(payload.type, str) else payload.type)
    if payload.gas_price is None:
        return TxType.DYNAMIC_FEE
    return TxType.ACCESS_LIST if payload.access_list else TxType.LEGACY


def _fees(payload: Payload, tx_type: TxType) -> Fees | None:
    if payload.fees is not None and payload.gas_price is not None:
        raise ApiError(
            "field_invalid", "payload.gasPrice: give it or fees, not both", field="payload.gasPrice"
        )
    if payload.gas_price is not None:
        if tx_type is TxType.DYNAMIC_FEE:
            raise ApiError(
                "field_invalid", "payload.gasPrice: type 2 takes fees instead", field="payload.gasPrice"
            )
        price = quantity(payload.gas_price, "payload.gasPrice", most=MOST_WEI)
        return Fees(fee_cap_wei=price, tip_wei=price)
    if payload.fees is None:
        return None
    if tx_type is not TxType.DYNAMIC_FEE:
        raise ApiError(
            "field_invalid", f"payload.fees: type {tx_type:d} takes gasPrice instead", field="payload.fees"
        )
    return Fees(
        fee_cap_wei=quantity(payload.fees.max_fee_per_gas, "payload.fees.maxFeePerGas", most=MOST_WEI),
        tip_wei=quantity(
            payload.fees.max_priority_fee_per_gas, "payload.fees.maxPriorityFeePerGas", most=MOST_WEI
        ),
    )


def _access_entry(call: Call, entry: AccessEntryIn, index: int) -> AccessEntry:
    field = f"payload.accessList[{index}]"
    keys = (
        _hex_bytes("0x" + key[2:], f"{field}.storageKeys[{number}]", most=32)
        for number, key in enumerate(entry.storage_keys)
    )
    return AccessEntry(address=call.address(entry.address, f"{field}.address"), storage_keys=tuple(keys))
