"""What `send` takes, declared once: `send(signer=…, to=…)` and `send_many([{"signer": …, "to": …}, …])` are the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, Required, TypedDict
from uuid import uuid4

import msgspec

from fencepost.api.wire_in import MOST_BATCH, AccessEntryIn, FeesIn, Payload, TxRequest
from fencepost.errors import InvalidRequest

MOST_CHUNK_BYTES = 7 * 1024 * 1024  # below what a node takes, with room for the envelope
Until = Literal["allocated", "submitted", "mined", "confirmed"]


class Asked(TypedDict, total=False):
    """One transaction. Without `to` it deploys `data`. Calldata is `data`, or `method` with `args` (and `abi`)."""

    signer: Required[str]
    to: str | None
    value_wei: int
    data: bytes | str
    method: str | None  # "transfer(address,uint256)", or a name that `abi` has
    args: Sequence[Any] | None
    abi: Sequence[Any] | None
    gas: int | None
    max_fee_per_gas_wei: int | None  # together with the next one
    max_priority_fee_per_gas_wei: int | None
    gas_price_wei: int | None  # instead, for types 0 and 1
    type: Literal[0, 1, 2] | None
    access_list: Sequence[tuple[str, Sequence[str]]] | None
    request_id: str | None  # your own name of it; without one it gets a random one
    chain_id: int | None
    valid_until: datetime | None
    tags: Sequence[str]


def to_wire(asked: Asked) -> TxRequest:
    """The request id is fixed here, once, so that every repetition carries the same."""
    return TxRequest(
        signer=asked["signer"],
        payload=_payload(asked),
        request_id=asked.get("request_id") or uuid4().hex,
        chain_id=asked.get("chain_id"),
        valid_until=asked.get("valid_until"),
        tags=list(asked.get("tags", ())),
    )


def _payload(asked: Asked) -> Payload:
    abi, args, entries = asked.get("abi"), asked.get("args"), asked.get("access_list")
    return Payload(
        to=asked.get("to"),
        data=_hex(asked.get("data", b"")),
        abi=None if abi is None else list(abi),
        method=asked.get("method"),
        args=None if args is None else [_plain(arg) for arg in args],
        value=str(asked.get("value_wei", 0)),
        gas=_quantity(asked.get("gas")),
        fees=_fees(asked),
        gas_price=_quantity(asked.get("gas_price_wei")),
        type=asked.get("type"),
        access_list=None
        if entries is None
        else [AccessEntryIn(address=address, storage_keys=list(keys)) for address, keys in entries],
    )


def _fees(asked: Asked) -> FeesIn | None:
    most, tip = asked.get("max_fee_per_gas_wei"), asked.get("max_priority_fee_per_gas_wei")
    if most is None and tip is None:
        return None
    if most is None or tip is None:
        raise InvalidRequest("max_fee_per_gas_wei and max_priority_fee_per_gas_wei go together", field="fees")
    return FeesIn(max_fee_per_gas=str(most), max_priority_fee_per_gas=str(tip))


def _quantity(number: int | None) -> str | None:
    # As text, because many a JSON library on the way cuts numbers above 2^53.
    return None if number is None else str(number)


def _hex(data: bytes | str) -> str:
    return data if isinstance(data, str) else "0x" + data.hex()


def _plain(arg: Any) -> Any:
    """An argument as JSON can say it: numbers and bytes as text, tuples as arrays."""
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
            raise InvalidRequest(f"an argument is a {type(arg).__name__}", field="args")


def chunks(requests: Iterable[TxRequest]) -> Iterator[list[tuple[TxRequest, bytes]]]:
    """Requests with their bytes, no more together than a node takes at once."""
    chunk: list[tuple[TxRequest, bytes]] = []
    size = 0
    for request in requests:
        body = msgspec.json.encode(request)
        if chunk and (len(chunk) == MOST_BATCH or size + len(body) > MOST_CHUNK_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append((request, body))
        size += len(body) + 1
    if chunk:
        yield chunk
