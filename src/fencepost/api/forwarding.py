"""Forward requests to the node that holds the signer's lease, or reject them with `not_leader`.

The node that receives a request authenticates the caller and counts the request. The lease holder's response is returned
unchanged. Nothing is retried here: only the caller knows whether the request has an id and can be repeated.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from fencepost.api.context import RequestContext, Response
from fencepost.api.problems import RETRY_AFTER_S, ApiError, expected_problem, unexpected_problem
from fencepost.api.request import IncomingRequest
from fencepost.api.transactions import DEFAULT_WAIT_S
from fencepost.application.forwarding import (
    FORWARDED_HEADERS,
    MAX_HOPS,
    ForwardRequest,
    ForwardResponse,
    NoForwardResponse,
)
from fencepost.domain.ids import Signer
from fencepost.schemas.problem import Problem
from fencepost.schemas.responses import BatchOut, BatchResult

_OK = 200


def forward_request(request: IncomingRequest, body: bytes) -> ForwardRequest:
    """Build the request to forward: the request as received."""
    path, query = request.scope["raw_path"], request.scope["query_string"]
    headers = {name: request.headers[name] for name in FORWARDED_HEADERS if name in request.headers}
    return ForwardRequest(
        request.method, (path + (b"?" + query if query else b"")).decode("latin-1"), body, headers
    )


async def remote_owner(call: RequestContext, signer: Signer) -> str | None:
    """Return the other node that has to handle this signer's requests; None if this node handles them."""
    services = call.services
    if services.settings.accepting_nodes == "any" or services.signers.holds(signer):
        return None
    owner = await services.reader.owner_of(signer)
    return None if owner == services.node.name else owner


async def not_leader(call: RequestContext, signer: Signer, owner: str) -> ApiError:
    """Build the problem that names the lease holder, and its URL for this request if it has an API."""
    url = await call.services.cluster.url_of(owner)
    target = forward_request(call.request, b"").target
    return ApiError(
        "not_leader",
        f"node {owner} holds the lease of {signer.address}",
        field="signer",
        owner=owner,
        owner_url=url,
        location=None if url is None else f"{url.rstrip('/')}{target}",
        retry_after_s=call.services.settings.lease_duration_s,
    )


def forwarded_wait_s(call: RequestContext) -> float:
    """Return how long the lease holder may take for a request that waits for a milestone."""
    is_waiting = call.query.wait is not None or call.wait_s(0.0) > 0
    return call.wait_s(DEFAULT_WAIT_S) if is_waiting else 0.0


async def forward(call: RequestContext, signer: Signer, owner: str, *, wait_s: float) -> Response:
    """Forward the request and return the lease holder's response."""
    response = await call.cancel_on_disconnect(
        _forwarded(call, owner, forward_request(call.request, call.raw), wait_s)
    )
    match response:
        case ForwardResponse():
            return Response(
                msgspec.Raw(response.body), response.status, response.headers, media_type=response.media_type
            )
        case NoForwardResponse.NOT_EXECUTED:
            raise await not_leader(call, signer, owner)
        case NoForwardResponse.UNKNOWN:
            raise _unknown(owner)


async def forward_batch(
    call: RequestContext, owner: str, requests: Sequence[tuple[Signer, bytes]]
) -> list[BatchResult]:
    """Forward some requests of a batch; return one result per request."""
    here = forward_request(call.request, b"")
    body = b'{"requests":[' + b",".join(raw for _, raw in requests) + b"]}"
    response = await _forwarded(
        call, owner, ForwardRequest(here.method, here.target, body, here.headers), 0.0
    )
    match response:
        case ForwardResponse(status=status) if status == _OK:
            return _results(response, owner, len(requests))
        case ForwardResponse():
            problem = _problem(response, owner)
            return [BatchResult(status=problem.status, problem=problem)] * len(requests)
        case NoForwardResponse.NOT_EXECUTED:
            return [failed(await not_leader(call, signer, owner)) for signer, _ in requests]
        case NoForwardResponse.UNKNOWN:
            return [failed(_unknown(owner))] * len(requests)


def failed(error: Exception) -> BatchResult:
    """Build the result of one request of a batch that failed before anything was stored for it."""
    known = expected_problem(error) or unexpected_problem(error)
    return BatchResult(status=known.problem.status, problem=known.problem)


async def _forwarded(
    call: RequestContext, owner: str, request: ForwardRequest, wait_s: float
) -> ForwardResponse | NoForwardResponse:
    forward_token, key = call.caller.forward_token, call.caller.key
    hops = 1 if forward_token is None else forward_token.hops + 1
    if call.services.cluster.forward is None or hops > MAX_HOPS:
        return NoForwardResponse.NOT_EXECUTED
    return await call.services.cluster.forward(
        owner, request, caller=None if key is None else key.id, hops=hops, wait_s=wait_s
    )


def _results(response: ForwardResponse, owner: str, count: int) -> list[BatchResult]:
    try:
        results = msgspec.json.decode(response.body, type=BatchOut).results
    except msgspec.DecodeError:
        results = []
    return results if len(results) == count else [failed(_unknown(owner))] * count


def _problem(response: ForwardResponse, owner: str) -> Problem:
    try:
        return msgspec.json.decode(response.body, type=Problem)
    except msgspec.DecodeError:
        return _unknown(owner).problem


def _unknown(owner: str) -> ApiError:
    return ApiError(
        "busy", f"node {owner} holds the signer's lease and did not respond", retry_after_s=RETRY_AFTER_S
    )
