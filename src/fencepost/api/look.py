"""Looking at transactions: by id, by request, by hash, in pages; and what ended."""

from __future__ import annotations

from uuid import UUID

from fencepost.api.calls import Call, Reply
from fencepost.api.convert import completion_out, place_text
from fencepost.api.problems import ApiError
from fencepost.api.showing import read_tx, shown, wait_for_tx
from fencepost.api.wire_out import CompletionsOut, TxPage
from fencepost.application.read import BEGINNING, Part, Place, TxFilter

_MOST_BIGINT = 2**63 - 1
_MOST_XID = 2**64 - 1


async def get(call: Call) -> Reply:
    tx_id, parts = call.tx_id(), frozenset(call.query.include)
    if call.query.wait is not None:
        await read_tx(call, tx_id)  # what this caller may not see it can't wait for either
        return await wait_for_tx(call, tx_id, call.query.wait, parts=parts)
    return Reply(await read_tx(call, tx_id, parts))


async def by_request(call: Call) -> Reply:
    query = call.query
    signer = call.signer(query.signer, query.chain_id, "signer")
    if "\0" in query.request_id:
        raise ApiError("tx_not_found", "no transaction was found")
    parts = frozenset(query.include)
    view = await call.services.reader.by_request(signer, query.request_id, parts)
    return Reply(shown(call, view, parts))


async def by_hash(call: Call) -> Reply:
    query = call.query
    chain_ids = list(call.services.chains) if query.chain_id is None else [call.chain_id(query.chain_id)]
    parts = frozenset(query.include)
    view = await call.services.reader.by_hash(chain_ids, call.tx_hash(), parts)
    return Reply(shown(call, view, parts))


async def page(call: Call) -> Reply:
    query = call.query
    parts = frozenset(query.include)
    if Part.HISTORY in parts:
        raise ApiError("query_invalid", "include: history is told of one transaction only", field="include")
    addresses = call.caller.addresses
    if query.signer:
        asked = {call.address(text, "signer") for text in query.signer}
        addresses = tuple(sorted(asked if addresses is None else asked & set(addresses)))
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
    return Reply(
        TxPage(
            items=[shown(call, view, parts) for view in views],
            next=str(views[-1].tx_id) if len(views) == query.limit else None,
        )
    )


async def completions(call: Call) -> Reply:
    after = _place(call.query.after) if call.query.after else BEGINNING
    found = await call.services.reader.completions(
        after, limit=call.query.limit, addresses=call.caller.addresses
    )
    items = [completion_out(completion, shows_nonce=call.shows_nonce) for completion in found]
    return Reply(CompletionsOut(items=items, next=items[-1].cursor if items else place_text(after)))


def _tx_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise _no_cursor() from None


def _place(text: str) -> Place:
    xid, dash, row = text.partition("-")
    if not dash:
        raise _no_cursor()
    return Place(_whole(xid, most=_MOST_XID), _whole(row, most=_MOST_BIGINT))


def _whole(text: str, *, most: int) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) > most:
        raise _no_cursor()
    return int(text)


def _no_cursor() -> ApiError:
    return ApiError("cursor_invalid", "the cursor was not given by us", field="cursor")
