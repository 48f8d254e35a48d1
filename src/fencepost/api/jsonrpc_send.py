"""`eth_sendTransaction` through the core: taken in the order of the batch, answered with the hash once bytes are stored.

Whoever names the request (`requestId`, or the header `Idempotency-Key`) may repeat it: it stays one transaction, and
if there is no hash in time, it goes on and the next try may get it. A client that does not know of request ids takes
an error for "not sent", so for those that is made true: what has no nonce by the end of the wait never gets one.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from msgspec import Meta

from fencepost.api.bodies import misfit
from fencepost.api.intake import quantity, to_request
from fencepost.api.jsonrpc_calls import Visit
from fencepost.api.jsonrpc_faults import Fault
from fencepost.api.problems import ApiError
from fencepost.api.submit import take_one
from fencepost.api.wire_in import AccessEntryIn, AddressText, FeesIn, Payload, Quantity, RequestId, TxRequest
from fencepost.application.accept import Request
from fencepost.application.api_keys import Scope
from fencepost.application.waiting import Milestone
from fencepost.domain.ids import Signer, TxHash
from fencepost.domain.managed import ManagedTx, Purpose
from fencepost.domain.states import CursorState
from fencepost.errors import Stopping

SETTLE_S = 3.0  # for the lane to say that a request came too late
LOOK_EVERY_S = 1.0
MOST_NONCE = 2**64 - 2


class SendIn(msgspec.Struct, rename="camel", forbid_unknown_fields=True, kw_only=True):
    sender: AddressText = msgspec.field(name="from")
    to: str | None = None
    gas: Quantity | None = None
    gas_price: Quantity | None = None
    max_fee_per_gas: Quantity | None = None
    max_priority_fee_per_gas: Quantity | None = None
    value: Quantity | None = None
    data: str | None = None
    input: str | None = None
    nonce: Quantity | None = None
    type: Literal[0, 1, 2, "0x0", "0x1", "0x2"] | None = None
    access_list: Annotated[list[AccessEntryIn], Meta(max_length=1000)] | None = None
    chain_id: Quantity | None = None
    request_id: RequestId | None = None


@dataclass(frozen=True, slots=True)
class Taken:
    tx_id: UUID
    signer: Signer
    may_repeat: bool


async def take(visit: Visit, params: list[Any], *, place: int | None) -> Taken:
    """Stored, or refused. `place` is the call's in its batch, which makes one header into a key for each."""
    call = visit.call
    call.caller.require(Scope.TX_WRITE)
    if len(params) != 1:
        raise Fault("params_invalid", "one transaction object is expected")
    try:
        asked = msgspec.convert(params[0], type=SendIn)
    except msgspec.ValidationError as error:
        raise misfit(error) from None
    key = visit.idempotency_key
    if key is not None and place is not None:
        key = f"{key}/{place}"
    request = _request(visit, asked, key)
    if request.request_id is None and asked.nonce is not None:
        _require_told(visit, request.signer, quantity(asked.nonce, "nonce", most=MOST_NONCE))
    accepted = await take_one(call, request)
    return Taken(accepted.tx_id, request.signer, may_repeat=request.request_id is not None)


def _request(visit: Visit, asked: SendIn, key: str | None) -> Request:
    if asked.chain_id is not None:
        chain_id = quantity(asked.chain_id, "chainId", most=2**64)
        if chain_id != visit.chain_id:
            raise ApiError("chain_unknown", f"chainId: {chain_id} is not {visit.chain_id}", field="chainId")
    if asked.data and asked.input and asked.data != asked.input:
        raise ApiError("field_invalid", "input: differs from data; give one of them", field="input")
    is_named = asked.request_id is not None or key is not None
    until = None if is_named else datetime.now(UTC) + timedelta(seconds=visit.wait_s)
    payload = Payload(
        to=asked.to,
        data=asked.input or asked.data,
        value=0 if asked.value is None else asked.value,
        gas=asked.gas,
        fees=_fees(asked),
        gas_price=asked.gas_price,
        type=asked.type,
        access_list=asked.access_list,
    )
    wanted = TxRequest(
        payload=payload,
        signer=asked.sender,
        request_id=asked.request_id,
        chain_id=visit.chain_id,
        valid_until=until,
    )
    return to_request(visit.call, wanted, idempotency_key=key)


def _fees(asked: SendIn) -> FeesIn | None:
    cap, tip = asked.max_fee_per_gas, asked.max_priority_fee_per_gas
    if cap is None and tip is None:
        return None
    if cap is None or tip is None:
        field = "maxFeePerGas" if cap is None else "maxPriorityFeePerGas"
        raise ApiError("field_missing", f"{field}: give both prices, or none", field=field)
    return FeesIn(max_fee_per_gas=cap, max_priority_fee_per_gas=tip)


def _require_told(visit: Visit, signer: Signer, nonce: int) -> None:
    if not visit.told.use(visit.caller_id, signer, nonce):
        raise Fault(
            "nonce_managed",
            f"nonce {nonce} is not one that this caller was just told and has not used: a transaction is replaced"
            " or cancelled over /api/v1, and one that shall not be doubled gets a requestId",
            field="nonce",
        )


async def hash_of(visit: Visit, taken: Taken) -> TxHash:
    """The hash, as soon as there is one; or why there is none."""
    services = visit.call.services
    left_s = visit.wait_s + (0.0 if taken.may_repeat else SETTLE_S)
    while True:
        step_s = min(LOOK_EVERY_S, left_s)
        try:
            tx = await services.waiting.wait_for(taken.tx_id, Milestone.ALLOCATED, timeout_s=step_s)
        except Stopping:
            said = "this node is stopping; another one goes on with it"
            raise Fault("tx_waiting", said, txId=str(taken.tx_id)) from None
        if tx is None:
            raise Fault("tx_refused", "the transaction is gone", txId=str(taken.tx_id))
        if (known := _hash(tx)) is not None:
            return known
        if tx.is_terminal:
            raise _refusal(tx)
        view = await services.reader.signer(taken.signer)
        if view.state is CursorState.PROTECT:
            raise ApiError(
                "signer_protected",
                f"{taken.signer.address} waits for a person: {view.reason}",
                field="from",
                tx_id=str(taken.tx_id),
            )
        left_s -= step_s
        if left_s <= 0:
            raise _no_hash(taken)


def _hash(tx: ManagedTx) -> TxHash | None:
    """Of what was asked for: a filler that took its nonce is something else."""
    ours = [attempt.signed.hash for attempt in tx.attempts if attempt.purpose is Purpose.INTENT]
    if tx.mined is not None and tx.mined.tx_hash in ours:
        return tx.mined.tx_hash
    return ours[-1] if ours else None


def _refusal(tx: ManagedTx) -> Fault:
    said = tx.error or f"it ended as {tx.state}"
    code = "tx_refused"
    if said.startswith("would revert"):
        code = "would_revert"
    elif said.startswith("validUntil"):
        code, said = "tx_too_late", "it had no nonce in time and was dropped"
    return Fault(code, said, txId=str(tx.tx_id))


def _no_hash(taken: Taken) -> Fault:
    if taken.may_repeat:
        return Fault("tx_waiting", "it waits for its turn", txId=str(taken.tx_id))
    return Fault(
        "tx_too_late",
        "it had no nonce in time and is dropped; should it have got one in this very moment, txId tells",
        txId=str(taken.tx_id),
    )
