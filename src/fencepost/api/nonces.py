"""Nonces over HTTP, for callers who send by themselves; closed unless the nonce service is on."""

from __future__ import annotations

from dataclasses import asdict
from uuid import UUID

from fencepost.api.calls import Call, Handler, Reply
from fencepost.api.problems import ApiError
from fencepost.api.wire_in import AllocateIn, UsedIn
from fencepost.api.wire_out import NonceOut, NoncesOut, NonceStatusOut
from fencepost.domain.ids import Signer, TxHash
from fencepost.nonce.port import Hold, NonceDesk

_NONCE_DIGITS_MAX = 18


def _desk(call: Call) -> NonceDesk:
    if call.services.nonces is None:
        raise ApiError("not_found", "the nonce service is off here: nonce_service.enabled")
    return call.services.nonces


def _signer(call: Call) -> Signer:
    signer = call.signer(call.path_text("address"), call.query.chain_id, "address")
    if not call.caller.may_use(signer.address):
        raise ApiError("signer_forbidden", f"{signer.address} is not one of this key's", field="address")
    return signer


async def allocate(call: Call) -> Reply:
    desk, signer = _desk(call), _signer(call)
    asked: AllocateIn = call.body or AllocateIn()
    holds = await desk.allocate(signer, count=asked.count, hold_for_s=asked.hold_for_s)
    items = [NonceOut(nonce=hold.nonce, token=hold.token.hex) for hold in holds]
    return Reply(NoncesOut(signer=signer.address, chain_id=signer.chain_id, items=items))


async def status(call: Call) -> Reply:
    desk, signer = _desk(call), _signer(call)
    found = await desk.status(signer)
    if found is None:
        raise ApiError("signer_not_found", f"{signer.address} never had a nonce from here", field="address")
    return Reply(NonceStatusOut(signer=signer.address, chain_id=signer.chain_id, **asdict(found)))


def mark(state: str) -> Handler:
    async def handler(call: Call) -> Reply:
        desk, hold = _desk(call), _hold(call)
        match state:
            case "submitted":
                await desk.mark_submitted(hold, TxHash(call.body.tx_hash.lower()))
            case "used":
                asked: UsedIn = call.body
                await desk.mark_used(hold, TxHash(asked.tx_hash.lower()) if asked.tx_hash else None)
            case _:
                await desk.mark_recyclable(hold)
        return Reply(NonceOut(nonce=hold.nonce, token=hold.token.hex))

    return handler


def _hold(call: Call) -> Hold:
    text = call.path_text("nonce")
    if not text.isascii() or not text.isdigit() or len(text) > _NONCE_DIGITS_MAX:
        raise ApiError("field_invalid", f"nonce: {text[:40]!r} is no nonce", field="nonce")
    return Hold(_signer(call), int(text), UUID(call.body.token))
