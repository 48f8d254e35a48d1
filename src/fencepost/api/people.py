"""What people ask: of a transaction, and of a signer. It is stored with who and why; the lane carries it out.

A call waits a little for the lane, so that most answers tell the outcome at once: 200. Else 202, and `Location` says
where to ask again; the wish stands.
"""

from __future__ import annotations

import asyncio

from fencepost.api.bodies import require_plain
from fencepost.api.calls import Call, Handler, Reply
from fencepost.api.convert import command_out
from fencepost.api.problems import ApiError
from fencepost.api.showing import HTTP_ACCEPTED, HTTP_OK, read_tx, shown
from fencepost.api.signers import describe, existing
from fencepost.api.wire_in import UnprotectIn, WishIn
from fencepost.api.wire_out import CommandOut
from fencepost.application.operate import Wish
from fencepost.application.read import CommandView, SignerView
from fencepost.domain.ids import Signer
from fencepost.domain.states import TERMINAL, CursorState

OUTCOME_WITHIN_S = 5.0
DRAINED_WITHIN_S = 30.0
FIRST_LOOK_S, LAST_LOOK_S = 0.02, 0.5
_MOST_COMMAND_ID = 2**63 - 1


def about_transaction(command: str) -> Handler:
    """cancel, suspend, resume, resubmit or bump."""

    async def handle(call: Call) -> Reply:
        view = await call.services.reader.get(call.tx_id())
        shown(call, view, frozenset())
        assert view is not None  # noqa: S101 - `shown` has refused that
        if view.state in TERMINAL:
            raise ApiError("tx_ended", f"it is {view.state}", tx_id=str(view.tx_id))
        wish = Wish(view.signer, command, f"tx.{command}", tx_id=view.tx_id, reason=_plain_reason(call.body))
        done = await _ask(call, wish, within_s=call.wait_s(OUTCOME_WITHIN_S))
        return _reply(done, command_out(done, tx=await read_tx(call, view.tx_id)))

    return handle


_SIGNER_STATE_FOR = {
    "pause": {CursorState.ACTIVE},
    "resume": {CursorState.PAUSED},
    "protect": {CursorState.ACTIVE, CursorState.PAUSED},
    "unprotect": {CursorState.PROTECT},
}
_LANE_COMMAND = {"resume": "unpause"}


def about_signer(action: str) -> Handler:
    """pause, resume, protect or unprotect."""

    async def handle(call: Call) -> Reply:
        view = await _signer_in(call, _SIGNER_STATE_FOR[action])
        detail = {"decision": call.body.decision} if isinstance(call.body, UnprotectIn) else {}
        wish = Wish(
            view.signer,
            _LANE_COMMAND.get(action, action),
            f"signer.{action}",
            reason=_plain_reason(call.body),
            detail=detail,
        )
        done = await _ask(call, wish, within_s=call.wait_s(OUTCOME_WITHIN_S))
        after = await call.services.reader.signer(view.signer)
        return _reply(done, command_out(done, signer=describe(call, after)))

    return handle


async def drain(call: Call) -> Reply:
    """Pause, then wait until nothing is in flight. It stays paused: `resume` opens it again."""
    view = await _signer_in(call, {CursorState.ACTIVE, CursorState.PAUSED})
    within_s = call.wait_s(DRAINED_WITHIN_S)
    deadline_s = asyncio.get_running_loop().time() + within_s
    wish = Wish(view.signer, "pause", "signer.drain", reason=_plain_reason(call.body))
    done = await _ask(call, wish, within_s=within_s)
    left_s = deadline_s - asyncio.get_running_loop().time()
    after = await call.unless_gone(_drained(call, view.signer, left_s))
    is_drained = done.done_at is not None and after.in_flight == 0
    out = command_out(done, signer=describe(call, after), drained=is_drained)
    return Reply(out, HTTP_OK if is_drained else HTTP_ACCEPTED, {"Location": f"/api/v1/commands/{done.id}"})


async def _drained(call: Call, signer: Signer, within_s: float) -> SignerView:
    """The signer when nothing of it is in flight, or when the time is over."""
    deadline_s = asyncio.get_running_loop().time() + within_s
    while True:
        view = await call.services.reader.signer(signer)
        left_s = deadline_s - asyncio.get_running_loop().time()
        if view.in_flight == 0 or left_s <= 0:
            return view
        await asyncio.sleep(min(LAST_LOOK_S, left_s))


async def command(call: Call) -> Reply:
    text = call.path_text("command_id")
    known = text.isascii() and text.isdigit() and int(text) <= _MOST_COMMAND_ID
    view = await call.services.reader.command(int(text)) if known else None
    if view is None or not call.caller.may_use(view.signer.address):
        raise ApiError("command_not_found", f"there is no command {text[:40]!r}")
    return Reply(command_out(view))


async def _signer_in(call: Call, states: set[CursorState]) -> SignerView:
    view = await existing(call)
    if view.state not in states:
        needed = " or ".join(sorted(states))
        raise ApiError("signer_state", f"it is {view.state}; this needs {needed}", field="address")
    return view


async def _ask(call: Call, wish: Wish, *, within_s: float) -> CommandView:
    body: WishIn | UnprotectIn | None = call.body
    by = require_plain(body.by, "by") if body is not None and body.by is not None else None
    command_id = await call.services.operate.ask(wish, call.caller.actor(by))
    call.services.accept.hint(wish.signer)
    return await call.unless_gone(_outcome(call, command_id, within_s))


async def _outcome(call: Call, command_id: int, within_s: float) -> CommandView:
    deadline_s = asyncio.get_running_loop().time() + within_s
    pause_s = FIRST_LOOK_S
    while True:
        view = await call.services.reader.command(command_id)
        assert view is not None  # noqa: S101 - commands are never deleted
        left_s = deadline_s - asyncio.get_running_loop().time()
        if view.done_at is not None or left_s <= 0:
            return view
        await asyncio.sleep(min(pause_s, left_s))
        pause_s = min(2 * pause_s, LAST_LOOK_S)


def _reply(done: CommandView, out: CommandOut) -> Reply:
    return Reply(
        out,
        HTTP_OK if done.done_at is not None else HTTP_ACCEPTED,
        {"Location": f"/api/v1/commands/{done.id}"},
    )


def _plain_reason(body: WishIn | UnprotectIn | None) -> str | None:
    return require_plain(body.reason, "reason") if body is not None and body.reason is not None else None
