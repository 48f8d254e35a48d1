"""A transaction as a caller may see it: at once, or when it has come some way."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from fencepost.api.calls import Call, Reply
from fencepost.api.convert import tx_out
from fencepost.api.problems import ApiError
from fencepost.api.wire_in import MILESTONES
from fencepost.api.wire_out import TxOut
from fencepost.application.read import Part, TxView
from fencepost.application.waiting import has_reached

DEFAULT_WAIT_S = 30.0
HTTP_OK, HTTP_ACCEPTED = 200, 202


async def read_tx(call: Call, tx_id: UUID, parts: frozenset[Part] = frozenset()) -> TxOut:
    return shown(call, await call.services.reader.get(tx_id, parts), parts)


def shown(call: Call, view: TxView | None, parts: frozenset[Part]) -> TxOut:
    """As this caller may see it; what belongs to signers of others does not exist."""
    if view is None or not call.caller.may_use(view.signer.address):
        raise ApiError("tx_not_found", "no transaction was found")
    return tx_out(
        view,
        parts=parts,
        shows_nonce=call.shows_nonce,
        required=call.services.required_confirmations,
    )


async def wait_for_tx(
    call: Call,
    tx_id: UUID,
    milestone: str,
    *,
    parts: frozenset[Part] = frozenset(),
    headers: Mapping[str, str] | None = None,
) -> Reply:
    """200 when it is reached, 202 with what is known when the time is over."""
    wanted = MILESTONES[milestone]
    timeout_s = call.wait_s(DEFAULT_WAIT_S)
    tx = await call.unless_gone(call.services.waiting.wait_for(tx_id, wanted, timeout_s=timeout_s))
    reached = tx is not None and has_reached(tx, wanted)
    out = await read_tx(call, tx_id, parts)
    return Reply(out, HTTP_OK if reached else HTTP_ACCEPTED, headers or {})
