"""Handle `eth_sendTransaction`: store it in the order of the batch, and return the hash once it is signed.

A caller that sets a request id (`requestId`, or the header `Idempotency-Key`) may repeat the request: it stays one
transaction. If it has no hash in time, it continues, and a retry can get the hash. A client without request ids takes an
error for "not sent". For those clients that is made true: a transaction without a nonce at the end of the wait is dropped.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from msgspec import Meta

from fencepost.api.jsonrpc.errors import SERVER_ERROR, Reverts, RpcFault
from fencepost.api.jsonrpc.parsing import RpcRequestContext
from fencepost.api.parsing import validation_problem
from fencepost.api.problems import ApiError
from fencepost.api.request_parser import quantity, to_request
from fencepost.api.submission import submit
from fencepost.application.accept import Request
from fencepost.application.api_keys import Scope
from fencepost.application.funds import SENT_LATER_TEXT
from fencepost.application.ports import NewCommand
from fencepost.application.queries import TxFilter
from fencepost.application.tx_waiter import Milestone
from fencepost.domain.ids import Signer, TxHash
from fencepost.domain.states import CursorState, State, SubState
from fencepost.domain.transaction_state import ManagedTx, Purpose
from fencepost.errors import RpcError, RpcRefused, Stopping
from fencepost.schemas.requests import (
    AccessEntryIn,
    AddressText,
    FeesIn,
    Payload,
    Quantity,
    RequestId,
    TxRequest,
)

DROP_TIMEOUT_S = 3.0  # for the lane to drop a request whose time is over
POLL_INTERVAL_S = 1.0
FIRST_POLL_S = 0.02  # for a transaction that has its nonce and is being sent
MAX_NESTING = 4

_HEX_AT_END = re.compile(r"0x(?:[0-9a-fA-F]{2})*\Z")
MAX_NONCE = 2**64 - 2


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
class SubmittedTx:
    tx_id: UUID
    signer: Signer
    may_repeat: bool


async def submit_call(context: RpcRequestContext, params: list[Any], *, index: int | None) -> SubmittedTx:
    """Store the request or raise. `index` is the position in the batch; it makes the idempotency key unique per call."""
    call = context.call
    call.caller.require(Scope.TX_WRITE)
    if len(params) != 1:
        raise RpcFault("params_invalid", "params must have one transaction object")
    try:
        transaction = msgspec.convert(params[0], type=SendIn)
    except msgspec.ValidationError as error:
        raise validation_problem(error) from None
    key = context.idempotency_key
    if key is not None and index is not None:
        key = f"{key}/{index}"
    request = _request(context, transaction, key)
    if request.request_id is None and transaction.nonce is not None:
        _require_nonce_hint(context, request.signer, quantity(transaction.nonce, "nonce", maximum=MAX_NONCE))
    accepted = await submit(call, request)
    return SubmittedTx(accepted.tx_id, request.signer, may_repeat=request.request_id is not None)


def _request(context: RpcRequestContext, transaction: SendIn, key: str | None) -> Request:
    if transaction.chain_id is not None:
        chain_id = quantity(transaction.chain_id, "chainId", maximum=2**64)
        if chain_id != context.chain_id:
            raise ApiError(
                "chain_unknown",
                f"chainId: {chain_id} differs from {context.chain_id}, the chain of this URL",
                field="chainId",
            )
    if transaction.data and transaction.input and transaction.data != transaction.input:
        raise ApiError("field_invalid", "input: differs from data; send only one of them", field="input")
    has_request_id = transaction.request_id is not None or key is not None
    until = None if has_request_id else datetime.now(UTC) + timedelta(seconds=context.wait_s)
    payload = Payload(
        to=transaction.to,
        data=transaction.input or transaction.data,
        value=0 if transaction.value is None else transaction.value,
        gas=transaction.gas,
        fees=_fees(transaction),
        gas_price=transaction.gas_price,
        type=transaction.type,
        access_list=transaction.access_list,
    )
    request = TxRequest(
        payload=payload,
        signer=transaction.sender,
        request_id=transaction.request_id,
        chain_id=context.chain_id,
        valid_until=until,
    )
    return to_request(context.call, request, idempotency_key=key)


def _fees(transaction: SendIn) -> FeesIn | None:
    cap, tip = transaction.max_fee_per_gas, transaction.max_priority_fee_per_gas
    if cap is None and tip is None:
        return None
    if cap is None or tip is None:
        field = "maxFeePerGas" if cap is None else "maxPriorityFeePerGas"
        raise ApiError(
            "field_missing", f"{field}: send both maxFeePerGas and maxPriorityFeePerGas, or none", field=field
        )
    return FeesIn(max_fee_per_gas=cap, max_priority_fee_per_gas=tip)


def _require_nonce_hint(context: RpcRequestContext, signer: Signer, nonce: int) -> None:
    if not context.nonce_hints.use(context.caller_id, signer, nonce):
        raise RpcFault(
            "nonce_managed",
            f"nonce {nonce} is not an unused count that eth_getTransactionCount just returned to this caller: omit it."
            " To replace or cancel a transaction use /api/v1; to avoid duplicates set requestId",
            field="nonce",
        )


async def hash_of(context: RpcRequestContext, submitted: SubmittedTx) -> TxHash:
    """Return the hash once an endpoint has the transaction; raise if it will not be sent.

    A transaction that has a nonce when the time is over will be sent, so its hash is returned as well.
    """
    left_s = context.wait_s + (0.0 if submitted.may_repeat else DROP_TIMEOUT_S)
    unfunded: RpcRefused | None = None
    pause_s = FIRST_POLL_S
    while True:
        step_s = min(POLL_INTERVAL_S, left_s)
        tx = await _wait_for_nonce(context, submitted, step_s)
        if tx.ending is State.FAILED:  # an endpoint rejected it permanently, and a filler consumes its nonce
            raise await _rejection(context, tx)
        if (known := _hash(tx)) is not None:
            if left_s <= 0 or await _is_sent(context, tx, known):
                return known
            left_s -= pause_s
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, POLL_INTERVAL_S)
            continue
        if tx.is_terminal:
            raise unfunded or await _rejection(context, tx)
        if unfunded is None and (error := await _unfunded(context, submitted, tx)) is not None:
            if submitted.may_repeat:
                raise RpcRefused(error, rpc_code=SERVER_ERROR)
            unfunded = RpcRefused(error.removesuffix(SENT_LATER_TEXT), rpc_code=SERVER_ERROR)
            await _cancel_unfunded(context, submitted)
            continue
        await _require_unprotected(context, submitted)
        left_s -= step_s
        if left_s <= 0:
            raise _no_hash(submitted)


async def _wait_for_nonce(context: RpcRequestContext, submitted: SubmittedTx, timeout_s: float) -> ManagedTx:
    """Return the transaction when it has a nonce or has ended, or as it is when the time is over."""
    waiting = context.call.services.tx_waiter
    try:
        tx = await waiting.wait_for(submitted.tx_id, Milestone.ALLOCATED, timeout_s=timeout_s)
    except Stopping:
        detail = "this node is stopping; another node continues the transaction"
        raise RpcFault("tx_waiting", detail, txId=str(submitted.tx_id)) from None
    if tx is None:
        raise RpcFault("tx_refused", "the transaction no longer exists", txId=str(submitted.tx_id))
    return tx


async def _require_unprotected(context: RpcRequestContext, submitted: SubmittedTx) -> None:
    view = await context.call.services.reader.signer(submitted.signer)
    if view.state is CursorState.PROTECT:
        raise ApiError(
            "signer_protected",
            f"{submitted.signer.address} is in PROTECT until an operator decides: {view.reason}",
            field="from",
            tx_id=str(submitted.tx_id),
        )


async def _unfunded(context: RpcRequestContext, submitted: SubmittedTx, tx: ManagedTx) -> str | None:
    """Return the error if the account can't pay for the transaction, or for one that it waits behind."""
    if tx.sub_state is SubState.UNFUNDED:
        return tx.error or "insufficient funds"
    if tx.sub_state is not None or tx.state is not State.QUEUED:
        return None
    signer = submitted.signer
    wanted = TxFilter(signer.chain_id, (signer.address,), (State.QUEUED,), (SubState.UNFUNDED,))
    ahead = await context.call.services.reader.page(wanted, below=submitted.tx_id, limit=1)
    return ahead[0].error if ahead else None


async def _cancel_unfunded(context: RpcRequestContext, submitted: SubmittedTx) -> None:
    """Cancel a transaction that the account can't pay for: the response says "not sent", so it must not be sent later."""
    services = context.call.services
    reason = "the account could not pay for it, and the caller got that error"
    command = NewCommand(submitted.signer, "cancel", "tx.cancel", tx_id=submitted.tx_id, reason=reason)
    await services.commands.submit(command, context.call.caller.actor(None))
    services.acceptor.hint(submitted.signer)


def _hash(tx: ManagedTx) -> TxHash | None:
    """Return the hash of the newest or the mined attempt of the intent; fillers do not count."""
    ours = [attempt.signed.hash for attempt in tx.attempts if attempt.purpose is Purpose.INTENT]
    if tx.mined is not None and tx.mined.tx_hash in ours:
        return tx.mined.tx_hash
    return ours[-1] if ours else None


async def _is_sent(context: RpcRequestContext, tx: ManagedTx, tx_hash: TxHash) -> bool:
    """Return whether an endpoint has the transaction. The send is stored with a delay, so ask the endpoints."""
    if tx.submit_count and tx.state not in (State.QUEUED, State.ALLOCATED):
        return True
    try:
        (known,) = await context.call.services.chains[context.chain_id].knows([tx_hash])
    except RpcError:
        return False
    return known


async def _revert_hex(context: RpcRequestContext, tx: ManagedTx) -> str:
    """Ask an endpoint for the revert data of the call; return "0x" if it has none."""
    call = tx.intent.call
    call_object: dict[str, Any] = {"from": tx.signer.address, "data": f"0x{call.data.hex()}"}
    call_object["value"] = hex(call.value_wei)
    if call.to is not None:
        call_object["to"] = call.to
    try:
        await context.call_endpoint("eth_call", [call_object, "latest"])
    except RpcRefused as error:
        return _hex_in(error.data)
    except RpcError:
        return "0x"
    return "0x"


def _hex_in(data: object) -> str:
    """Find the revert data in the `data` of an endpoint's error: as text, after a word, or in an object."""
    for _ in range(MAX_NESTING):
        if isinstance(data, dict):
            data = data.get("data", data.get("result"))
    found = _HEX_AT_END.search(data) if isinstance(data, str) else None
    return found[0] if found else "0x"


async def _rejection(context: RpcRequestContext, tx: ManagedTx) -> RpcFault:
    detail = tx.error or f"the transaction ended as {tx.state}"
    code = "tx_refused"
    if detail.startswith("would revert"):
        return Reverts(detail, await _revert_hex(context, tx), txId=str(tx.tx_id))
    if detail.startswith("validUntil"):
        code, detail = "tx_too_late", "the transaction had no nonce in time and was dropped"
    return RpcFault(code, detail, txId=str(tx.tx_id))


def _no_hash(submitted: SubmittedTx) -> RpcFault:
    if submitted.may_repeat:
        return RpcFault("tx_waiting", "the transaction waits for a nonce", txId=str(submitted.tx_id))
    return RpcFault(
        "tx_too_late",
        "the transaction had no nonce in time and is being dropped; check txId in case it got one at the last moment",
        txId=str(submitted.tx_id),
    )
