"""Define the JSON-RPC errors of `/rpc`: a number, a message, and data.

The numbers are those of JSON-RPC 2.0 and EIP-1474: -32602 invalid parameters, -32003 rejected, -32002 temporarily
unavailable, -32004 not allowed, -32005 limit exceeded, 4100 (EIP-1193) unauthorized, 3 execution reverted. `data.code`
is more specific; it is as stable as the codes of REST, which it shares. `data.detail` is for people. Errors of the
chain's endpoint are passed on unchanged.

web3.py takes an object in `data` for revert data, and all clients expect the bytes of a revert there. Where a client may
assume a revert, `data` is therefore text: the revert bytes in hex, or the code and detail of a transaction that was not
sent or not in time. The object is then in `info`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fencepost.api.dependencies import Dependencies
from fencepost.api.problems import RETRY_AFTER_S, ApiError, expected_problem, unexpected_problem
from fencepost.errors import RpcRefused, Unsendable

PARSE, INVALID, PARAMS, INTERNAL = -32700, -32600, -32602, -32603
NOT_FOUND, UNAVAILABLE, REJECTED, NOT_ALLOWED, LIMIT_EXCEEDED = -32001, -32002, -32003, -32004, -32005
SERVER_ERROR, UNAUTHORIZED, REVERTS = -32000, 4100, 3

# code → number and message
FAULTS: dict[str, tuple[int, str]] = {
    "request_invalid": (INVALID, "invalid request"),
    "batch_too_large": (LIMIT_EXCEEDED, "batch too large"),
    "response_too_large": (LIMIT_EXCEEDED, "response too large: request less data per call"),
    "params_invalid": (PARAMS, "invalid params"),
    "method_not_allowed": (NOT_ALLOWED, "method not allowed"),
    "nonce_managed": (REJECTED, "nonces are managed by Fencepost: omit nonce"),
    "signer_managed": (REJECTED, "the sender is managed by Fencepost: use eth_sendTransaction"),
    "would_revert": (REVERTS, "execution reverted"),
    "tx_refused": (REJECTED, "transaction rejected"),
    "tx_too_late": (UNAVAILABLE, "not sent: no nonce was assigned in time"),
    "tx_waiting": (
        UNAVAILABLE,
        "accepted, but not signed yet: retry with the same requestId to get the hash",
    ),
}
_BY_CODE = {"json_malformed": PARSE, "policy_refused": REJECTED}
_BY_STATUS = {
    400: PARAMS,
    401: UNAUTHORIZED,
    403: UNAUTHORIZED,
    404: NOT_FOUND,
    409: REJECTED,
    413: INVALID,
    415: INVALID,
    422: REJECTED,
    429: LIMIT_EXCEEDED,
    503: UNAVAILABLE,
}


_DATA_IS_TEXT = frozenset({UNAVAILABLE, REVERTS, SERVER_ERROR})


class RpcFault(Exception):
    """An error that the caller receives as a JSON-RPC error object."""

    def __init__(self, code: str, detail: str, **more: str) -> None:
        super().__init__(detail)
        self.number, self.message = FAULTS[code]
        self.info: dict[str, Any] = {"code": code, "detail": detail[:1000], **more}


class Reverts(RpcFault):
    """The dry run reverted; `revert_hex` is the revert data, for clients to decode."""

    def __init__(self, detail: str, revert_hex: str, **more: str) -> None:
        super().__init__("would_revert", detail, **more)
        reason = detail.removeprefix("would revert").lstrip(": ")
        self.message = f"{self.message}: {reason}" if reason else self.message
        self.revert_hex = revert_hex


def _error(number: int, message: str, info: dict[str, Any]) -> dict[str, Any]:
    if number not in _DATA_IS_TEXT:
        return {"code": number, "message": message, "data": info}
    text = f"{info['code']}: {info['detail']}"
    if tx_id := info.get("txId"):
        text += f" (txId {tx_id})"
    return {"code": number, "message": message, "data": text, "info": info}


def error_object(error: Exception, services: Dependencies) -> dict[str, Any]:
    """Convert an exception to a JSON-RPC error object; unexpected errors are logged."""
    match error:
        case Reverts():
            result = _error(error.number, error.message, error.info)
            return result | {"data": error.revert_hex}
        case RpcFault():
            return _error(error.number, error.message, error.info)
        case Unsendable():
            info = {
                "code": "field_invalid",
                "detail": str(error),
                "field": error.field.removeprefix("payload."),
            }
            return _error(SERVER_ERROR, error.node_text, info)
        case RpcRefused():
            result = {
                "code": SERVER_ERROR if error.rpc_code is None else error.rpc_code,
                "message": str(error),
            }
            return result if error.data is None else result | {"data": error.data}
    return error_object_of_problem(to_problem(error, services))


def to_problem(error: Exception, services: Dependencies) -> ApiError:
    known = expected_problem(error)
    if known is not None:
        return known
    if isinstance(error, TimeoutError):
        return ApiError("busy", "the call was not completed in time", retry_after_s=RETRY_AFTER_S)
    if services.node.is_database_failure(error):
        return ApiError(
            "database_unavailable", "the database is unavailable; retry soon", retry_after_s=RETRY_AFTER_S
        )
    return unexpected_problem(error)


def error_object_of_problem(error: ApiError) -> dict[str, Any]:
    problem = error.problem
    number = _BY_CODE.get(problem.code) or _BY_STATUS.get(problem.status, INTERNAL)
    # REST nests the transaction in `payload`; JSON-RPC does not.
    data: dict[str, Any] = {"code": problem.code, "detail": problem.detail.removeprefix("payload.")}
    more: Mapping[str, Any] = {
        "field": error.field and error.field.removeprefix("payload."),
        "hint": problem.hint,
        "owner": problem.owner,
        "txId": problem.tx_id,
        "id": problem.id,
    }
    data |= {name: value for name, value in more.items() if isinstance(value, str)}
    return _error(number, problem.title, data)
