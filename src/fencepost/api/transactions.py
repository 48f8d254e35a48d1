"""Read transactions: by id, by request id, by hash, in pages, at a milestone, and the list of completions."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from fencepost.api.context import RequestContext, Response
from fencepost.api.parsing import whole_number
from fencepost.api.presenters import completion_out, cursor_text, tx_out
from fencepost.api.problems import ApiError
from fencepost.api.request_parser import signer_of
from fencepost.application.queries import BEGINNING, CompletionCursor, Part, TxFilter, TxView
from fencepost.application.tx_waiter import has_reached
from fencepost.schemas.requests import MILESTONES
from fencepost.schemas.responses import CompletionsOut, TxOut, TxPage

DEFAULT_WAIT_S = 30.0
# A chain counts as silent when none of its endpoints has answered for this long.
SILENT_AFTER_S = 5.0
HTTP_OK, HTTP_ACCEPTED = 200, 202


async def read_tx(call: RequestContext, tx_id: UUID, parts: frozenset[Part] = frozenset()) -> TxOut:
    return present_tx(call, await call.services.reader.get(tx_id, parts), parts)


def present_tx(call: RequestContext, view: TxView | None, parts: frozenset[Part]) -> TxOut:
    """Build the response for a transaction; raise `tx_not_found` if the caller may not use its signer."""
    if view is None or not call.caller.may_use(view.signer.address):
        raise ApiError("tx_not_found", "no transaction was found")
    return tx_out(
        view,
        parts=parts,
        shows_nonce=call.shows_nonce,
        required=call.services.settings.required_confirmations,
        is_chain_silent=_is_silent(call, view.signer.chain_id),
    )


def _is_silent(call: RequestContext, chain_id: int) -> bool:
    chain = call.services.chains.by_id.get(chain_id)
    return chain is not None and chain.silent_for_s >= SILENT_AFTER_S


async def wait_for_tx(
    call: RequestContext,
    tx_id: UUID,
    milestone: str,
    *,
    parts: frozenset[Part] = frozenset(),
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Wait for a milestone: 200 once it is reached, 202 with the current state when the time is over."""
    wanted = MILESTONES[milestone]
    timeout_s = call.wait_s(DEFAULT_WAIT_S)
    tx = await call.cancel_on_disconnect(call.services.tx_waiter.wait_for(tx_id, wanted, timeout_s=timeout_s))
    reached = tx is not None and has_reached(tx, wanted)
    out = await read_tx(call, tx_id, parts)
    return Response(out, HTTP_OK if reached else HTTP_ACCEPTED, headers or {})


_MAX_BIGINT = 2**63 - 1
_MAX_XID = 2**64 - 1


async def get(call: RequestContext) -> Response:
    tx_id, parts = call.tx_id(), frozenset(call.query.include)
    if call.query.wait is not None:
        with call.authenticator.waiting(call.caller):
            await read_tx(call, tx_id)  # raises if this caller may not see it
            return await wait_for_tx(call, tx_id, call.query.wait, parts=parts)
    return Response(await read_tx(call, tx_id, parts))


async def by_request(call: RequestContext) -> Response:
    query = call.query
    signer = signer_of(call, query.signer, query.submitter, query.chain_id)
    if "\0" in query.request_id:
        raise ApiError("tx_not_found", "no transaction was found")
    parts = frozenset(query.include)
    view = await call.services.reader.by_request(signer, query.request_id, parts)
    return Response(present_tx(call, view, parts))


async def by_hash(call: RequestContext) -> Response:
    query = call.query
    chain_ids = (
        list(call.services.chains.by_id) if query.chain_id is None else [call.chain_id(query.chain_id)]
    )
    parts = frozenset(query.include)
    view = await call.services.reader.by_hash(chain_ids, call.tx_hash(), parts)
    return Response(present_tx(call, view, parts))


async def page(call: RequestContext) -> Response:
    query = call.query
    parts = frozenset(query.include)
    if Part.HISTORY in parts:
        raise ApiError(
            "query_invalid", "include: history is available for single transactions only", field="include"
        )
    addresses = call.caller.addresses
    if query.signer or query.submitter:
        requested = {call.address(text, "signer") for text in query.signer}
        requested |= {call.address(text, "submitter") for text in query.submitter}
        addresses = tuple(sorted(requested if addresses is None else requested & set(addresses)))
    wanted = TxFilter(
        chain_id=None if query.chain_id is None else call.chain_id(query.chain_id),
        addresses=addresses,
        states=tuple(query.state) or None,
        sub_states=tuple(query.sub_state) or None,
        created_from=query.created_from,
        created_before=query.created_before,
        tags=tuple(tag.replace("\0", "\ufffd") for tag in query.tag),  # no stored text has a NUL
    )
    below = None if query.cursor is None else _tx_id(query.cursor)
    views = await call.services.reader.page(wanted, below=below, limit=query.limit, parts=parts)
    return Response(
        TxPage(
            items=[present_tx(call, view, parts) for view in views],
            next=str(views[-1].tx_id) if len(views) == query.limit else None,
        )
    )


async def completions(call: RequestContext) -> Response:
    after = _parse_cursor(call.query.after) if call.query.after else BEGINNING
    found = await call.services.reader.completions(
        after, limit=call.query.limit, addresses=call.caller.addresses
    )
    items = [completion_out(completion, shows_nonce=call.shows_nonce) for completion in found]
    return Response(CompletionsOut(items=items, next=items[-1].cursor if items else cursor_text(after)))


def _tx_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise _invalid_cursor() from None


def _parse_cursor(text: str) -> CompletionCursor:
    match text.split("-", maxsplit=3):
        case [epoch, xid, row]:
            return CompletionCursor(
                _parse_number(epoch, maximum=_MAX_BIGINT),
                _parse_number(xid, maximum=_MAX_XID),
                _parse_number(row, maximum=_MAX_BIGINT),
            )
        case _:
            raise _invalid_cursor()


def _parse_number(text: str, *, maximum: int) -> int:
    number = whole_number(text, maximum=maximum)
    if number is None:
        raise _invalid_cursor()
    return number


def _invalid_cursor() -> ApiError:
    return ApiError("cursor_invalid", "the cursor was not issued by this API", field="cursor")
