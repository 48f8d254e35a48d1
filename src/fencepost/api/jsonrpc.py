"""`/rpc`: a node's JSON-RPC with the nonces taken care of. Point any Ethereum client at it instead of a node.

    POST → gate (who is it) → jsonrpc_calls (what is asked) → jsonrpc_send | jsonrpc_methods → answers, in the order asked

`/rpc` is the default chain, `/rpc/{chainId}` any that is served. Every call of a batch counts for the key's rate. Sends
are stored one after the other in the order of the batch; everything else runs side by side. What is wrong with the
whole request has an HTTP status as in REST, with a JSON-RPC error as its body; what is wrong with a call is its answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from fencepost.api import jsonrpc_methods, jsonrpc_send
from fencepost.api.bodies import MOST_BATCH_BYTES, preferred_wait_s, read_body
from fencepost.api.calls import Call, ClientGone
from fencepost.api.gate import Gate
from fencepost.api.incoming import Incoming
from fencepost.api.jsonrpc_calls import BadCall, RpcCall, Visit, read_calls
from fencepost.api.jsonrpc_faults import Fault, of_problem, problem_of, wire
from fencepost.api.jsonrpc_told import Told
from fencepost.api.services import Services
from fencepost.api.wire_in import MOST_WAIT_S, NoQuery
from fencepost.application.api_keys import Scope

ANSWER_WITHIN_S = 30.0
WAIT_S = 20.0
LEAST_WAIT_S = 1.0
AT_ONCE = 16
NOBODY_LISTENS = 499

_encode = msgspec.json.Encoder().encode


def rpc_routes(services: Services, gate: Gate) -> list[Route]:
    door = _Door(services, gate)
    return [
        Route("/rpc", door.endpoint, methods=["POST"]),
        Route("/rpc/{chain_id:int}", door.endpoint, methods=["POST"]),
    ]


@dataclass(slots=True)
class _Door:
    services: Services
    gate: Gate
    told: Told = field(default_factory=Told)

    async def endpoint(self, request: Request) -> Response:
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                visit, calls, is_batch = await self._enter(
                    Incoming(request.scope, request.receive, request.path_params)
                )
            answers = await self._answers(visit, calls, is_batch=is_batch)
        except ClientGone:
            return Response(status_code=NOBODY_LISTENS)
        except Exception as error:  # noqa: BLE001 - the edge: every error becomes an answer, unforeseen ones are logged
            return self._refused(error)
        if not answers:  # there were notifications only
            return Response(status_code=204)
        return _json(answers if is_batch else answers[0])

    async def _enter(self, request: Incoming) -> tuple[Visit, list[RpcCall | BadCall], bool]:
        caller = await self.gate.admit(request)
        caller.require(Scope.TX_READ)
        calls, is_batch = read_calls(await read_body(request, MOST_BATCH_BYTES))
        self.gate.charge(caller, len(calls))
        call = Call(
            request=request, services=self.services, gate=self.gate, caller=caller, query=NoQuery(), body=None
        )
        asked_s = preferred_wait_s(request.headers)
        visit = Visit(
            call=call,
            chain_id=call.chain_id(request.path_params.get("chain_id")),
            told=self.told,
            wait_s=WAIT_S if asked_s is None else min(max(asked_s, LEAST_WAIT_S), float(MOST_WAIT_S)),
            idempotency_key=request.headers.get("idempotency-key"),
        )
        return visit, calls, is_batch

    async def _answers(
        self, visit: Visit, calls: Sequence[RpcCall | BadCall], *, is_batch: bool
    ) -> list[dict[str, Any]]:
        taken = {
            place: await self._taken(visit, call, place if is_batch else None)
            for place, call in enumerate(calls)
            if isinstance(call, RpcCall) and call.method == jsonrpc_methods.SEND
        }
        room = asyncio.Semaphore(AT_ONCE)

        async def one(place: int, call: RpcCall | BadCall) -> dict[str, Any]:
            try:
                if isinstance(call, BadCall):
                    raise call.fault  # noqa: TRY301 - every way out of a call is made an answer below
                return {"result": await self._result(visit, call, taken.get(place), room)}
            except Exception as error:  # noqa: BLE001 - the edge of a call; what nobody foresaw is logged
                return {"error": wire(error, self.services)}

        async def everything() -> list[dict[str, Any]]:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(place, call)) for place, call in enumerate(calls)]
            return [task.result() for task in tasks]

        said = await visit.call.unless_gone(everything())
        return [
            {"jsonrpc": "2.0", "id": call.id, **answer}
            for call, answer in zip(calls, said, strict=True)
            if call.id is not msgspec.UNSET
        ]

    async def _taken(self, visit: Visit, call: RpcCall, place: int | None) -> jsonrpc_send.Taken | Exception:
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                return await jsonrpc_send.take(visit, call.params, place=place)
        except Exception as error:  # noqa: BLE001 - the answer to this call; those after it go on
            return error

    async def _result(
        self,
        visit: Visit,
        call: RpcCall,
        taken: jsonrpc_send.Taken | Exception | None,
        room: asyncio.Semaphore,
    ) -> Any:
        match taken:
            case Exception():
                raise taken
            case jsonrpc_send.Taken():
                return await jsonrpc_send.hash_of(visit, taken)
            case None:
                async with room, asyncio.timeout(ANSWER_WITHIN_S):
                    return await jsonrpc_methods.answer(visit, call.method, call.params)

    def _refused(self, error: Exception) -> Response:
        body: dict[str, Any] = {"jsonrpc": "2.0", "id": None}
        if isinstance(error, Fault):
            return _json(body | {"error": wire(error, self.services)})
        problem = problem_of(error, self.services)
        return _json(
            body | {"error": of_problem(problem)}, status=problem.problem.status, headers=problem.headers
        )


def _json(body: object, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(_encode(body), status_code=status, headers=headers, media_type="application/json")
