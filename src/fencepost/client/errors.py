"""Define the exceptions of the client; most mirror a problem that a node returns.

ClientError
├── RequestRejected         the node returned a problem: see `code`, `detail`, `hint`, `field`
│   ├── BadRequest          … a field, a number, an address, a body is wrong   (also fencepost.errors.InvalidRequest)
│   ├── UnknownSigner       … no key is configured for the signer              (also fencepost.errors.UnknownSigner)
│   ├── RequestConflict     … the request id is known with another payload     (also fencepost.errors.RequestConflict)
│   ├── SignerProtected     … the signer waits for an operator's decision      (also fencepost.errors.SignerProtected)
│   ├── NotLeader           … another node holds the signer's lease            (also fencepost.errors.NotLeader)
│   ├── NotAuthenticated    … an API key is needed, or this one is not valid
│   ├── NotPermitted        … the key may not do this
│   ├── NotFound            … there is no such transaction, signer or command
│   ├── WrongState          … the transaction has ended, the signer is in another state, the hold of a nonce has expired
│   ├── RateLimited         … too many calls with this key                     (also fencepost.errors.Overloaded)
│   ├── Unavailable         … the node, its database or its chain can't serve now
│   └── ServerFault         … the node failed with an internal error
├── Unreachable             no node answered; `sent` is true if the last call may have arrived
├── BadResponse             the response does not come from a Fencepost node
├── WebhookInvalid          `verify_webhook` rejects a webhook: forged, changed or too old
└── NotReached              the time to wait is over; `tx` is the transaction's current state, and it continues

`request_id` is set on every error of a `send`: sending again with it can't create a second transaction. `outcome_unknown`
is true if a node may have accepted the call all the same: an earlier try was interrupted, or the response was invalid or
a server error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import msgspec
from msgspec import UNSET, UnsetType

from fencepost import bounded_json, errors
from fencepost.schemas.problem import Problem

if TYPE_CHECKING:
    from fencepost.schemas.responses import TxOut


class ClientError(errors.FencepostError):
    """Base class of everything that a client call raises, except invalid arguments."""

    request_id: str | None = None
    outcome_unknown: bool = False

    def for_request(self, request_id: str | None) -> Self:
        """Return a copy of the error for one of the requests that it concerns."""
        copy = self.__class__.__new__(self.__class__, *self.args)
        copy.__dict__.update(self.__dict__)
        copy.request_id = request_id
        return copy


class WebhookInvalid(ClientError, ValueError):
    """The webhook was not signed with the secret, was changed, or is too old."""

    code = "webhook_invalid"


class RequestRejected(ClientError):
    """The node rejected the call with a problem."""

    def __init__(self, problem: Problem, *, retry_after_s: float = 0.0) -> None:
        """Copy the problem's fields; `retry_after_s` is 0 if the node sent no Retry-After."""
        self.problem = problem
        self.status = problem.status
        self.code = problem.code
        self.detail = problem.detail
        self.hint = _text(problem.hint)
        self.field = _text(problem.field)
        self.owner: str | None = _text(problem.owner) or None
        self.owner_url: str | None = _text(problem.owner_url) or None
        self.tx_id: str | None = _text(problem.tx_id) or None
        self.retry_after_s = retry_after_s
        message = f"{problem.title}: {problem.detail}" if problem.detail else problem.title
        # Skip the constructors of the other base classes: they take other arguments.
        Exception.__init__(self, f"{message.rstrip('.')}. {self.hint}" if self.hint else message)


class BadRequest(RequestRejected, errors.InvalidRequest):
    """A field, a number, an address or the body is invalid."""


class UnknownSigner(RequestRejected, errors.UnknownSigner):
    """No key is configured for the signer."""


class RequestConflict(RequestRejected, errors.RequestConflict):
    """The request id is already used with another payload."""


class SignerProtected(RequestRejected, errors.SignerProtected):
    """The signer is in PROTECT and waits for an operator's decision."""


class NotLeader(RequestRejected, errors.NotLeader):
    """Another node holds the signer's lease: `owner`, `owner_url`."""


class NotAuthenticated(RequestRejected, errors.UsageError):
    """An API key is missing or not valid."""


class NotPermitted(RequestRejected, errors.UsageError):
    """The API key lacks the scope or the signer for this call."""


class NotFound(RequestRejected, errors.UsageError):
    """The transaction, signer or command does not exist."""


class WrongState(RequestRejected, errors.UsageError):
    """The transaction, signer or held nonce is in a state that does not allow the call."""


class RateLimited(RequestRejected, errors.Overloaded):
    """The API key makes too many calls, or too much is queued: retry after `retry_after_s`."""


class Unavailable(RequestRejected, errors.Unready):
    """The node, its database or its chain can't serve the call now."""


class ServerFault(RequestRejected):
    """The node failed with an internal error."""


class Unreachable(ClientError, errors.Unready):
    """No node answered; `sent` is true if the last call may have arrived."""

    code = "unreachable"

    def __init__(self, message: str, *, sent: bool) -> None:
        """Store the message, and whether the call may have arrived."""
        Exception.__init__(self, message)
        self.sent = sent


class BadResponse(ClientError):
    """The response is not one that a Fencepost node sends."""

    code = "bad_answer"
    outcome_unknown = True


class NotReached(ClientError):
    """The transaction did not reach the milestone in time; `tx` is its current state, and it continues."""

    code = "not_reached"

    def __init__(self, tx: TxOut, until: str, timeout_s: float) -> None:
        """Store the transaction and the milestone."""
        super().__init__(
            f"{tx.tx_id} is {tx.state} and did not reach {until} within {timeout_s:g} s; the node keeps processing it"
        )
        self.tx = tx
        self.until = until


_BY_CODE: dict[str, type[RequestRejected]] = {
    "signer_unknown": UnknownSigner,
    "request_conflict": RequestConflict,
    "signer_protected": SignerProtected,
    "not_leader": NotLeader,
}
_BY_STATUS: dict[int, type[RequestRejected]] = {
    401: NotAuthenticated,
    403: NotPermitted,
    404: NotFound,
    409: WrongState,
    429: RateLimited,
    502: Unavailable,
    503: Unavailable,
    504: Unavailable,
}
_SERVER_FAULTS_FROM = 500


def error_from_problem(problem: Problem, *, retry_after_s: float = 0.0) -> RequestRejected:
    """Build the exception for a problem, by its code, or by its status if the code is unknown."""
    general = ServerFault if problem.status >= _SERVER_FAULTS_FROM else BadRequest
    kind = _BY_CODE.get(problem.code) or _BY_STATUS.get(problem.status, general)
    return kind(problem, retry_after_s=retry_after_s)


def parse_problem(status: int, body: bytes) -> Problem:
    """Parse the problem in a response body; build one from the status if a proxy answered without one."""
    try:
        return bounded_json.decode(body, lambda text: msgspec.json.decode(text, type=Problem))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Problem(
            type="about:blank", title=f"The response was HTTP {status}", status=status, code="", detail=""
        )


def _text(value: str | UnsetType) -> str:
    return "" if value is UNSET else value
