"""Handle the nonce service's operations, for callers that send transactions themselves.

They respond 404 unless `nonce_service.enabled` is set.
"""

from __future__ import annotations

from dataclasses import asdict
from uuid import UUID

from fencepost.api.context import Handler, RequestContext, Response
from fencepost.api.forwarding import forward
from fencepost.api.parsing import whole_number
from fencepost.api.problems import ApiError
from fencepost.domain.ids import Signer, TxHash
from fencepost.errors import NotLeader
from fencepost.nonce.port import Hold, NonceAllocator
from fencepost.schemas.requests import AllocateIn, UsedIn
from fencepost.schemas.responses import NonceOut, NoncesOut, NonceStatusOut

_MAX_NONCE = 10**18 - 1


def _allocator(call: RequestContext) -> NonceAllocator:
    if call.services.nonces is None:
        raise ApiError("not_found", "the nonce service is off: set nonce_service.enabled")
    return call.services.nonces


def _signer(call: RequestContext) -> Signer:
    signer = call.signer(call.path_text("address"), call.query.chain_id, "address")
    if not call.caller.may_use(signer.address):
        raise ApiError("signer_forbidden", f"this API key may not use {signer.address}", field="address")
    return signer


async def allocate(call: RequestContext) -> Response:
    allocator, signer = _allocator(call), _signer(call)
    body: AllocateIn = call.body or AllocateIn()
    try:
        holds = await allocator.allocate(signer, count=body.count, hold_for_s=body.hold_for_s)
    except NotLeader as error:
        if error.owner is None or error.owner == call.services.node.name:
            raise  # the lease belongs to a process that has ended, and expires
        return await forward(call, signer, error.owner, wait_s=0.0)
    items = [NonceOut(nonce=hold.nonce, token=hold.token.hex) for hold in holds]
    return Response(NoncesOut(signer=signer.address, chain_id=signer.chain_id, items=items))


async def status(call: RequestContext) -> Response:
    allocator, signer = _allocator(call), _signer(call)
    found = await allocator.status(signer)
    if found is None:
        raise ApiError(
            "signer_not_found", f"no nonce of {signer.address} was ever allocated", field="address"
        )
    return Response(NonceStatusOut(signer=signer.address, chain_id=signer.chain_id, **asdict(found)))


def mark(state: str) -> Handler:
    async def handler(call: RequestContext) -> Response:
        allocator, hold = _allocator(call), _hold(call)
        match state:
            case "submitted":
                await allocator.mark_submitted(hold, TxHash(call.body.tx_hash.lower()))
            case "used":
                body: UsedIn = call.body
                await allocator.mark_used(hold, TxHash(body.tx_hash.lower()) if body.tx_hash else None)
            case _:
                await allocator.mark_recyclable(hold)
        return Response(NonceOut(nonce=hold.nonce, token=hold.token.hex))

    return handler


def _hold(call: RequestContext) -> Hold:
    text = call.path_text("nonce")
    nonce = whole_number(text, maximum=_MAX_NONCE)
    if nonce is None:
        raise ApiError("field_invalid", f"nonce: {text[:40]!r} is not a nonce", field="nonce")
    return Hold(_signer(call), nonce, UUID(call.body.token))
