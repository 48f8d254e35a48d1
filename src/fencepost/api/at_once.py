"""Taking a transaction without a task: all that has to be waited for is the commit, and many share one.

Everything before it is done where the request came in, everything after it where the commit ends; both are what the
usual way does. Whatever has to wait for something else (a key that is not remembered, a policy, a milestone) gets
its task there, and goes on in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial

from starlette.types import Receive, Scope, Send

from fencepost.api.answering import Answer, Answering, answered
from fencepost.api.calls import Call, Operation
from fencepost.api.direct import TAKES_ONE, send_answer
from fencepost.api.gate import Gate
from fencepost.api.incoming import Incoming
from fencepost.api.services import Services
from fencepost.api.stopping import UNKNOWN, Stoppable
from fencepost.api.submit import begin_one, created, taken
from fencepost.api.time_bound import OutOfTime
from fencepost.api.unwaited import Waits, unwaited
from fencepost.application.accept import Request
from fencepost.application.forwarding import PASS_HEADER
from fencepost.application.ports import Accepted, AcceptOutcome
from fencepost.errors import Stopping
from fencepost.exchange import Exchange


class AtOnce:
    def __init__(
        self, table: Iterable[Operation], services: Services, gate: Gate, is_stopping: Callable[[], bool]
    ) -> None:
        operation = next(operation for operation in table if operation.name == TAKES_ONE)
        self._path = operation.path
        self._method = operation.method
        self._answering = Answering(operation, services, gate)
        self._is_stopping = is_stopping

    def __call__(self, exchange: Exchange) -> bool:
        """As an `Offer`."""
        scope = exchange.scope
        if scope["path"] != self._path or scope["method"] != self._method:
            return False
        request = Incoming(scope, exchange.receive)
        if PASS_HEADER in request.headers:  # it is good for one look
            return False
        try:
            call = unwaited(self._answering.call(request))
            storing = begin_one(call, partial(self._stored, exchange, call))
        except Waits:  # for who it is that asks: nothing else has been looked at
            return False
        except Exception as error:  # noqa: BLE001 - the edge: every error becomes a problem
            self._go_on(exchange, partial(_known, self._answering.answer_to(error)))
            return True
        if storing is None:
            self._go_on(exchange, partial(self._answering.handled, call))
        else:
            self._answering.bound.begin(storing)
            exchange.wait_for(storing)
        return True

    def _stored(
        self, exchange: Exchange, call: Call, request: Request, storing: asyncio.Future[Accepted]
    ) -> None:
        is_in_time = self._answering.bound.end(storing)
        exchange.forget()
        try:
            accepted = storing.result()
            if accepted.outcome is not AcceptOutcome.CREATED:
                self._go_on(exchange, partial(self._rest, call, request, accepted))
                return
            answer = answered(created(request, accepted))
        except asyncio.CancelledError:
            answer = self._answering.answer_to(Stopping(UNKNOWN) if is_in_time else OutOfTime())
        except Exception as error:  # noqa: BLE001 - the edge: every error becomes a problem
            answer = self._answering.answer_to(error)
        exchange.answer(answer.status, answer.encoded_headers(), answer.body)

    async def _rest(self, call: Call, request: Request, accepted: Accepted) -> Answer:
        return answered(await taken(call, request, accepted))

    def _go_on(self, exchange: Exchange, work: Callable[[], Awaitable[Answer]]) -> None:
        """In a task of its own."""

        async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
            await send_answer(await self._answering.within_bounds(work()), send)

        exchange.run_soon(Stoppable(app, self._is_stopping))


async def _known(answer: Answer) -> Answer:
    return answer
