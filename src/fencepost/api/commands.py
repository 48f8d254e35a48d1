"""Handle operator commands on transactions and signers.

A command is stored with its author and reason, and the signer's lane runs it. The request waits a few seconds for the
lane, so most responses contain the outcome: 200. Otherwise the response is 202, the command stays queued, and
`Location` is the URL to poll.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from fencepost.api.context import Handler, RequestContext, Response
from fencepost.api.parsing import require_plain, whole_number
from fencepost.api.presenters import command_out
from fencepost.api.problems import ApiError
from fencepost.api.signers import describe, existing
from fencepost.api.transactions import HTTP_ACCEPTED, HTTP_OK, present_tx, read_tx
from fencepost.application.ports import NewCommand
from fencepost.application.queries import CommandView, SignerView
from fencepost.domain.ids import Signer
from fencepost.domain.states import TERMINAL, CursorState
from fencepost.schemas.requests import CommandIn, UnprotectIn
from fencepost.schemas.responses import CommandOut

OUTCOME_TIMEOUT_S = 5.0
DRAIN_TIMEOUT_S = 30.0
FIRST_POLL_S, MAX_POLL_S = 0.02, 0.5
_MAX_COMMAND_ID = 2**63 - 1


def transaction_command(command: str) -> Handler:
    """Build the handler of cancel, suspend, resume, resubmit or bump."""

    async def handle(call: RequestContext) -> Response:
        view = await call.services.reader.get(call.tx_id())
        present_tx(call, view, frozenset())
        assert view is not None  # noqa: S101 - `present_tx` has rejected that
        if view.state in TERMINAL:
            raise ApiError("tx_ended", f"the transaction is {view.state}", tx_id=str(view.tx_id))
        new_command = NewCommand(
            view.signer, command, f"tx.{command}", tx_id=view.tx_id, reason=_reason_of(call.body)
        )
        done = await _run_command(call, new_command, timeout_s=call.wait_s(OUTCOME_TIMEOUT_S))
        return _command_response(done, command_out(done, tx=await read_tx(call, view.tx_id)))

    return handle


_REQUIRED_STATES: dict[str, tuple[Callable[[SignerView], bool], str]] = {
    "pause": (lambda view: not view.is_paused, "a signer that is not paused"),
    "resume": (lambda view: view.is_paused, "a paused signer"),
    "protect": (lambda view: view.state is not CursorState.PROTECT, "ACTIVE or PAUSED"),
    "drain": (lambda view: view.state is not CursorState.PROTECT, "ACTIVE or PAUSED"),
    "unprotect": (lambda view: view.state is CursorState.PROTECT, "PROTECT"),
}
_LANE_COMMAND = {"resume": "unpause"}


def signer_command(action: str) -> Handler:
    """Build the handler of pause, resume, protect or unprotect."""

    async def handle(call: RequestContext) -> Response:
        view = await _signer_in_state(call, action)
        detail = {"decision": call.body.decision} if isinstance(call.body, UnprotectIn) else {}
        new_command = NewCommand(
            view.signer,
            _LANE_COMMAND.get(action, action),
            f"signer.{action}",
            reason=_reason_of(call.body),
            detail=detail,
        )
        done = await _run_command(call, new_command, timeout_s=call.wait_s(OUTCOME_TIMEOUT_S))
        after = await call.services.reader.signer(view.signer)
        return _command_response(done, command_out(done, signer=describe(call, after)))

    return handle


async def drain(call: RequestContext) -> Response:
    """Pause a signer, then wait until nothing is in flight. The signer stays paused until `resume`."""
    view = await _signer_in_state(call, "drain")
    timeout_s = call.wait_s(DRAIN_TIMEOUT_S)
    deadline_s = asyncio.get_running_loop().time() + timeout_s
    new_command = NewCommand(
        view.signer, "pause", "signer.drain", reason=_reason_of(call.body), detail={"drain": True}
    )
    done = await _run_command(call, new_command, timeout_s=timeout_s)
    left_s = deadline_s - asyncio.get_running_loop().time()
    with call.authenticator.waiting(call.caller):
        after = await call.cancel_on_disconnect(_wait_until_drained(call, view.signer, left_s))
    is_drained = done.done_at is not None and after.in_flight == 0
    out = command_out(done, signer=describe(call, after), drained=is_drained)
    return Response(
        out, HTTP_OK if is_drained else HTTP_ACCEPTED, {"Location": f"/api/v1/commands/{done.id}"}
    )


async def _wait_until_drained(call: RequestContext, signer: Signer, timeout_s: float) -> SignerView:
    """Return the signer once none of its transactions is in flight, or when the time is over."""
    deadline_s = asyncio.get_running_loop().time() + timeout_s
    while True:
        view = await call.services.reader.signer(signer)
        left_s = deadline_s - asyncio.get_running_loop().time()
        if view.in_flight == 0 or left_s <= 0:
            return view
        await asyncio.sleep(min(MAX_POLL_S, left_s))


async def command(call: RequestContext) -> Response:
    return Response(command_out(await _existing_command(call)))


async def withdraw(call: RequestContext) -> Response:
    """Withdraw a command that the lane has not run; respond with that command, 202 while it has no outcome."""
    view = await _existing_command(call)
    if view.done_at is None:
        new_command = NewCommand(view.signer, "withdraw", "command.withdraw", detail={"commandId": view.id})
        await _run_command(call, new_command, timeout_s=OUTCOME_TIMEOUT_S)
        view = await call.services.reader.command(view.id) or view
    return _command_response(view, command_out(view, withdrawn=view.is_withdrawn))


async def _existing_command(call: RequestContext) -> CommandView:
    text = call.path_text("command_id")
    command_id = whole_number(text, maximum=_MAX_COMMAND_ID)
    view = None if command_id is None else await call.services.reader.command(command_id)
    if view is None or not call.caller.may_use(view.signer.address):
        raise ApiError("command_not_found", f"there is no command {text[:40]!r}")
    return view


async def _signer_in_state(call: RequestContext, action: str) -> SignerView:
    view = await existing(call)
    is_allowed, needed = _REQUIRED_STATES[action]
    if not is_allowed(view):
        raise ApiError(
            "signer_state", f"the signer is {view.state}; {action} needs {needed}", field="address"
        )
    return view


async def _run_command(call: RequestContext, new_command: NewCommand, *, timeout_s: float) -> CommandView:
    body: CommandIn | UnprotectIn | None = call.body
    by = require_plain(body.by, "by") if body is not None and body.by is not None else None
    with call.authenticator.waiting(call.caller):
        command_id = await call.services.commands.submit(new_command, call.caller.actor(by))
        call.services.acceptor.hint(new_command.signer)
        return await call.cancel_on_disconnect(_wait_for_outcome(call, command_id, timeout_s))


async def _wait_for_outcome(call: RequestContext, command_id: int, timeout_s: float) -> CommandView:
    deadline_s = asyncio.get_running_loop().time() + timeout_s
    pause_s = FIRST_POLL_S
    while True:
        view = await call.services.reader.command(command_id)
        assert view is not None  # noqa: S101 - commands are never deleted
        left_s = deadline_s - asyncio.get_running_loop().time()
        if view.done_at is not None or left_s <= 0:
            return view
        await asyncio.sleep(min(pause_s, left_s))
        pause_s = min(2 * pause_s, MAX_POLL_S)


def _command_response(done: CommandView, out: CommandOut) -> Response:
    return Response(
        out,
        HTTP_OK if done.done_at is not None else HTTP_ACCEPTED,
        {"Location": f"/api/v1/commands/{done.id}"},
    )


def _reason_of(body: CommandIn | UnprotectIn | None) -> str | None:
    return require_plain(body.reason, "reason") if body is not None and body.reason is not None else None
