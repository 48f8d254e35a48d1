"""What goes wrong, as RFC 9457 problems. The table is the contract: a code never changes its meaning or its status.

A problem names the field that is wrong and says what to do. Nothing of the inside is told: what we did not foresee is
logged here with its traceback, and the caller gets an id to ask about.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from uuid import uuid4

import msgspec
from msgspec import UNSET, UnsetType

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
    SignerElsewhere,
    SignerProtected,
    Stopping,
    UnknownSigner,
    UsageError,
)

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
    "field_unknown": Kind(400, "A field is unknown", "Leave it out, or check its spelling in /docs."),
    "field_invalid": Kind(400, "A field is wrong", "Correct the field; /docs says what it may be."),
    "number_out_of_range": Kind(400, "A number is out of range", "Correct the number."),
    "address_invalid": Kind(
        400, "An address is wrong", "Copy the address again; all lower-case skips the checksum."
    ),
    "chain_unknown": Kind(
        400, "The chain is not served here", "Leave chainId out, or use a chain of /version."
    ),
    "query_invalid": Kind(
        400, "A query parameter is wrong", "Correct the parameter; /docs says what it may be."
    ),
    "cursor_invalid": Kind(400, "The cursor is not one of ours", "Use `next` of the page before, unchanged."),
    "signer_unknown": Kind(
        422,
        "No key is configured for the signer",
        "Use a signer of GET /api/v1/signers, or configure its key.",
    ),
    "key_missing": Kind(401, "An API key is needed", "Send `Authorization: Bearer fp_…`."),
    "key_invalid": Kind(401, "The API key is not valid", "Check the key; it may have been revoked."),
    "pass_refused": Kind(
        401, "The pass of another node is not valid", "For nodes only: callers send an API key."
    ),
    "scope_missing": Kind(403, "The key may not do this", "Use a key with one of the scopes named."),
    "signer_forbidden": Kind(403, "The key may not use this signer", "Use a key that has this signer."),
    "policy_refused": Kind(
        403, "The signer's policy forbids this", "See GET /api/v1/signers/{address}/policy."
    ),
    "origin_refused": Kind(
        403, "Browsers of other places are not served", "Call from a program, or make an API key."
    ),
    "not_found": Kind(404, "There is nothing here", "See /docs."),
    "tx_not_found": Kind(404, "There is no such transaction", "Check the id, the request id or the hash."),
    "command_not_found": Kind(404, "There is no such command", "Check the id."),
    "signer_not_found": Kind(404, "There is no such signer here", "See GET /api/v1/signers."),
    "method_not_allowed": Kind(405, "This path has no such method", "See /docs."),
    "request_conflict": Kind(
        409,
        "The request is known with another payload",
        "Use a new requestId for a new payload; the known transaction goes on.",
    ),
    "signer_protected": Kind(
        409,
        "The signer takes nothing new",
        "A person has to decide: POST /api/v1/signers/{address}/unprotect.",
    ),
    "not_leader": Kind(409, "Another node has this signer", "Send the request to the owner, or retry."),
    "refused": Kind(409, "The request is refused", "See the detail."),
    "tx_ended": Kind(409, "The transaction has ended", "Nothing can be done about it any more."),
    "signer_state": Kind(409, "The signer is in another state", "Look at GET /api/v1/signers/{address}."),
    "hold_lost": Kind(409, "The hold of the nonce is over", "Don't use the nonce; allocate another."),
    "nonce_conflict": Kind(
        409, "The nonce has another transaction", "Look at GET /api/v1/nonces/{address} before going on."
    ),
    "signer_elsewhere": Kind(
        409,
        "The signer belongs to the core",
        "Send its transactions with POST /api/v1/tx, or use another signer.",
    ),
    "body_too_large": Kind(413, "The body is too large", "Split the batch, or shorten the data."),
    "media_type": Kind(415, "The body must be JSON", "Send `Content-Type: application/json`."),
    "rate_limited": Kind(429, "Too many requests with this key", "Slow down; Retry-After says when."),
    "overloaded": Kind(429, "Too much waits already", "Retry later, with the same requestId."),
    "internal": Kind(500, "We made a mistake", "Tell the operator the id; it stands in the log."),
    "database_unavailable": Kind(
        503, "The database does not answer", "Retry with the same requestId: nothing is accepted twice."
    ),
    "chain_unavailable": Kind(503, "The chain's nodes do not answer", "Retry later."),
    "nonce_unavailable": Kind(503, "No nonce can be given right now", "Retry: nothing was given."),
    "stopping": Kind(
        503,
        "This node is stopping",
        "Retry with the same requestId, at another node or soon: nothing is accepted twice.",
    ),
    "busy": Kind(503, "It took too long", "Retry with the same requestId: nothing is accepted twice."),
}


class Problem(msgspec.Struct, rename="camel", kw_only=True):
    """RFC 9457. `code` is for programs, `detail` and `hint` for people."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    hint: str | UnsetType = UNSET
    field: str | UnsetType = UNSET
    owner: str | UnsetType = UNSET
    tx_id: str | UnsetType = UNSET
    id: str | UnsetType = UNSET


class ApiError(Exception):
    """A problem on its way out."""

    def __init__(
        self,
        code: str,
        detail: str,
        *,
        field: str | None = None,
        owner: str | None = None,
        tx_id: str | None = None,
        id_: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(detail)
        self.code = code
        self.field = field
        self.retry_after_s = retry_after_s
        kind = KINDS[code]
        self.problem = Problem(
            type=f"urn:fencepost:problem:{code}",
            title=kind.title,
            status=kind.status,
            code=code,
            detail=detail,
            hint=kind.hint or UNSET,
            field=field or UNSET,
            owner=owner or UNSET,
            tx_id=tx_id or UNSET,
            id=id_ or UNSET,
        )

    @property
    def headers(self) -> dict[str, str]:
        headers = {}
        if self.retry_after_s is not None:
            headers["Retry-After"] = str(max(1, math.ceil(self.retry_after_s)))
        if self.problem.status == 401:  # noqa: PLR2004 - the status that asks for credentials
            headers["WWW-Authenticate"] = 'Bearer realm="fencepost"'
        return headers


def foreseen(error: BaseException) -> ApiError | None:
    """The problem that an error of ours is, if it is one that a caller may meet."""
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
        case HoldLost() | NonceConflict() | SignerElsewhere():
            return ApiError(error.code, str(error))
        case UsageError():
            return ApiError("refused", str(error)[:1000])
        case _:
            return _passing(error)


def _passing(error: BaseException) -> ApiError | None:
    """What may be otherwise soon."""
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


def unforeseen(error: BaseException) -> ApiError:
    """Ours to mend: the log has the cause, the caller an id that finds it there."""
    problem_id = uuid4().hex
    _log.error("problem %s", problem_id, exc_info=error)
    return ApiError("internal", f"problem {problem_id}", id_=problem_id)


def _about(field: str, message: str) -> str:
    return f"{field}: {message}" if field else message
