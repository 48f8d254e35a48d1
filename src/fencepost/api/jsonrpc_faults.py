"""What goes wrong on `/rpc`, as JSON-RPC errors: a number for clients, a message that never changes, and data.

Numbers are those of JSON-RPC 2.0 and EIP-1474, so that clients know what they mean: -32602 the parameters, -32003
rejected, -32002 not now, -32004 not allowed, -32005 too much, 4100 (EIP-1193) no right, 3 it would revert. `data.code`
tells more finely what happened and is as stable as the codes of REST, which it shares; `data.detail` is for people.
What the chain's node says is handed on as it said it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fencepost.api.problems import RETRY_AFTER_S, ApiError, foreseen, unforeseen
from fencepost.api.services import Services
from fencepost.errors import RpcRefused

PARSE, INVALID, PARAMS, INTERNAL = -32700, -32600, -32602, -32603
NOT_FOUND, NOT_NOW, REJECTED, NOT_ALLOWED, TOO_MUCH = -32001, -32002, -32003, -32004, -32005
SERVER_ERROR, NO_RIGHT, REVERTS = -32000, 4100, 3

# code → number and message
FAULTS: dict[str, tuple[int, str]] = {
    "request_invalid": (INVALID, "invalid request"),
    "batch_too_large": (TOO_MUCH, "batch too large"),
    "params_invalid": (PARAMS, "invalid params"),
    "method_not_allowed": (NOT_ALLOWED, "method not allowed"),
    "nonce_managed": (REJECTED, "nonces are managed here: leave nonce out"),
    "signer_managed": (REJECTED, "the sender is managed here: use eth_sendTransaction"),
    "would_revert": (REVERTS, "execution reverted"),
    "tx_refused": (REJECTED, "transaction rejected"),
    "tx_too_late": (NOT_NOW, "not sent: there was no turn for it in time"),
    "tx_waiting": (NOT_NOW, "accepted, but without a hash yet: ask again with the same requestId"),
}
_BY_CODE = {"json_malformed": PARSE, "policy_refused": REJECTED}
_BY_STATUS = {
    400: PARAMS,
    401: NO_RIGHT,
    403: NO_RIGHT,
    404: NOT_FOUND,
    409: REJECTED,
    413: INVALID,
    415: INVALID,
    422: REJECTED,
    429: TOO_MUCH,
    503: NOT_NOW,
}


class Fault(Exception):
    """An error on its way out."""

    def __init__(self, code: str, detail: str, **more: str) -> None:
        super().__init__(detail)
        self.number, self.message = FAULTS[code]
        self.data: Any = {"code": code, "detail": detail[:1000], **more}


def wire(error: Exception, services: Services) -> dict[str, Any]:
    """The error object for anything that was raised; what nobody foresaw is logged."""
    match error:
        case Fault():
            return {"code": error.number, "message": error.message, "data": error.data}
        case RpcRefused():
            said = {"code": SERVER_ERROR if error.rpc_code is None else error.rpc_code, "message": str(error)}
            return said if error.data is None else said | {"data": error.data}
    return of_problem(problem_of(error, services))


def problem_of(error: Exception, services: Services) -> ApiError:
    known = foreseen(error)
    if known is not None:
        return known
    if isinstance(error, TimeoutError):
        return ApiError("busy", "no answer in time", retry_after_s=RETRY_AFTER_S)
    if services.is_database_failure(error):
        return ApiError("database_unavailable", "try again soon", retry_after_s=RETRY_AFTER_S)
    return unforeseen(error)


def of_problem(error: ApiError) -> dict[str, Any]:
    problem = error.problem
    number = _BY_CODE.get(problem.code) or _BY_STATUS.get(problem.status, INTERNAL)
    # REST nests what the chain shall do in `payload`; here it lies open.
    data: dict[str, Any] = {"code": problem.code, "detail": problem.detail.removeprefix("payload.")}
    more: Mapping[str, Any] = {
        "field": error.field and error.field.removeprefix("payload."),
        "hint": problem.hint,
        "owner": problem.owner,
        "txId": problem.tx_id,
        "id": problem.id,
    }
    data |= {name: value for name, value in more.items() if isinstance(value, str)}
    return {"code": number, "message": problem.title, "data": data}
