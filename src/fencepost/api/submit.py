"""Taking transactions: one, or up to a thousand; and waiting until they have come some way."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from uuid import UUID

from fencepost.api.bodies import decode
from fencepost.api.calls import Call, Reply
from fencepost.api.elsewhere import failed, hand_on, hand_on_batch, not_leader, owner_elsewhere
from fencepost.api.intake import to_request
from fencepost.api.problems import ApiError
from fencepost.api.showing import HTTP_ACCEPTED, HTTP_OK, read_tx, shown, wait_for_tx
from fencepost.api.unwaited import Waits, unwaited
from fencepost.api.wire_in import BatchEnvelope, BatchIn, TxRequest, WaitQuery
from fencepost.api.wire_out import BatchOut, BatchResult, TxOut
from fencepost.application.accept import Request
from fencepost.application.policy import ADMITTED, Admission, PolicyGuard
from fencepost.application.ports import Accepted, AcceptOutcome
from fencepost.domain.states import State
from fencepost.errors import Overloaded, Stopping

PREFERRED = "submitted"  # what `Prefer: wait` alone waits for: the hash is known, and out


async def one(call: Call) -> Reply:
    request = _request(call)
    if call.services.intake != "any":
        owner = await owner_elsewhere(call, request.signer)
        if owner is not None:
            return await hand_on(call, request.signer, owner)
    return await taken(call, request, await _take_here(call, request))


def begin_one(
    call: Call, then: Callable[[Request, asyncio.Future[Accepted]], None]
) -> asyncio.Future[Accepted] | None:
    """`one` as far as the commit, if nothing else has to be waited for; `then` goes on. None: nothing has begun."""
    if call.services.intake != "any" or _milestone(call) is not None:
        return None
    request = _request(call)
    try:
        if unwaited(call.services.policy.limits_of(request.signer)) is not None:
            return None
    except Waits:
        return None
    return call.services.accept.begin(request, partial(then, request))


async def taken(call: Call, request: Request, accepted: Accepted) -> Reply:
    """What is said of a request that was stored, or had been before."""
    _raise_refusal(request, accepted)
    milestone = _milestone(call)
    if milestone is not None:
        with suppress(Stopping):  # it is taken, and that can still be said
            return await wait_for_tx(call, accepted.tx_id, milestone, headers=_place(str(accepted.tx_id)))
    if accepted.outcome is AcceptOutcome.CREATED:
        return created(request, accepted)
    return Reply(await read_tx(call, accepted.tx_id), HTTP_OK, _place(str(accepted.tx_id)))


def created(request: Request, accepted: Accepted) -> Reply:
    tx_id = str(accepted.tx_id)
    return Reply(_fresh(request, tx_id), HTTP_ACCEPTED, _place(tx_id))


def _place(tx_id: str) -> dict[str, str]:
    return {"Location": f"/api/v1/tx/{tx_id}"}


def _request(call: Call) -> Request:
    return to_request(call, call.body, idempotency_key=call.request.headers.get("idempotency-key"))


async def take_one(call: Call, request: Request) -> Accepted:
    """The one way in for a single request, whichever door it came through; what is no success is raised."""
    owner = await owner_elsewhere(call, request.signer)
    if owner is not None:
        raise not_leader(call, request.signer, owner)
    return await _take_here(call, request)


async def _take_here(call: Call, request: Request) -> Accepted:
    admission = (await call.services.policy.admit([request]))[0]
    if admission.refused is not None:
        raise _forbidden(request, admission.refused)
    accepted = (await _take(call, [request], [admission]))[0]
    if accepted.outcome is not AcceptOutcome.CREATED:
        _raise_refusal(request, accepted)
    return accepted


async def batch(call: Call) -> Reply:
    asked = _asked(call.body)
    call.gate.charge(call.caller, len(asked))
    results: list[BatchResult | None] = [None] * len(asked)
    good: list[tuple[int, Request]] = []
    for index, wanted in enumerate(asked):
        try:
            good.append((index, to_request(call, _well_formed(wanted))))
        except Exception as error:  # noqa: BLE001 - `failed` raises again what is not the request's own fault
            results[index] = failed(error)
    if call.services.intake != "any":
        good = await _for_this_node(call, good, results)
    admissions = await call.services.policy.admit([request for _, request in good])
    for (index, request), admission in zip(good, admissions, strict=True):
        if admission.refused is not None:
            results[index] = failed(_forbidden(request, admission.refused))
    admissions = [admission for admission in admissions if admission.refused is None]
    good = [(index, request) for index, request in good if results[index] is None]
    if good:
        accepted = await _take(call, [request for _, request in good], admissions)
        known = await _known(call, accepted)
        for (index, request), answer in zip(good, accepted, strict=True):
            results[index] = _result(request, answer, known)
    return Reply(BatchOut(results=[result for result in results if result is not None]))


def _asked(body: bytes) -> Sequence[TxRequest | ApiError]:
    """All at once, which is how they come nearly always; else one by one, to see what is wrong with which."""
    try:
        return decode(body, BatchIn).requests
    except ApiError:
        return [_one_asked(bytes(raw)) for raw in decode(body, BatchEnvelope).requests]


def _one_asked(raw: bytes) -> TxRequest | ApiError:
    try:
        return decode(raw, TxRequest)
    except ApiError as error:
        return error


def _well_formed(wanted: TxRequest | ApiError) -> TxRequest:
    if isinstance(wanted, ApiError):
        raise wanted
    return wanted


async def _for_this_node(
    call: Call, good: Sequence[tuple[int, Request]], results: list[BatchResult | None]
) -> list[tuple[int, Request]]:
    """Those that are taken here; the others have their results, from their signers' nodes if calls are handed on."""
    raw = decode(call.body, BatchEnvelope).requests
    owners = {
        signer: await owner_elsewhere(call, signer) for signer in {request.signer for _, request in good}
    }
    theirs: dict[str, list[tuple[int, Request]]] = defaultdict(list)
    for index, request in good:
        if (owner := owners[request.signer]) is not None:
            theirs[owner].append((index, request))

    async def ask(owner: str, asked: Sequence[tuple[int, Request]]) -> None:
        answers = await hand_on_batch(
            call, owner, [(request.signer, bytes(raw[index])) for index, request in asked]
        )
        for (index, _), answer in zip(asked, answers, strict=True):
            results[index] = answer

    await asyncio.gather(*(ask(owner, asked) for owner, asked in theirs.items()))
    return [(index, request) for index, request in good if owners[request.signer] is None]


def _take(
    call: Call, requests: Sequence[Request], admissions: Sequence[Admission]
) -> Awaitable[Sequence[Accepted]]:
    """Store them; what was not stored gives its part of the day's budget back."""
    storing = call.services.accept.accept_valid(requests)
    for admission in admissions:
        if admission is not ADMITTED:
            return _settled(storing, call.services.policy, requests, admissions)
    return storing


async def _settled(
    storing: Awaitable[Sequence[Accepted]],
    policy: PolicyGuard,
    requests: Sequence[Request],
    admissions: Sequence[Admission],
) -> Sequence[Accepted]:
    try:
        accepted = await storing
    except Overloaded:  # the one failure of which is certain that nothing was stored
        for request, admission in zip(requests, admissions, strict=True):
            await policy.give_back(request, admission)
        raise
    for request, admission, answer in zip(requests, admissions, accepted, strict=True):
        if admission.taken_from is not None:
            await policy.settle(request, admission, answer)
    return accepted


def _forbidden(request: Request, reason: str) -> ApiError:
    return ApiError("policy_refused", f"{request.signer.address}: {reason}", field="payload")


def _milestone(call: Call) -> str | None:
    query: WaitQuery = call.query
    if query.wait is not None:
        return query.wait
    if query.timeout is None and "prefer" not in call.request.headers:
        return None
    return PREFERRED if call.wait_s(0.0) > 0 else None


def _raise_refusal(request: Request, accepted: Accepted) -> None:
    match accepted.outcome:
        case AcceptOutcome.CONFLICT:
            raise ApiError(
                "request_conflict",
                f"request {request.request_id!r} of {request.signer.address} is transaction {accepted.tx_id}",
                field="requestId",
                tx_id=str(accepted.tx_id),
            )
        case AcceptOutcome.PROTECTED:
            raise ApiError(
                "signer_protected",
                f"{request.signer.address} waits for a person: {accepted.detail}",
                field="signer",
            )
        case AcceptOutcome.CREATED | AcceptOutcome.KNOWN:
            pass


def _fresh(request: Request, tx_id: str) -> TxOut:
    """What a new transaction looks like, without asking the database for what it was just told."""
    return TxOut(
        tx_id=tx_id,
        request_id=request.request_id,
        chain_id=request.signer.chain_id,
        signer=request.signer.address,
        state=State.QUEUED,
        tags=list(request.tags),
    )


async def _known(call: Call, accepted: Sequence[Accepted]) -> dict[UUID, TxOut]:
    tx_ids = [answer.tx_id for answer in accepted if answer.outcome is AcceptOutcome.KNOWN]
    views = await call.services.reader.get_many(tx_ids) if tx_ids else []
    return {view.tx_id: shown(call, view, frozenset()) for view in views}


def _result(request: Request, accepted: Accepted, known: Mapping[UUID, TxOut]) -> BatchResult:
    if accepted.outcome is AcceptOutcome.CREATED:
        return BatchResult(status=HTTP_ACCEPTED, tx=_fresh(request, str(accepted.tx_id)))
    try:
        _raise_refusal(request, accepted)
    except ApiError as error:
        return failed(error)
    return BatchResult(status=HTTP_OK, tx=known[accepted.tx_id])
