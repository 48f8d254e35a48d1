"""Declare the parameters of `send` and `send_many`, and convert them to API requests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, Required, TypedDict
from uuid import uuid4

import msgspec

from fencepost.errors import InvalidRequest
from fencepost.schemas.requests import MAX_BATCH, AccessEntryIn, FeesIn, FeeTierName, Payload, TxRequest

MAX_CHUNK_BYTES = 7 * 1024 * 1024  # below the node's limit for a body, with room for the envelope
Milestone = Literal["allocated", "submitted", "mined", "finished", "confirmed"]


class SendParams(TypedDict, total=False):
    """Parameters of one transaction.

    Without `to` it deploys `data`. Calldata is `data`, or `method` with `args` (and `abi`).
    """

    signer: Required[str]
    to: str | None
    value_wei: int
    data: bytes | str
    method: str | None  # "transfer(address,uint256)", or a name in `abi`
    args: Sequence[Any] | None
    abi: Sequence[Any] | None
    gas: int | None
    max_fee_per_gas_wei: int | None  # requires max_priority_fee_per_gas_wei
    max_priority_fee_per_gas_wei: int | None
    gas_price_wei: int | None  # for types 0 and 1, in place of the two above
    fee_tier: FeeTierName | None  # in place of a price
    type: Literal[0, 1, 2] | None
    access_list: Sequence[tuple[str, Sequence[str]]] | None
    request_id: str | None  # the caller's id, never empty; None for a random one
    chain_id: int | None
    valid_until: datetime | None
    tags: Sequence[str]


def to_wire(params: SendParams) -> TxRequest:
    """Convert one transaction to its API request, with a fixed request id that every retry carries.

    Raises `InvalidRequest` for an empty or blank request id: it usually comes from an unset variable, and a random id in its
    place would make each repetition of the call a new transaction.
    """
    request_id = params.get("request_id")
    if request_id is not None and not request_id.strip():
        raise InvalidRequest("request_id is empty: pass an id, or None for a random one", field="request_id")
    return TxRequest(
        signer=params["signer"],
        payload=_payload(params),
        request_id=uuid4().hex if request_id is None else request_id,
        chain_id=params.get("chain_id"),
        valid_until=params.get("valid_until"),
        tags=list(params.get("tags", ())),
    )


def _payload(params: SendParams) -> Payload:
    abi, args, entries = params.get("abi"), params.get("args"), params.get("access_list")
    return Payload(
        to=params.get("to"),
        data=_hex(params.get("data", b"")),
        abi=None if abi is None else list(abi),
        method=params.get("method"),
        args=None if args is None else [_plain(arg) for arg in args],
        value=str(params.get("value_wei", 0)),
        gas=_quantity(params.get("gas")),
        fees=_fees(params),
        gas_price=_quantity(params.get("gas_price_wei")),
        fee_tier=params.get("fee_tier"),
        type=params.get("type"),
        access_list=None
        if entries is None
        else [AccessEntryIn(address=address, storage_keys=list(keys)) for address, keys in entries],
    )


def _fees(params: SendParams) -> FeesIn | None:
    max_fee, max_priority_fee = params.get("max_fee_per_gas_wei"), params.get("max_priority_fee_per_gas_wei")
    if max_fee is None and max_priority_fee is None:
        return None
    if max_fee is None or max_priority_fee is None:
        raise InvalidRequest(
            "max_fee_per_gas_wei and max_priority_fee_per_gas_wei must be given together", field="fees"
        )
    return FeesIn(max_fee_per_gas=str(max_fee), max_priority_fee_per_gas=str(max_priority_fee))


def _quantity(number: int | None) -> str | None:
    # As text, because many JSON libraries lose digits of numbers above 2^53.
    return None if number is None else str(number)


def _hex(data: bytes | str) -> str:
    return data if isinstance(data, str) else "0x" + data.hex()


def _plain(arg: Any) -> Any:
    """Convert an argument to JSON values: numbers and bytes as text, tuples as arrays."""
    match arg:
        case bool() | str() | None:
            return arg
        case int():
            return str(arg)
        case bytes() | bytearray():
            return "0x" + arg.hex()
        case Mapping():
            return {str(name): _plain(value) for name, value in arg.items()}
        case Sequence():
            return [_plain(value) for value in arg]
        case _:
            raise InvalidRequest(f"an argument has the unsupported type {type(arg).__name__}", field="args")


def chunks(requests: Iterable[TxRequest]) -> Iterator[list[tuple[TxRequest, bytes]]]:
    """Split requests into batches that a node accepts; yield each request with its JSON."""
    chunk: list[tuple[TxRequest, bytes]] = []
    size = 0
    for request in requests:
        body = msgspec.json.encode(request)
        if chunk and (len(chunk) == MAX_BATCH or size + len(body) > MAX_CHUNK_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append((request, body))
        size += len(body) + 1
    if chunk:
        yield chunk
