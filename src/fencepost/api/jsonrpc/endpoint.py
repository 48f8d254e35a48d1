"""Serve `/rpc`: Ethereum JSON-RPC with managed nonces, for any Ethereum client.

    POST → auth → jsonrpc.parsing → jsonrpc.send | jsonrpc.methods → responses in the order of the calls

`/rpc` is the default chain, `/rpc/{chainId}` any configured one. Every call of a batch counts towards the rate limit of
the key. Sends are stored one after the other in the order of the batch; other calls run concurrently. An error of the
whole request has the same HTTP status as in REST, with a JSON-RPC error as its body; an error of one call is the
response to that call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeGuard

import msgspec

from fencepost.api.context import Operation, RequestContext, Response
from fencepost.api.dependencies import Dependencies
from fencepost.api.jsonrpc import methods, send
from fencepost.api.jsonrpc.errors import RpcFault, error_object, error_object_of_problem, to_problem
from fencepost.api.jsonrpc.nonce_hints import NonceHints
from fencepost.api.jsonrpc.parsing import MAX_VALUES, BadCall, RpcCall, RpcRequestContext, read_calls
from fencepost.api.parsing import MAX_BATCH_BYTES, preferred_wait_s, whole_number
from fencepost.api.problems import ApiError
from fencepost.application.api_keys import Scope
from fencepost.schemas.requests import MAX_CHAIN_ID, MAX_WAIT_S

RESPONSE_TIMEOUT_S = 30.0
DEFAULT_WAIT_S = 20.0
MIN_WAIT_S = 1.0
MAX_CONCURRENT_CALLS = 16

_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class _RpcBody(msgspec.Struct):
    """Stand for a body that `read_calls` decodes."""


def rpc_operations() -> list[Operation]:
    rpc = _RpcEndpoint()
    return [
        Operation(
            "POST",
            path,
            name,
            "Call Ethereum JSON-RPC methods.",
            rpc.handle,
            {},
            "JSON-RPC",
            scopes=(Scope.TX_READ,),
            ignores_query=True,
            body=_RpcBody,
            max_bytes=MAX_BATCH_BYTES,
            max_values=MAX_VALUES,
            decodes_itself=True,
            charges_itself=True,
            bounds_itself=True,
            present_error=_present_error,
        )
        for path, name in (("/rpc", "rpc"), ("/rpc/{chain_id}", "rpcOfChain"))
    ]


@dataclass(slots=True)
class _RpcEndpoint:
    nonce_hints: NonceHints = field(default_factory=NonceHints)

    async def handle(self, call: RequestContext) -> Response:
        calls, is_batch = read_calls(call.body)
        call.authenticator.charge(call.caller, len(calls))
        context = self._context(call)
        with call.authenticator.waiting(call.caller, sum(map(_is_send, calls))):
            responses = await self._responses(context, calls, is_batch=is_batch)
        if not responses:  # the request had only notifications
            return Response(msgspec.Raw(), status=204, media_type=None)
        return _json(responses if is_batch else responses[0])

    def _context(self, call: RequestContext) -> RpcRequestContext:
        headers = call.request.headers
        preferred_s = preferred_wait_s(headers)
        return RpcRequestContext(
            call=call,
            chain_id=_chain_id(call),
            nonce_hints=self.nonce_hints,
            wait_s=DEFAULT_WAIT_S
            if preferred_s is None
            else min(max(preferred_s, MIN_WAIT_S), float(MAX_WAIT_S)),
            idempotency_key=headers.get("idempotency-key"),
        )

    async def _responses(
        self, context: RpcRequestContext, calls: Sequence[RpcCall | BadCall], *, is_batch: bool
    ) -> list[dict[str, Any]]:
        submitted = {
            index: await self._submit(context, call, index if is_batch else None)
            for index, call in enumerate(calls)
            if _is_send(call)
        }
        slots = asyncio.Semaphore(MAX_CONCURRENT_CALLS)

        async def run_one(index: int, call: RpcCall | BadCall) -> dict[str, Any]:
            try:
                if isinstance(call, BadCall):
                    raise call.fault  # noqa: TRY301 - every error becomes a response below
                return {"result": await self._result(context, call, submitted.get(index), slots)}
            except Exception as error:  # noqa: BLE001 - the edge of a call; unexpected errors are logged
                return {"error": error_object(error, context.call.services)}

        async def run_all() -> list[dict[str, Any]]:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(run_one(index, call)) for index, call in enumerate(calls)]
            return [task.result() for task in tasks]

        outcomes = await context.call.cancel_on_disconnect(run_all())
        return [
            {"jsonrpc": "2.0", "id": call.id, **outcome}
            for call, outcome in zip(calls, outcomes, strict=True)
            if call.id is not msgspec.UNSET
        ]

    async def _submit(
        self, context: RpcRequestContext, call: RpcCall, index: int | None
    ) -> send.SubmittedTx | Exception:
        try:
            async with asyncio.timeout(RESPONSE_TIMEOUT_S):
                return await send.submit_call(context, call.params, index=index)
        except Exception as error:  # noqa: BLE001 - the response to this call; the next calls continue
            return error

    async def _result(
        self,
        context: RpcRequestContext,
        call: RpcCall,
        submitted: send.SubmittedTx | Exception | None,
        slots: asyncio.Semaphore,
    ) -> Any:
        match submitted:
            case Exception():
                raise submitted
            case send.SubmittedTx():
                return await send.hash_of(context, submitted)
            case None:
                async with slots, asyncio.timeout(RESPONSE_TIMEOUT_S):
                    return await methods.call_method(context, call.method, call.params)


def _present_error(error: Exception, services: Dependencies) -> Response:
    """Respond to the whole request with a JSON-RPC error, and with the HTTP status of REST."""
    body: dict[str, Any] = {"jsonrpc": "2.0", "id": None}
    if isinstance(error, RpcFault):
        return _json(body | {"error": error_object(error, services)})
    problem = to_problem(error, services)
    return _json(
        body | {"error": error_object_of_problem(problem)},
        status=problem.problem.status,
        headers=problem.headers,
    )


def _is_send(call: RpcCall | BadCall) -> TypeGuard[RpcCall]:
    return isinstance(call, RpcCall) and call.method == methods.SEND


def _chain_id(call: RequestContext) -> int:
    text = call.request.path_params.get("chain_id")
    if text is None:
        return call.chain_id(None)
    chain_id = whole_number(text, maximum=MAX_CHAIN_ID)
    if chain_id is None:
        raise ApiError("chain_unknown", f"chainId: {text[:40]!r} is not a chain id", field="chainId")
    return call.chain_id(chain_id)


def _json(body: object, *, status: int = 200, headers: Mapping[str, str] = _NO_HEADERS) -> Response:
    return Response(msgspec.Raw(msgspec.json.encode(body)), status, headers)
