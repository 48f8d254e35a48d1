"""Define the RFC 9457 problems of the API. A code never changes its meaning or its status.

A problem names the invalid field and says what to do. It reveals no internals: an unexpected error is logged with its
traceback, and the caller gets an id that finds it in the log.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from uuid import uuid4

from msgspec import UNSET

from fencepost.errors import (
    DatabaseUnusable,
    HoldLost,
    InvalidRequest,
    NonceConflict,
    NonceUnavailable,
    NotLeader,
    Overloaded,
    RequestConflict,
    RpcError,
    SignerProtected,
    SignerUsedOtherwise,
    Stopping,
    UnknownSigner,
    UsageError,
)
from fencepost.schemas.problem import Problem

_log = logging.getLogger(__name__)

RETRY_AFTER_S = 1


@dataclass(frozen=True, slots=True)
class Kind:
    status: int
    title: str
    hint: str = ""


KINDS: dict[str, Kind] = {
    "json_malformed": Kind(400, "The body is not JSON", "Send one JSON document in UTF-8."),
    "json_too_deep": Kind(400, "The body is nested too deeply", "Flatten arrays and objects."),
    "field_missing": Kind(400, "A field is missing", "Add the field."),
    "field_unknown": Kind(400, "A field is unknown", "Remove it, or check its spelling in /docs."),
    "field_invalid": Kind(400, "A field is invalid", "Correct the field; /docs lists the allowed values."),
    "number_out_of_range": Kind(400, "A number is out of range", "Correct the number."),
    "address_invalid": Kind(
        400, "An address is invalid", "Check the address; an all lower-case address has no checksum."
    ),
    "chain_unknown": Kind(
        400, "The chain is not configured", "Omit chainId, or use one that /version lists."
    ),
    "query_invalid": Kind(
        400, "A query parameter is invalid", "Correct the parameter; /docs lists the allowed values."
    ),
    "cursor_invalid": Kind(400, "The cursor is invalid", "Use `next` of the previous page, unchanged."),
    "signer_unknown": Kind(
        422,
        "No key is configured for the signer",
        "Use a signer that GET /api/v1/signers lists, or configure a key for this one.",
    ),
    "key_missing": Kind(401, "An API key is required", "Send `Authorization: Bearer fp_…`."),
    "key_invalid": Kind(401, "The API key is not valid", "Check the key; it may have been revoked."),
    "pass_refused": Kind(
        401, "The forward token is not valid", "Only nodes send forward tokens; send an API key."
    ),
    "scope_missing": Kind(
        403, "The API key lacks a scope", "Use a key that has one of the scopes in the detail."
    ),
    "signer_forbidden": Kind(
        403, "The API key may not use this signer", "Use a key that is allowed to use it."
    ),
    "policy_refused": Kind(
        403, "The spending policy forbids this", "See GET /api/v1/signers/{address}/policy."
    ),
    "origin_refused": Kind(
        403,
        "Requests from web pages of other hosts are rejected",
        "Call from a program on this machine, or create an API key with `fencepost keys create`.",
    ),
    "proxy_refused": Kind(
        403,
        "Requests through a proxy need an API key",
        "Create an API key with `fencepost keys create` and send it, or call the node without the proxy.",
    ),
    "not_found": Kind(404, "The path does not exist", "See /docs."),
    "tx_not_found": Kind(404, "The transaction does not exist", "Check the id, the request id or the hash."),
    "command_not_found": Kind(404, "The operator command does not exist", "Check the id."),
    "signer_not_found": Kind(404, "The signer does not exist", "See GET /api/v1/signers."),
    "subscription_not_found": Kind(
        404, "The subscription does not exist", "See GET /api/v1/subscriptions; a key sees its own only."
    ),
    "event_not_found": Kind(
        404, "The event does not exist", "Use the id of an event that matches the subscription."
    ),
    "too_many_subscriptions": Kind(
        409, "The key has too many subscriptions", "Delete one, or raise events.max_subscriptions_per_key."
    ),
    "events_expired": Kind(
        410,
        "Events after the cursor were removed",
        "Read from the oldest kept event (an empty `after`), and compare with GET /api/v1/tx.",
    ),
    "method_not_allowed": Kind(405, "The path does not support this method", "See /docs."),
    "request_conflict": Kind(
        409,
        "The requestId was used with another payload",
        "Use a new requestId for a new payload; the first transaction continues.",
    ),
    "signer_protected": Kind(
        409,
        "The signer accepts no requests",
        "An operator has to decide: POST /api/v1/signers/{address}/unprotect.",
    ),
    "not_leader": Kind(
        409, "Another node holds the signer's lease", "Send the request to that node, or retry."
    ),
    "refused": Kind(409, "The request is rejected", "See the detail."),
    "tx_ended": Kind(409, "The transaction has ended", "Commands apply only to live transactions."),
    "signer_state": Kind(409, "The signer is in the wrong state", "See GET /api/v1/signers/{address}."),
    "hold_lost": Kind(409, "The hold on the nonce has expired", "Do not use the nonce; allocate another."),
    "nonce_conflict": Kind(
        409, "Another transaction uses the nonce", "Check GET /api/v1/nonces/{address} before you continue."
    ),
    "signer_elsewhere": Kind(
        409,
        "Fencepost sends this signer's transactions itself",
        "Submit them with POST /api/v1/tx, or use another signer.",
    ),
    "body_too_large": Kind(413, "The body is too large", "Split the batch, or send less data."),
    "media_type": Kind(415, "The body must be JSON", "Send `Content-Type: application/json`."),
    "rate_limited": Kind(429, "Too many requests with this API key", "Retry after the time in Retry-After."),
    "auth_throttled": Kind(
        429,
        "Too many invalid API keys from this address",
        "Check the key; retry after the time in Retry-After.",
    ),
    "overloaded": Kind(429, "Too many requests are waiting", "Retry later with the same requestId."),
    "internal": Kind(500, "Internal error", "Give the id to the operator; it is in the log."),
    "database_unavailable": Kind(
        503, "The database is unavailable", "Retry with the same requestId: nothing is accepted twice."
    ),
    "chain_unavailable": Kind(503, "The chain's endpoints are unavailable", "Retry later."),
    "nonce_unavailable": Kind(503, "No nonce can be allocated now", "Retry; no nonce was allocated."),
    "stopping": Kind(
        503,
        "This node is stopping",
        "Retry with the same requestId, now at another node or later at this one: nothing is accepted twice.",
    ),
    "busy": Kind(503, "The request timed out", "Retry with the same requestId: nothing is accepted twice."),
}


class ApiError(Exception):
    """An error that the caller receives as a problem."""

    def __init__(
        self,
        code: str,
        detail: str,
        *,
        field: str | None = None,
        hint: str | None = None,
        owner: str | None = None,
        owner_url: str | None = None,
        location: str | None = None,
        tx_id: str | None = None,
        id_: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(detail)
        self.code = code
        self.field = field
        self.retry_after_s = retry_after_s
        self.location = location
        kind = KINDS[code]
        self.problem = Problem(
            type=f"urn:fencepost:problem:{code}",
            title=kind.title,
            status=kind.status,
            code=code,
            detail=detail,
            hint=hint or kind.hint or UNSET,
            field=field or UNSET,
            owner=owner or UNSET,
            owner_url=owner_url or UNSET,
            tx_id=tx_id or UNSET,
            id=id_ or UNSET,
        )

    @property
    def headers(self) -> dict[str, str]:
        headers = {}
        if self.location is not None:
            headers["Location"] = self.location
        if self.retry_after_s is not None:
            headers["Retry-After"] = str(max(1, math.ceil(self.retry_after_s)))
        if self.problem.status == 401:  # noqa: PLR2004 - the status that requires credentials
            headers["WWW-Authenticate"] = 'Bearer realm="fencepost"'
        return headers


def expected_problem(error: BaseException) -> ApiError | None:
    """Return the problem for an expected error; None for an unexpected one."""
    match error:
        case ApiError():
            return error
        case InvalidRequest():
            return ApiError("field_invalid", _about(error.field, str(error)), field=error.field)
        case UnknownSigner():
            return ApiError("signer_unknown", str(error), field="signer")
        case RequestConflict():
            return ApiError("request_conflict", str(error), field="requestId")
        case SignerProtected():
            return ApiError("signer_protected", str(error), field="signer")
        case HoldLost() | NonceConflict() | SignerUsedOtherwise():
            return ApiError(error.code, str(error))
        case UsageError():
            return ApiError("refused", str(error)[:1000])
        case _:
            return _temporary(error)


def _temporary(error: BaseException) -> ApiError | None:
    """Return the problem for a temporary condition; None for anything else."""
    match error:
        case Overloaded():
            return ApiError("overloaded", str(error)[:300], retry_after_s=error.retry_after_s)
        case Stopping():
            return ApiError("stopping", str(error), retry_after_s=RETRY_AFTER_S)
        case NotLeader():
            return ApiError("not_leader", str(error), owner=error.owner, retry_after_s=RETRY_AFTER_S)
        case DatabaseUnusable():
            return ApiError("database_unavailable", str(error)[:300], retry_after_s=RETRY_AFTER_S)
        case NonceUnavailable():
            return ApiError("nonce_unavailable", str(error)[:300], retry_after_s=RETRY_AFTER_S)
        case RpcError():
            return ApiError("chain_unavailable", str(error)[:300], retry_after_s=RETRY_AFTER_S)
        case _:
            return None


def unexpected_problem(error: BaseException) -> ApiError:
    """Log an unexpected error and return a problem with the id of the log entry."""
    problem_id = uuid4().hex
    _log.error("unexpected error, problem id %s", problem_id, exc_info=error)
    return ApiError("internal", f"problem id {problem_id}", id_=problem_id)


def _about(field: str, message: str) -> str:
    return f"{field}: {message}" if field else message
