"""What only a signer's own node takes, and came to another: handed on to that node, or refused with its name.

The caller is let in, and its calls are counted, where they come in. The owner's answer goes back as it is. Nothing is
tried twice here: whether to come again is the caller's to decide, who knows whether the request has an id.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from fencepost.api.calls import Call, Reply
from fencepost.api.incoming import Incoming
from fencepost.api.problems import RETRY_AFTER_S, ApiError, Problem, foreseen
from fencepost.api.showing import DEFAULT_WAIT_S
from fencepost.api.wire_out import BatchOut, BatchResult
from fencepost.application.forwarding import CARRIED, MOST_HOPS, Answered, Asked, NoAnswer
from fencepost.domain.ids import Signer

_OK = 200


def asked_of(request: Incoming, body: bytes) -> Asked:
    """The call as it came, which is how it goes on."""
    path, query = request.scope["raw_path"], request.scope["query_string"]
    headers = {name: request.headers[name] for name in CARRIED if name in request.headers}
    return Asked(request.method, (path + (b"?" + query if query else b"")).decode("latin-1"), body, headers)


async def owner_elsewhere(call: Call, signer: Signer) -> str | None:
    """The other node that has to take this signer's requests; None: they are taken here."""
    services = call.services
    if services.intake == "any" or services.holds(signer):
        return None
    owner = await services.reader.owner_of(signer)
    return None if owner == services.node.name else owner


def not_leader(call: Call, signer: Signer, owner: str) -> ApiError:
    return ApiError(
        "not_leader",
        f"{signer.address} is with node {owner}",
        field="signer",
        owner=owner,
        retry_after_s=call.services.lease_duration_s,
    )


async def hand_on(call: Call, signer: Signer, owner: str) -> Reply:
    """The owner's answer to this very call."""
    wait_s = 0.0
    if call.query.wait is not None or call.wait_s(0.0) > 0:
        wait_s = call.wait_s(DEFAULT_WAIT_S)
    answered = await call.unless_gone(_forwarded(call, owner, asked_of(call.request, call.raw), wait_s))
    match answered:
        case Answered():
            return Reply(
                msgspec.Raw(answered.body), answered.status, answered.headers, media_type=answered.media_type
            )
        case NoAnswer.NOT_TAKEN:
            raise not_leader(call, signer, owner)
        case NoAnswer.UNKNOWN:
            raise _unknown(owner)


async def hand_on_batch(
    call: Call, owner: str, requests: Sequence[tuple[Signer, bytes]]
) -> list[BatchResult]:
    """A result for each of them, from their owner or about it."""
    here = asked_of(call.request, b"")
    body = b'{"requests":[' + b",".join(raw for _, raw in requests) + b"]}"
    answered = await _forwarded(call, owner, Asked(here.method, here.target, body, here.headers), 0.0)
    match answered:
        case Answered(status=status) if status == _OK:
            return _results(answered, owner, len(requests))
        case Answered():
            problem = _problem(answered, owner)
            return [BatchResult(status=problem.status, problem=problem)] * len(requests)
        case NoAnswer.NOT_TAKEN:
            return [failed(not_leader(call, signer, owner)) for signer, _ in requests]
        case NoAnswer.UNKNOWN:
            return [failed(_unknown(owner))] * len(requests)


def failed(error: Exception) -> BatchResult:
    """What went wrong with one request of a batch; raised again if it is not the request's own fault."""
    known = foreseen(error)
    if known is None:
        raise error
    return BatchResult(status=known.problem.status, problem=known.problem)


async def _forwarded(call: Call, owner: str, asked: Asked, wait_s: float) -> Answered | NoAnswer:
    came_with, key = call.caller.came_with, call.caller.key
    hops = 1 if came_with is None else came_with.hops + 1
    if call.services.forward is None or hops > MOST_HOPS:
        return NoAnswer.NOT_TAKEN
    return await call.services.forward(
        owner, asked, caller=None if key is None else key.id, hops=hops, wait_s=wait_s
    )


def _results(answered: Answered, owner: str, count: int) -> list[BatchResult]:
    try:
        results = msgspec.json.decode(answered.body, type=BatchOut).results
    except msgspec.DecodeError:
        results = []
    return results if len(results) == count else [failed(_unknown(owner))] * count


def _problem(answered: Answered, owner: str) -> Problem:
    try:
        return msgspec.json.decode(answered.body, type=Problem)
    except msgspec.DecodeError:
        return _unknown(owner).problem


def _unknown(owner: str) -> ApiError:
    return ApiError("busy", f"node {owner} has the signer and did not answer", retry_after_s=RETRY_AFTER_S)
