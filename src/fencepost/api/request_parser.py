"""Convert a transaction of the API to the core's `Request`; errors name the field."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import msgspec

from fencepost.api.context import RequestContext
from fencepost.api.parsing import check_depth, require_plain
from fencepost.api.problems import ApiError, expected_problem, unexpected_problem
from fencepost.application.accept import MAX_DATA_BYTES, MAX_GAS, MAX_REQUEST_ID, MAX_WEI, Request
from fencepost.domain.fees import FeeTier
from fencepost.domain.ids import Signer
from fencepost.domain.transaction import AccessEntry, Fees, TxType
from fencepost.domain.transaction import Call as ChainCall
from fencepost.domain.transaction_state import Intent
from fencepost.errors import InvalidRequest
from fencepost.schemas.requests import AccessEntryIn, Payload, TxRequest

MAX_ARG_VALUES = 10_000  # more than fit into the longest calldata that endpoints accept
MAX_ABI_VALUES = 50_000  # several times what the largest contracts have
MAX_BATCH_ARG_VALUES = 100_000  # of all items together
MAX_STORAGE_KEYS = 4_096  # 32 bytes each: more than fit into the largest transaction that endpoints accept
LARGE_VALUES = 500  # encoding more takes milliseconds: not on the event loop
LARGE_BATCH_BYTES = 16 * 1024

# One thread for all: large calls only delay other large calls.
_encoder_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="abi-encoder")

_MAX_DIGITS = 78
_HEX = re.compile(r"0x[0-9a-fA-F]{1,64}")
_BYTES = re.compile(r"0x[0-9a-fA-F]*")  # a repeated group would take a hundred bytes of memory per repetition


def to_request(call: RequestContext, tx_request: TxRequest, *, idempotency_key: str | None = None) -> Request:
    signer = signer_of(call, tx_request.signer, tx_request.submitter, tx_request.chain_id)
    call.caller.require_signer(signer.address)
    request_id = tx_request.request_id if tx_request.request_id is not None else idempotency_key
    if request_id is not None:
        require_plain(request_id, "requestId")
        if not 0 < len(request_id) <= MAX_REQUEST_ID:
            raise ApiError(
                "field_invalid", f"requestId: must have 1 to {MAX_REQUEST_ID} characters", field="requestId"
            )
    tags = (
        tuple(dict.fromkeys(require_plain(tag, "tags") for tag in tx_request.tags)) if tx_request.tags else ()
    )
    valid_for_s = None if tx_request.valid_until is None else _seconds_until(tx_request.valid_until)
    key_id = None if call.caller.key is None else call.caller.key.id
    request = Request(signer, _intent(call, tx_request.payload), request_id, valid_for_s, tags, key_id)
    call.services.acceptor.validate(request)
    return request


def signer_of(
    call: RequestContext, signer: str | None, submitter: str | None, chain_id: int | None
) -> Signer:
    """Read the signer under either of its names; under both, they must be the same."""
    if submitter is None and signer is not None:
        return call.signer(signer, chain_id, "signer")
    names = [
        (name, text) for name, text in (("signer", signer), ("submitter", submitter)) if text is not None
    ]
    if not names:
        raise ApiError("field_missing", "signer: is required", field="signer")
    signers = [call.signer(text, chain_id, name) for name, text in names]
    if signers[0] != signers[-1]:
        raise ApiError(
            "field_invalid", "submitter: differs from signer; send only one of them", field="submitter"
        )
    return signers[0]


def _seconds_until(time: datetime) -> float:
    return (time - datetime.now(UTC)).total_seconds()


def _intent(call: RequestContext, payload: Payload) -> Intent:
    access_list: tuple[AccessEntry, ...] = ()
    if payload.access_list:
        if sum(len(entry.storage_keys) for entry in payload.access_list) > MAX_STORAGE_KEYS:
            detail = f"payload.accessList: has more than {MAX_STORAGE_KEYS} storage keys"
            raise ApiError("field_invalid", detail, field="payload.accessList")
        access_list = tuple(
            _access_entry(call, entry, index) for index, entry in enumerate(payload.access_list)
        )
    to = call.address(payload.to, "payload.to") if payload.to else None
    value_wei = quantity(payload.value, "payload.value", maximum=MAX_WEI)
    chain_call = ChainCall(to, value_wei, _data(call, payload), access_list)
    gas = None if payload.gas is None else quantity(payload.gas, "payload.gas", maximum=MAX_GAS)
    tx_type = _type(payload)
    fees = _fees(payload, tx_type)
    if payload.fee_tier is None:
        return Intent(chain_call, gas, fees, tx_type)
    if fees is not None:
        raise ApiError(
            "field_invalid", "payload.feeTier: send either a tier or a price", field="payload.feeTier"
        )
    return Intent(chain_call, gas, fees, tx_type, FeeTier(payload.fee_tier))


def quantity(value: int | str, field: str, *, maximum: int) -> int:
    if isinstance(value, int):
        number = value
    elif value.isascii() and value.isdecimal() and len(value) <= _MAX_DIGITS:
        number = int(value)
    elif _HEX.fullmatch(value):
        number = int(value, 16)
    else:
        raise ApiError("field_invalid", f"{field}: is not a whole number", field=field)
    if not 0 <= number <= maximum:
        bits = maximum.bit_length()
        raise ApiError("number_out_of_range", f"{field}: must be from 0 to 2^{bits}-1", field=field)
    return number


def _hex_bytes(text: str, field: str, *, maximum: int) -> bytes:
    if len(text) > 2 + 2 * maximum:
        raise ApiError("field_invalid", f"{field}: has more than {maximum} bytes", field=field)
    if len(text) % 2 or not _BYTES.fullmatch(text):
        raise ApiError("field_invalid", f"{field}: must be 0x and an even number of hex digits", field=field)
    return bytes.fromhex(text[2:])


def _data(call: RequestContext, payload: Payload) -> bytes:
    data = _hex_bytes(payload.data, "payload.data", maximum=MAX_DATA_BYTES) if payload.data else b""
    if not has_arguments(payload):
        return data
    count_arguments(payload)
    args = payload.args or []
    if payload.method is not None and data:
        raise ApiError(
            "field_invalid", "payload.data: send either data, or method and args", field="payload.data"
        )
    if payload.method is None and (payload.to or not data or payload.abi is None):
        raise ApiError(
            "field_missing",
            "payload.method: is required, unless data has contract code, abi its constructor, and to is empty",
            field="payload.method",
        )
    try:
        if payload.method is not None:
            return call.services.codec.encode_call(method=payload.method, abi=payload.abi, args=args)
        return data + call.services.codec.encode_constructor(abi=payload.abi or [], args=args)
    except InvalidRequest as error:
        field = f"payload.{error.field}"
        raise ApiError("field_invalid", f"{field}: {error}", field=field) from None


def has_arguments(payload: Payload) -> bool:
    """Return whether the calldata has to be encoded from a method or a constructor, and arguments."""
    return payload.method is not None or payload.abi is not None or payload.args is not None


def count_arguments(payload: Payload) -> int:
    """Count the values to encode, in arrays and tuples too; raise `ApiError` when the ABI or the arguments are too large."""
    if not has_arguments(payload):
        return 0
    check_depth(payload.abi, "payload.abi", max_values=MAX_ABI_VALUES)
    return check_depth(payload.args, "payload.args", max_values=MAX_ARG_VALUES)


async def encode_large(call: RequestContext, tx_request: TxRequest) -> TxRequest:
    """Encode the arguments of a large call off the event loop; all others are left as they are, for `to_request`."""
    if count_arguments(tx_request.payload) <= LARGE_VALUES:
        return tx_request
    return await asyncio.get_running_loop().run_in_executor(_encoder_thread, _with_calldata, call, tx_request)


async def encode_batch(
    call: RequestContext, batch: Sequence[TxRequest | ApiError], *, size_bytes: int
) -> Sequence[TxRequest | ApiError]:
    """Encode the arguments of a large batch off the event loop; an item that can't be encoded becomes its error."""
    if size_bytes <= LARGE_BATCH_BYTES or not any(
        isinstance(tx_request, TxRequest) and has_arguments(tx_request.payload) for tx_request in batch
    ):
        return batch
    return await asyncio.get_running_loop().run_in_executor(_encoder_thread, _with_calldata_each, call, batch)


def _with_calldata_each(
    call: RequestContext, batch: Sequence[TxRequest | ApiError]
) -> list[TxRequest | ApiError]:
    remaining = MAX_BATCH_ARG_VALUES
    done: list[TxRequest | ApiError] = []
    for tx_request in batch:
        if isinstance(tx_request, ApiError) or not has_arguments(tx_request.payload):
            done.append(tx_request)
            continue
        try:
            remaining = _remaining_after(remaining, tx_request.payload)
            done.append(_with_calldata(call, tx_request))
        except Exception as error:  # noqa: BLE001 - it fails one item only; unexpected errors are logged with an id
            done.append(expected_problem(error) or unexpected_problem(error))
    return done


def _remaining_after(remaining: int, payload: Payload) -> int:
    remaining -= count_arguments(payload)
    if remaining < 0:
        detail = f"payload.args: the batch has more than {MAX_BATCH_ARG_VALUES} values in args"
        raise ApiError("body_too_large", detail, field="payload.args")
    return remaining


def _with_calldata(call: RequestContext, tx_request: TxRequest) -> TxRequest:
    """Replace method, abi and arguments by the calldata that they stand for."""
    data = "0x" + _data(call, tx_request.payload).hex()
    payload = msgspec.structs.replace(tx_request.payload, data=data, method=None, abi=None, args=None)
    return msgspec.structs.replace(tx_request, payload=payload)


def _type(payload: Payload) -> TxType:
    if payload.type is not None:
        return TxType(int(payload.type, 16) if isinstance(payload.type, str) else payload.type)
    if payload.gas_price is None:
        return TxType.DYNAMIC_FEE
    return TxType.ACCESS_LIST if payload.access_list else TxType.LEGACY


def _fees(payload: Payload, tx_type: TxType) -> Fees | None:
    if payload.fees is not None and payload.gas_price is not None:
        raise ApiError(
            "field_invalid", "payload.gasPrice: send either gasPrice or fees", field="payload.gasPrice"
        )
    if payload.gas_price is not None:
        if tx_type is TxType.DYNAMIC_FEE:
            raise ApiError(
                "field_invalid", "payload.gasPrice: type 2 needs fees instead", field="payload.gasPrice"
            )
        price = quantity(payload.gas_price, "payload.gasPrice", maximum=MAX_WEI)
        return Fees(fee_cap_wei=price, tip_wei=price)
    if payload.fees is None:
        return None
    if tx_type is not TxType.DYNAMIC_FEE:
        raise ApiError(
            "field_invalid", f"payload.fees: type {tx_type:d} needs gasPrice instead", field="payload.fees"
        )
    return Fees(
        fee_cap_wei=quantity(payload.fees.max_fee_per_gas, "payload.fees.maxFeePerGas", maximum=MAX_WEI),
        tip_wei=quantity(
            payload.fees.max_priority_fee_per_gas, "payload.fees.maxPriorityFeePerGas", maximum=MAX_WEI
        ),
    )


def _access_entry(call: RequestContext, entry: AccessEntryIn, index: int) -> AccessEntry:
    field = f"payload.accessList[{index}]"
    keys = (
        _hex_bytes("0x" + key[2:], f"{field}.storageKeys[{number}]", maximum=32)
        for number, key in enumerate(entry.storage_keys)
    )
    return AccessEntry(address=call.address(entry.address, f"{field}.address"), storage_keys=tuple(keys))
