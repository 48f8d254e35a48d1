"""What can go wrong between a program and a node, mirrored from the problems that nodes answer with.

ClientError
├── Refusal                 a node answered with a problem: `code`, `detail`, `hint`, `field` tell which
│   ├── BadRequest          … a field, a number, an address, a body is wrong   (also fencepost.errors.InvalidRequest)
│   ├── UnknownSigner       … no key is configured for the signer              (also fencepost.errors.UnknownSigner)
│   ├── RequestConflict     … the request id is known with another payload     (also fencepost.errors.RequestConflict)
│   ├── SignerProtected     … the signer waits for a person                    (also fencepost.errors.SignerProtected)
│   ├── NotLeader           … another node has the signer                      (also fencepost.errors.NotLeader)
│   ├── NotAuthenticated    … an API key is needed, or this one is not valid
│   ├── NotPermitted        … the key may not do this
│   ├── NotFound            … there is no such transaction, signer or command
│   ├── WrongState          … the transaction has ended, the signer is in another state, the hold of a nonce is over
│   ├── RateLimited         … too many calls with this key                     (also fencepost.errors.Overloaded)
│   ├── Unavailable         … the node, its database or its chain can't serve now
│   └── ServerFault         … the node made a mistake
├── Unreachable             no node answered: whether the last call arrived is told by `sent`
├── BadAnswer               something answered that is not a Fencepost node
└── NotReached              the time to wait is over; `tx` is the transaction as it is, and it goes on

`request_id` is set on whatever ends a `send`: sending again with it can't make a second transaction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import msgspec
from msgspec import UNSET, UnsetType

from fencepost import bounded_json, errors
from fencepost.api.problems import Problem

if TYPE_CHECKING:
    from fencepost.api.wire_out import TxOut


class ClientError(errors.FencepostError):
    request_id: str | None = None

    def about(self, request_id: str | None) -> Self:
        """The same error for one request of several that it ended."""
        twin = self.__class__.__new__(self.__class__, *self.args)
        twin.__dict__.update(self.__dict__)
        twin.request_id = request_id
        return twin


class Refusal(ClientError):
    def __init__(self, problem: Problem, *, retry_after_s: float = 0.0) -> None:
        self.problem = problem
        self.status = problem.status
        self.code = problem.code
        self.detail = problem.detail
        self.hint = _text(problem.hint)
        self.field = _text(problem.field)
        self.owner: str | None = _text(problem.owner) or None
        self.tx_id: str | None = _text(problem.tx_id) or None
        self.retry_after_s = retry_after_s  # 0: nothing was said about it
        said = f"{problem.title}: {problem.detail}" if problem.detail else problem.title
        # The other base classes take arguments of their own; the text is all that an exception has to know.
        Exception.__init__(self, f"{said.rstrip('.')}. {self.hint}" if self.hint else said)


class BadRequest(Refusal, errors.InvalidRequest):
    pass


class UnknownSigner(Refusal, errors.UnknownSigner):
    pass


class RequestConflict(Refusal, errors.RequestConflict):
    pass


class SignerProtected(Refusal, errors.SignerProtected):
    pass


class NotLeader(Refusal, errors.NotLeader):
    pass


class NotAuthenticated(Refusal, errors.UsageError):
    pass


class NotPermitted(Refusal, errors.UsageError):
    pass


class NotFound(Refusal, errors.UsageError):
    pass


class WrongState(Refusal, errors.UsageError):
    pass


class RateLimited(Refusal, errors.Overloaded):
    pass


class Unavailable(Refusal, errors.Unready):
    pass


class ServerFault(Refusal):
    pass


class Unreachable(ClientError, errors.Unready):
    """`sent` says whether the last call may have arrived all the same."""

    code = "unreachable"

    def __init__(self, message: str, *, sent: bool) -> None:
        Exception.__init__(self, message)
        self.sent = sent


class BadAnswer(ClientError):
    code = "bad_answer"


class NotReached(ClientError):
    code = "not_reached"

    def __init__(self, tx: TxOut, until: str, timeout_s: float) -> None:
        super().__init__(f"{tx.tx_id} is {tx.state}, not {until} within {timeout_s:g} s; it goes on")
        self.tx = tx
        self.until = until


_BY_CODE: dict[str, type[Refusal]] = {
    "signer_unknown": UnknownSigner,
    "request_conflict": RequestConflict,
    "signer_protected": SignerProtected,
    "not_leader": NotLeader,
}
_BY_STATUS: dict[int, type[Refusal]] = {
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


def refusal(problem: Problem, *, retry_after_s: float = 0.0) -> Refusal:
    """The exception that a problem is; a code that this version does not know goes by its status."""
    general = ServerFault if problem.status >= _SERVER_FAULTS_FROM else BadRequest
    kind = _BY_CODE.get(problem.code) or _BY_STATUS.get(problem.status, general)
    return kind(problem, retry_after_s=retry_after_s)


def problem_in(status: int, body: bytes) -> Problem:
    """The problem in a body; whatever stands between us and the node may answer without one."""
    try:
        return bounded_json.decode(body, lambda text: msgspec.json.decode(text, type=Problem))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Problem(
            type="about:blank", title=f"The answer was HTTP {status}", status=status, code="", detail=""
        )


def _text(value: str | UnsetType) -> str:
    return "" if value is UNSET else value
