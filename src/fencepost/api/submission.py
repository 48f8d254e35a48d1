"""Submit transactions, one or a batch, and wait for a milestone if the caller requests it."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from uuid import UUID

from fencepost.api.context import RequestContext, Response
from fencepost.api.forwarding import (
    failed,
    forward,
    forward_batch,
    forwarded_wait_s,
    not_leader,
    remote_owner,
)
from fencepost.api.parsing import decode
from fencepost.api.problems import ApiError
from fencepost.api.request_parser import encode_batch, encode_large, to_request
from fencepost.api.transactions import HTTP_ACCEPTED, HTTP_OK, present_tx, read_tx, wait_for_tx
from fencepost.application.accept import Request
from fencepost.application.ports import Accepted, AcceptOutcome
from fencepost.application.spending_policy import ADMITTED, SpendingDecision, SpendingGuard
from fencepost.domain.states import State
from fencepost.errors import Overloaded, Stopping
from fencepost.schemas.requests import BatchEnvelope, BatchIn, TxRequest, WaitQuery
from fencepost.schemas.responses import BatchOut, BatchResult, TxOut

DEFAULT_MILESTONE = "submitted"  # the milestone of `Prefer: wait` alone: the hash is known and was sent
MAX_LOOP_TURN_S = 0.02  # of parsing a batch, before other requests get a turn


async def submit_one(call: RequestContext) -> Response:
    with call.authenticator.waiting(
        call.caller, 0 if _milestone(call) is None else 1
    ):  # known before anything is stored
        return await _submit_one(call)


async def _submit_one(call: RequestContext) -> Response:
    request = _request(call, await encode_large(call, call.body))
    if call.services.settings.accepting_nodes != "any":
        owner = await remote_owner(call, request.signer)
        if owner is not None:
            return await forward(call, request.signer, owner, wait_s=forwarded_wait_s(call))
    return await _to_response(call, request, await _admit_and_store(call, request))


async def _to_response(call: RequestContext, request: Request, accepted: Accepted) -> Response:
    """Build the response for a request that is stored, now or earlier; wait for its milestone."""
    _raise_if_rejected(request, accepted)
    milestone = _milestone(call)
    if milestone is not None:
        with suppress(Stopping):  # the request is stored, and the response can say so
            return await wait_for_tx(call, accepted.tx_id, milestone, headers=_location(str(accepted.tx_id)))
    if accepted.outcome is AcceptOutcome.CREATED:
        return _created(request, accepted)
    return Response(await read_tx(call, accepted.tx_id), HTTP_OK, _location(str(accepted.tx_id)))


def _created(request: Request, accepted: Accepted) -> Response:
    tx_id = str(accepted.tx_id)
    return Response(_new_tx_out(request, tx_id), HTTP_ACCEPTED, _location(tx_id))


def _location(tx_id: str) -> dict[str, str]:
    return {"Location": f"/api/v1/tx/{tx_id}"}


def _request(call: RequestContext, body: TxRequest) -> Request:
    return to_request(call, body, idempotency_key=call.request.headers.get("idempotency-key"))


async def submit(call: RequestContext, request: Request) -> Accepted:
    """Store a single request from REST or JSON-RPC; raise if it is rejected or another node holds the lease."""
    owner = await remote_owner(call, request.signer)
    if owner is not None:
        raise await not_leader(call, request.signer, owner)
    return await _admit_and_store(call, request)


async def _admit_and_store(call: RequestContext, request: Request) -> Accepted:
    admission = (await call.services.spending.admit([request]))[0]
    if admission.refused is not None:
        raise _policy_problem(request, admission.refused)
    accepted = (await _store(call, [request], [admission]))[0]
    if accepted.outcome is not AcceptOutcome.CREATED:
        _raise_if_rejected(request, accepted)
    return accepted


async def submit_batch(call: RequestContext) -> Response:
    items = _decode_items(call.body)
    call.authenticator.charge(call.caller, len(items))
    items = await encode_batch(call, items, size_bytes=len(call.body))
    results: list[BatchResult | None] = [None] * len(items)
    valid: list[tuple[int, Request]] = []
    loop = asyncio.get_running_loop()
    yielded_at_s = loop.time()
    for index, item in enumerate(items):
        if loop.time() - yielded_at_s > MAX_LOOP_TURN_S:
            await asyncio.sleep(0)
            yielded_at_s = loop.time()
        try:
            valid.append((index, to_request(call, _well_formed(item))))
        except Exception as error:  # noqa: BLE001 - it fails one item only; unexpected errors are logged with an id
            results[index] = failed(error)
    if call.services.settings.accepting_nodes != "any":
        valid = await _for_this_node(call, valid, results)
    admissions = await call.services.spending.admit([request for _, request in valid])
    for (index, request), admission in zip(valid, admissions, strict=True):
        if admission.refused is not None:
            results[index] = failed(_policy_problem(request, admission.refused))
    admissions = [admission for admission in admissions if admission.refused is None]
    valid = [(index, request) for index, request in valid if results[index] is None]
    if valid:
        accepted = await _store(call, [request for _, request in valid], admissions)
        known = await _known_txs(call, accepted)
        for (index, request), outcome in zip(valid, accepted, strict=True):
            results[index] = _result(request, outcome, known)
    return Response(BatchOut(results=[result for result in results if result is not None]))


def _decode_items(body: bytes) -> Sequence[TxRequest | ApiError]:
    """Decode all items at once; if that fails, one by one to find the invalid items."""
    try:
        return decode(body, BatchIn).requests
    except ApiError:
        return [_decode_item(bytes(raw)) for raw in decode(body, BatchEnvelope).requests]


def _decode_item(raw: bytes) -> TxRequest | ApiError:
    try:
        return decode(raw, TxRequest)
    except ApiError as error:
        return error


def _well_formed(item: TxRequest | ApiError) -> TxRequest:
    if isinstance(item, ApiError):
        raise item
    return item


async def _for_this_node(
    call: RequestContext, valid: Sequence[tuple[int, Request]], results: list[BatchResult | None]
) -> list[tuple[int, Request]]:
    """Return the requests that this node handles; forward the others to their lease holders and set their results."""
    raw = decode(call.body, BatchEnvelope).requests
    owners = {signer: await remote_owner(call, signer) for signer in {request.signer for _, request in valid}}
    by_owner: dict[str, list[tuple[int, Request]]] = defaultdict(list)
    for index, request in valid:
        if (owner := owners[request.signer]) is not None:
            by_owner[owner].append((index, request))

    async def forward_to(owner: str, forwarded: Sequence[tuple[int, Request]]) -> None:
        forwarded_results = await forward_batch(
            call, owner, [(request.signer, bytes(raw[index])) for index, request in forwarded]
        )
        for (index, _), result in zip(forwarded, forwarded_results, strict=True):
            results[index] = result

    await asyncio.gather(*(forward_to(owner, forwarded) for owner, forwarded in by_owner.items()))
    return [(index, request) for index, request in valid if owners[request.signer] is None]


def _store(
    call: RequestContext, requests: Sequence[Request], admissions: Sequence[SpendingDecision]
) -> Awaitable[Sequence[Accepted]]:
    """Store the requests; return the reserved budget of those that are not stored."""
    accept = call.services.acceptor
    if all(admission is ADMITTED for admission in admissions):
        return accept.accept_valid(requests)
    with_ids = [
        request if admission.tx_id is None else request.changed(tx_id=admission.tx_id)
        for request, admission in zip(requests, admissions, strict=True)
    ]
    return _store_and_settle(accept.accept_valid(with_ids), call.services.spending, requests, admissions)


async def _store_and_settle(
    commit: Awaitable[Sequence[Accepted]],
    spending: SpendingGuard,
    requests: Sequence[Request],
    admissions: Sequence[SpendingDecision],
) -> Sequence[Accepted]:
    try:
        accepted = await commit
    except Overloaded:  # the only failure after which certainly nothing is stored
        for request, admission in zip(requests, admissions, strict=True):
            await spending.release_unstored(request, admission)
        raise
    for request, admission, outcome in zip(requests, admissions, accepted, strict=True):
        if admission.tx_id is not None:
            await spending.settle(request, admission, outcome)
    return accepted


def _policy_problem(request: Request, reason: str) -> ApiError:
    return ApiError("policy_refused", f"{request.signer.address}: {reason}", field="payload")


def _milestone(call: RequestContext) -> str | None:
    query: WaitQuery = call.query
    if query.wait is not None:
        return query.wait
    if query.timeout is None and "prefer" not in call.request.headers:
        return None
    return DEFAULT_MILESTONE if call.wait_s(0.0) > 0 else None


def _raise_if_rejected(request: Request, accepted: Accepted) -> None:
    match accepted.outcome:
        case AcceptOutcome.CONFLICT:
            raise ApiError(
                "request_conflict",
                f"request {request.request_id!r} of {request.signer.address} is transaction {accepted.tx_id}",
                field="requestId",
                tx_id=str(accepted.tx_id),
            )
        case AcceptOutcome.NONCE_ONLY:
            raise ApiError(
                "signer_protected",
                f"{request.signer.address}: {accepted.detail}",
                field="signer",
                hint="Use another signer, or allocate nonces with POST /api/v1/nonces/{address} and send the transaction yourself.",
            )
        case AcceptOutcome.PROTECTED:
            raise ApiError(
                "signer_protected",
                f"{request.signer.address} is in PROTECT until an operator decides: {accepted.detail}",
                field="signer",
            )
        case AcceptOutcome.CREATED | AcceptOutcome.KNOWN:
            pass


def _new_tx_out(request: Request, tx_id: str) -> TxOut:
    """Build the response for a new transaction without reading it back from the database."""
    return TxOut(
        tx_id=tx_id,
        request_id=request.request_id,
        chain_id=request.signer.chain_id,
        signer=request.signer.address,
        state=State.QUEUED,
        tags=list(request.tags),
    )


async def _known_txs(call: RequestContext, accepted: Sequence[Accepted]) -> dict[UUID, TxOut]:
    tx_ids = [one.tx_id for one in accepted if one.outcome is AcceptOutcome.KNOWN]
    views = await call.services.reader.get_many(tx_ids) if tx_ids else []
    return {view.tx_id: present_tx(call, view, frozenset()) for view in views}


def _result(request: Request, accepted: Accepted, known: Mapping[UUID, TxOut]) -> BatchResult:
    if accepted.outcome is AcceptOutcome.CREATED:
        return BatchResult(status=HTTP_ACCEPTED, tx=_new_tx_out(request, str(accepted.tx_id)))
    try:
        _raise_if_rejected(request, accepted)
    except ApiError as error:
        return failed(error)
    return BatchResult(status=HTTP_OK, tx=known[accepted.tx_id])
