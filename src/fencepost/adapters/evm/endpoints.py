"""Select which endpoints of a chain to call, in which order, and which to back off from.

Contract
- `read` calls the best endpoint and moves to the next on an error. If none has a result, it raises the first `RpcRefused`,
  or a summary of why none answered. A verdict that must end the read is a result of `ask`.
- A read that takes longer than the endpoint's calls usually do is hedged: the next healthy endpoint is called as well, or
  the same one over another connection, and the first answer wins (`hedging.py`). A call that takes much longer is
  cancelled and tried again, with a longer time-out each time. So a call that hangs does not block a lane, and an endpoint
  that has become slow is still used.
- A send is hedged later than a read, and only over another connection to the same endpoint. The same bytes are harmless
  twice: the endpoint answers that it knows them. All tries together have one time-out, which doubles while it is exceeded.
- `ask_all` calls every healthy endpoint at the same time. Once one has answered, the others have `grace_s` left: a node
  that hangs must not block the others.
- An endpoint that failed backs off for 0.5 s, doubling to 30 s, and is called meanwhile only if all others failed too.
  If all of them back off, all are called.
- Best is: within 3 blocks of the consensus head, then the highest head, then the lowest latency.
- `ask_untracked` is for calls of API callers: their outcome does not affect an endpoint's health, or a caller could
  disable an endpoint with a call that it can't answer.
- With a chain id set, every connection is identified before it is used (`identity.py`). An endpoint that serves another
  chain is disabled: logged once, called again after its back-off, and enabled once it serves this chain. Answers to
  calls that started before it was disabled are discarded.
- `identify_again` identifies all endpoints over new connections, before decisions that would be wrong on another chain.
  A gateway that now leads to another node keeps its open connections, so they would not show it.
- `ChainReplaced` is raised only when every endpoint serves a chain with another first block; while one of them is only
  silent, it is `WrongChain`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from fencepost.adapters.evm.hedging import HedgeBudget, NoAnswer, Overdue, Race
from fencepost.adapters.evm.identity import ChainIdentity
from fencepost.adapters.evm.node_errors import classify
from fencepost.adapters.evm.rpc import Calls, JsonRpc
from fencepost.domain.send_result import SendCategory
from fencepost.errors import (
    ChainReplaced,
    ChainUnusable,
    RpcError,
    RpcRefused,
    RpcUnavailable,
    WrongChain,
)

_log = logging.getLogger(__name__)

T = TypeVar("T")

MIN_BACK_OFF_S: Final = 0.5
MAX_BACK_OFF_S: Final = 30.0
MAX_HEAD_LAG_BLOCKS: Final = 3
_QUORUM: Final = 3
_MAX_DOUBLINGS: Final = 16  # bounds the power; the back-off reaches its maximum long before
_LATENCY_WEIGHT: Final = 0.2
# The time-out of a call: a multiple of the endpoint's average latency, and at least this long.
_TIMEOUT_FACTOR: Final = 20.0
_MIN_TIMEOUT_S: Final = 1.0
# The tries of a read, in multiples of that time-out. The last one has only the time-out of the call itself.
_TIMEOUT_MULTIPLES: Final = (1, 2, None)
# A read is hedged after this multiple of the endpoint's average latency, and no sooner than this.
_HEDGE_FACTOR: Final = 4.0
_MIN_HEDGE_DELAY_S: Final = 0.05
_FIRST_HEDGE_DELAY_S: Final = 1.0  # until the endpoint has answered once
# A send is hedged after this multiple of the endpoint's average latency, and no sooner than this.
_SEND_HEDGE_FACTOR: Final = 5.0
_MIN_SEND_HEDGE_DELAY_S: Final = 0.25


def consensus_value(values: Sequence[int]) -> int:
    """Return one number from the answers of several endpoints about a value that only grows (a nonce, a head).

    A node that lags answers low, so the higher of two answers counts. A faulty node may answer high, which is worse: a
    nonce that is too high leaves a nonce gap, or stops the signer as if a foreign transaction had used its key. So from
    three answers on the upper median counts: one node can't raise it, and if most lag, the low answer is harmless,
    because a cursor never moves back.
    """
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if len(ordered) >= _QUORUM else ordered[-1]


def _moving_average(average_s: float, seconds: float) -> float:
    return average_s + (_LATENCY_WEIGHT if average_s else 1.0) * (seconds - average_s)


class Endpoint:
    """One endpoint and its health."""

    def __init__(self, rpc: JsonRpc) -> None:
        self.rpc: Final = rpc
        self.head = 0
        self.latency_s = 0.0  # of reads
        self.send_latency_s = 0.0
        self.overdue_send_s = 0.0  # the time-out of the last send, if it was exceeded
        self.failures = 0
        self.backs_off_until_s = 0.0
        self.wrong_since_s: float | None = None  # since when it serves another chain
        self.is_replaced = False  # that chain has the same id
        self.times_disabled = 0
        self.has_block_receipts = True  # until it rejects the method

    def succeeded(self, *, seconds: float, is_send: bool) -> None:
        if self.wrong_since_s is not None:
            _log.warning("%s serves the right chain again and is enabled", self.rpc.endpoint)
            self.wrong_since_s, self.is_replaced = None, False
        self.failures = 0
        self.backs_off_until_s = 0.0
        if is_send:
            self.overdue_send_s = 0.0
            self.send_latency_s = _moving_average(self.send_latency_s, seconds)
        else:
            self.latency_s = _moving_average(self.latency_s, seconds)

    def timeout_s(self, multiple: int | None) -> float | None:
        """Return how long to wait for the answer to a read; None waits for the time-out of the call itself."""
        if multiple is None or not self.latency_s:
            return None
        return multiple * max(_MIN_TIMEOUT_S, _TIMEOUT_FACTOR * self.latency_s)

    def send_timeout_s(self) -> float | None:
        """Return the time-out of a send. It doubles after each time-out: sends may be slow where reads are not."""
        latency_s = self._slower_latency_s()
        if not latency_s:
            return None
        return max(_MIN_TIMEOUT_S, _TIMEOUT_FACTOR * latency_s, 2 * self.overdue_send_s)

    def send_hedge_delay_s(self) -> float:
        """Return how long a send may take before it is hedged."""
        latency_s = self._slower_latency_s()
        if not latency_s:
            return _FIRST_HEDGE_DELAY_S
        return max(_MIN_SEND_HEDGE_DELAY_S, _SEND_HEDGE_FACTOR * latency_s)

    def _slower_latency_s(self) -> float:
        return max(self.latency_s, self.send_latency_s)

    def hedge_delay_s(self) -> float:
        """Return how long a read may take before it is hedged."""
        return (
            max(_MIN_HEDGE_DELAY_S, _HEDGE_FACTOR * self.latency_s)
            if self.latency_s
            else _FIRST_HEDGE_DELAY_S
        )

    def failed(self, *, now_s: float) -> None:
        self.failures += 1
        back_off_s = MIN_BACK_OFF_S * 2 ** min(self.failures - 1, _MAX_DOUBLINGS)
        self.backs_off_until_s = now_s + min(back_off_s, MAX_BACK_OFF_S)

    def mark_wrong_chain(self, error: WrongChain, *, now_s: float, is_logged: bool) -> None:
        if self.wrong_since_s is None or isinstance(error, ChainReplaced) is not self.is_replaced:
            self.wrong_since_s = now_s
            if is_logged:
                _log.error("endpoint disabled; check chains.NAME.rpc_urls: %s", error)
        self.is_replaced = isinstance(error, ChainReplaced)
        self.times_disabled += 1
        self.rpc.reconnect()

    async def batch(self, calls: Calls) -> list[Any]:
        """Return all results, or raise the first error: for reads that are useless in part."""
        answers = await self.rpc.batch(calls)
        for answer in answers:
            if isinstance(answer, RpcError):
                raise answer
        return answers


class Endpoints:
    def __init__(
        self,
        rpcs: Sequence[JsonRpc],
        *,
        identity: ChainIdentity | None = None,
        grace_s: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
        on_hedge: Callable[[str], None] = lambda _endpoint: None,
    ) -> None:
        if not rpcs:
            raise ChainUnusable("no RPC endpoint is configured")
        self.all: Final = tuple(Endpoint(rpc) for rpc in rpcs)
        self.identity: Final = identity or ChainIdentity()
        for rpc in rpcs:
            rpc.identify = partial(self.identity.check, rpc.endpoint)
        self.logs_wrong_chains = True  # off while the caller raises the errors itself
        self._silent_since_s: float | None = None
        self._grace_s = grace_s
        self._clock = clock
        self._hedge_budget = HedgeBudget(clock)
        self._on_hedge = on_hedge

    @property
    def silent_for_s(self) -> float:
        """Return for how many seconds no endpoint has answered."""
        return 0.0 if self._silent_since_s is None else self._clock() - self._silent_since_s

    def _failed(self, endpoint: Endpoint) -> None:
        now_s = self._clock()
        endpoint.failed(now_s=now_s)
        if self._silent_since_s is None and all(endpoint.failures for endpoint in self.all):
            self._silent_since_s = now_s

    def _succeeded(self, endpoint: Endpoint, started_s: float, *, is_send: bool) -> None:
        endpoint.succeeded(seconds=self._clock() - started_s, is_send=is_send)
        self._silent_since_s = None

    def healthy(self) -> list[Endpoint]:
        """Return the healthy endpoints, best first; all of them if all back off."""
        now_s = self._clock()
        available = [endpoint for endpoint in self.all if endpoint.backs_off_until_s <= now_s]
        return self.best_first(available or self.all)

    def best_first(self, endpoints: Sequence[Endpoint]) -> list[Endpoint]:
        if len(endpoints) == 1:
            return list(endpoints)
        reference = consensus_value([endpoint.head for endpoint in self.all if endpoint.head] or [0])

        def rank(endpoint: Endpoint) -> tuple[bool, int, float]:
            is_off = abs(endpoint.head - reference) > MAX_HEAD_LAG_BLOCKS
            return is_off, -endpoint.head, endpoint.latency_s

        return sorted(endpoints, key=rank)

    async def read(self, ask: Callable[[Endpoint], Awaitable[T]]) -> T:
        healthy = self.healthy()
        backing_off = sorted(set(self.all) - set(healthy), key=lambda endpoint: endpoint.backs_off_until_s)
        refusals: list[RpcRefused] = []

        async def call(endpoint: Endpoint, timeout_s: float | None) -> T:
            try:
                return await self._call(ask, endpoint, timeout_s)
            except RpcRefused as error:  # about this endpoint, perhaps: another one may serve it
                refusals.append(error)
                raise RpcUnavailable(f"{endpoint.rpc.endpoint}: {error}") from error

        try:
            return await self._race([*healthy, *backing_off], call, hedged=healthy)
        except NoAnswer as none:
            raise (refusals[0] if refusals else self._combined_error(none.errors)) from None

    async def _race(
        self,
        endpoints: Sequence[Endpoint],
        call: Callable[[Endpoint, float | None], Awaitable[T]],
        *,
        hedged: Sequence[Endpoint],
    ) -> T:
        """Call endpoints until one answers. Hedges go to those of `hedged` that are not disabled."""
        self._hedge_budget.note_call()
        last = len(_TIMEOUT_MULTIPLES) - 1
        race = Race(
            endpoints,
            lambda endpoint, nth: call(endpoint, endpoint.timeout_s(_TIMEOUT_MULTIPLES[min(nth, last)])),
            hedge_targets=[endpoint for endpoint in hedged if endpoint.wrong_since_s is None],
            hedge_after_s=Endpoint.hedge_delay_s,
            grant=self._grant_hedge,
        )
        return await race.run()

    def _grant_hedge(self, slow: Endpoint) -> bool:
        is_granted = self._hedge_budget.grant()
        if is_granted:
            self._on_hedge(slow.rpc.endpoint)
        return is_granted

    def _combined_error(self, errors: Sequence[RpcUnavailable]) -> RpcUnavailable:
        if self._all_are_replaced():
            return next((error for error in errors if isinstance(error, ChainReplaced)), errors[0])
        return RpcUnavailable("; ".join(map(str, errors)))

    async def ask_untracked(self, ask: Callable[[Endpoint], Awaitable[T]], *, nodes_max: int) -> T:
        errors: list[RpcUnavailable] = []
        for endpoint in self.healthy()[:nodes_max]:
            try:
                return await ask(endpoint)
            except RpcUnavailable as error:
                errors.append(error)
        raise RpcUnavailable("; ".join(map(str, errors)))

    async def read_untracked(self, ask: Callable[[Endpoint], Awaitable[T]]) -> T:
        """Read as `read` does, for calls whose failures must not affect an endpoint's health."""
        healthy = self.healthy()
        try:
            return await self._race(healthy, partial(_call_within, ask), hedged=healthy)
        except NoAnswer as none:
            raise RpcUnavailable(str(none)) from None

    async def identify_again(self) -> None:
        """Identify every endpoint over a new connection. Raise `WrongChain` if one that was in use serves another chain.

        The caller must then discard everything that it read before. Raise `RpcUnavailable` if no endpoint answers.
        """
        in_use = {endpoint for endpoint in self.all if endpoint.wrong_since_s is None}
        for endpoint in self.all:
            endpoint.rpc.reconnect()
        outcomes = await self.ask_all(lambda endpoint: endpoint.rpc.connect())
        for endpoint, answer in outcomes:
            if isinstance(answer, WrongChain) and endpoint in in_use:
                raise answer
        require_answers(outcomes)

    async def ask_all(
        self, ask: Callable[[Endpoint], Awaitable[T]], *, is_send: bool = False
    ) -> list[tuple[Endpoint, T | RpcError]]:
        endpoints = self.healthy()

        async def attempt(endpoint: Endpoint) -> T | RpcError:
            try:
                if is_send:
                    return await self._send(ask, endpoint)
                return await self._race([endpoint], partial(self._call, ask), hedged=[endpoint])
            except NoAnswer as none:
                return none.errors[0]
            except RpcError as error:
                return error

        if len(endpoints) == 1:
            return [(endpoints[0], await attempt(endpoints[0]))]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(attempt(endpoint)) for endpoint in endpoints]
            await _wait_for_first_answer(tasks)
            await asyncio.wait(tasks, timeout=self._grace_s)
            for task in tasks:
                task.cancel()
        return [
            (endpoint, self._too_slow(endpoint) if task.cancelled() else task.result())
            for endpoint, task in zip(endpoints, tasks, strict=True)
        ]

    async def _send(self, ask: Callable[[Endpoint], Awaitable[T]], endpoint: Endpoint) -> T:
        """Send to one endpoint; repeat the bytes over another connection while no try has answered."""
        timeout_s = endpoint.send_timeout_s()
        self._hedge_budget.note_call()
        race = Race(
            [endpoint],
            lambda target, _nth: self._call(ask, target, None, is_send=True),
            hedge_targets=[endpoint] if endpoint.wrong_since_s is None else [],
            hedge_after_s=Endpoint.send_hedge_delay_s,
            grant=self._grant_hedge,
        )
        try:
            async with asyncio.timeout(timeout_s):
                return await race.run()
        except TimeoutError:
            endpoint.overdue_send_s = timeout_s or 0.0
            self._failed(endpoint)
            raise Overdue(f"{endpoint.rpc.endpoint}: no answer within {timeout_s:.1f} s") from None

    def _too_slow(self, endpoint: Endpoint) -> RpcUnavailable:
        self._failed(endpoint)
        return RpcUnavailable(
            f"{endpoint.rpc.endpoint}: no answer within {self._grace_s} s after another endpoint answered"
        )

    async def _call(
        self,
        ask: Callable[[Endpoint], Awaitable[T]],
        endpoint: Endpoint,
        timeout_s: float | None,
        *,
        is_send: bool = False,
    ) -> T:
        started_s, times_disabled = self._clock(), endpoint.times_disabled
        try:
            answer = await _call_within(ask, endpoint, timeout_s)
        except WrongChain as error:
            self._failed(endpoint)
            raise self._wrong_chain_error(endpoint, error) from error
        except RpcUnavailable:
            self._failed(endpoint)
            raise
        except RpcRefused as error:
            if classify(str(error), rpc_code=error.rpc_code).category is SendCategory.NODE_NOT_READY:
                self._failed(endpoint)
                raise RpcUnavailable(f"{endpoint.rpc.endpoint}: {error}") from error
            self._require_enabled(endpoint, times_disabled)
            self._succeeded(endpoint, started_s, is_send=is_send)
            raise
        self._require_enabled(endpoint, times_disabled)
        self._succeeded(endpoint, started_s, is_send=is_send)
        return answer

    def _require_enabled(self, endpoint: Endpoint, times_disabled: int) -> None:
        """Raise `RpcUnavailable` if the endpoint was disabled since then: its answer may be another chain's."""
        if endpoint.times_disabled != times_disabled:
            raise RpcUnavailable(
                f"{endpoint.rpc.endpoint}: it was found to serve another chain during the call"
            )

    def _wrong_chain_error(self, endpoint: Endpoint, error: WrongChain) -> WrongChain:
        """Disable the endpoint; return `ChainReplaced`, with how long that has lasted, only if all endpoints are replaced."""
        now_s = self._clock()
        endpoint.mark_wrong_chain(error, now_s=now_s, is_logged=self.logs_wrong_chains)
        if not isinstance(error, ChainReplaced):
            return error
        if not self._all_are_replaced():
            return WrongChain(str(error))
        since_s = max(endpoint.wrong_since_s or now_s for endpoint in self.all)
        return ChainReplaced(str(error), seen_for_s=now_s - since_s)

    def _all_are_replaced(self) -> bool:
        return all(endpoint.is_replaced for endpoint in self.all)


async def _call_within(
    ask: Callable[[Endpoint], Awaitable[T]], endpoint: Endpoint, timeout_s: float | None
) -> T:
    """Call an endpoint; raise `Overdue` after the time-out."""
    if timeout_s is None:
        return await ask(endpoint)
    try:
        async with asyncio.timeout(timeout_s):
            return await ask(endpoint)
    except TimeoutError:
        raise Overdue(f"{endpoint.rpc.endpoint}: no answer within {timeout_s:.1f} s") from None


async def _wait_for_first_answer(tasks: Sequence[asyncio.Task[T | RpcError]]) -> None:
    """Wait until one task has a result that is not an error, or all are done."""
    pending = set(tasks)
    while pending:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        if any(task.exception() is None and not isinstance(task.result(), RpcError) for task in done):
            return


def require_answers(outcomes: Sequence[tuple[Endpoint, T | RpcError]]) -> list[tuple[Endpoint, T]]:
    """Return the answers without the errors; raise the first error if there is no answer."""
    answers = [(endpoint, answer) for endpoint, answer in outcomes if not isinstance(answer, RpcError)]
    if answers:
        return answers
    raise next(answer for _, answer in outcomes if isinstance(answer, RpcError))
