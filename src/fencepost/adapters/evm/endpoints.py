"""The nodes of one chain: which to ask, in which order, and which to leave alone for a while.

Contract
- `read` asks the best endpoint and moves to the next on `RpcUnavailable`; each is asked once. `RpcRefused` is an answer
  and ends the read, unless it says that the node itself is busy or syncing.
- `ask_all` asks every healthy endpoint at the same time. Once one has answered, the others have `grace_s` left: one
  node that hangs must not stop the rest.
- An endpoint that failed rests 0.5 s, doubling to 30 s, and is asked meanwhile only if all others failed too. With all
  of them resting, all are asked.
- Best is: within 3 blocks of the typical head, then the highest head, then the lowest latency.
- `pass_on` is for calls of strangers: whatever becomes of them says nothing about a node's health, or anybody could
  talk a node out of use with a call that it can't answer.
- With a chain id set, an endpoint is used only after it has named that same id, also when it comes up later.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

from fencepost.adapters.evm.answers import quantity
from fencepost.adapters.evm.node_errors import classify
from fencepost.adapters.evm.rpc import Calls, JsonRpc
from fencepost.domain.send import SendCategory
from fencepost.errors import ChainUnusable, RpcError, RpcRefused, RpcUnavailable

T = TypeVar("T")

REST_MIN_S: Final = 0.5
REST_MAX_S: Final = 30.0
HEAD_LAG_BLOCKS_MAX: Final = 3
_QUORUM: Final = 3
_DOUBLINGS_MAX: Final = 16  # keeps the power small; the rest is at its bound long before
_LATENCY_WEIGHT: Final = 0.2


def typical(values: Sequence[int]) -> int:
    """One number out of what several nodes say about something that only grows (a nonce, a head).

    A node that is behind answers low, so of one or two answers the highest counts. A node that lies or is broken could
    answer high, which is worse: a nonce too high leaves a hole or stops the signer as if a stranger had used its key.
    So from three answers on the upper median counts: no single node can move it upwards, and should most be behind, the
    low answer is harmless, because a cursor never goes back to it.
    """
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if len(ordered) >= _QUORUM else ordered[-1]


class Endpoint:
    """One node and what we know of its health."""

    def __init__(self, rpc: JsonRpc) -> None:
        self.rpc: Final = rpc
        self.head = 0
        self.latency_s = 0.0
        self.failures = 0
        self.rests_until_s = 0.0
        self.verified = False  # it has named the chain id we want
        self.has_block_receipts = True  # until it says otherwise

    def succeeded(self, *, seconds: float) -> None:
        self.failures = 0
        self.rests_until_s = 0.0
        weight = _LATENCY_WEIGHT if self.latency_s else 1.0
        self.latency_s += weight * (seconds - self.latency_s)

    def failed(self, *, now_s: float) -> None:
        self.failures += 1
        rest_s = REST_MIN_S * 2 ** min(self.failures - 1, _DOUBLINGS_MAX)
        self.rests_until_s = now_s + min(rest_s, REST_MAX_S)

    async def batch(self, calls: Calls) -> list[Any]:
        """All results, or the first error raised: for reads, which are no use in part."""
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
        grace_s: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not rpcs:
            raise ChainUnusable("no RPC endpoint is configured")
        self.all: Final = tuple(Endpoint(rpc) for rpc in rpcs)
        self.chain_id = 0  # 0: any
        self._grace_s = grace_s
        self._clock = clock

    def healthy(self) -> list[Endpoint]:
        """Best first; all of them when all are resting."""
        now_s = self._clock()
        awake = [endpoint for endpoint in self.all if endpoint.rests_until_s <= now_s]
        return self.best_first(awake or self.all)

    def best_first(self, endpoints: Sequence[Endpoint]) -> list[Endpoint]:
        if len(endpoints) == 1:
            return list(endpoints)
        reference = typical([endpoint.head for endpoint in self.all if endpoint.head] or [0])

        def rank(endpoint: Endpoint) -> tuple[bool, int, float]:
            astray = abs(endpoint.head - reference) > HEAD_LAG_BLOCKS_MAX
            return astray, -endpoint.head, endpoint.latency_s

        return sorted(endpoints, key=rank)

    async def read(self, ask: Callable[[Endpoint], Awaitable[T]]) -> T:
        healthy = self.healthy()
        resting = sorted(set(self.all) - set(healthy), key=lambda endpoint: endpoint.rests_until_s)
        errors: list[RpcUnavailable] = []
        for endpoint in (*healthy, *resting):
            try:
                return await self._asked(endpoint, ask)
            except RpcUnavailable as error:
                errors.append(error)
        raise RpcUnavailable("; ".join(map(str, errors)))

    async def pass_on(self, ask: Callable[[Endpoint], Awaitable[T]], *, nodes_max: int) -> T:
        errors: list[RpcUnavailable] = []
        for endpoint in self.healthy()[:nodes_max]:
            try:
                await self._verify(endpoint)
                return await ask(endpoint)
            except RpcUnavailable as error:
                errors.append(error)
        raise RpcUnavailable("; ".join(map(str, errors)))

    async def ask_all(self, ask: Callable[[Endpoint], Awaitable[T]]) -> list[tuple[Endpoint, T | RpcError]]:
        asked = self.healthy()

        async def settle(endpoint: Endpoint) -> T | RpcError:
            try:
                return await self._asked(endpoint, ask)
            except RpcError as error:
                return error

        if len(asked) == 1:
            return [(asked[0], await settle(asked[0]))]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(settle(endpoint)) for endpoint in asked]
            await _first_answer(tasks)
            await asyncio.wait(tasks, timeout=self._grace_s)
            for task in tasks:
                task.cancel()
        return [
            (endpoint, self._too_slow(endpoint) if task.cancelled() else task.result())
            for endpoint, task in zip(asked, tasks, strict=True)
        ]

    def _too_slow(self, endpoint: Endpoint) -> RpcUnavailable:
        endpoint.failed(now_s=self._clock())
        return RpcUnavailable(
            f"{endpoint.rpc.endpoint}: no answer within {self._grace_s} s of another node's"
        )

    async def _asked(self, endpoint: Endpoint, ask: Callable[[Endpoint], Awaitable[T]]) -> T:
        started_s = self._clock()
        try:
            await self._verify(endpoint)
            answer = await ask(endpoint)
        except RpcUnavailable:
            endpoint.failed(now_s=self._clock())
            raise
        except RpcRefused as error:
            if classify(str(error), rpc_code=error.rpc_code).category is SendCategory.NODE_NOT_READY:
                endpoint.failed(now_s=self._clock())
                raise RpcUnavailable(f"{endpoint.rpc.endpoint}: {error}") from error
            endpoint.succeeded(seconds=self._clock() - started_s)
            raise
        endpoint.succeeded(seconds=self._clock() - started_s)
        return answer

    async def _verify(self, endpoint: Endpoint) -> None:
        if endpoint.verified or not self.chain_id:
            return
        named = quantity(await endpoint.rpc.call("eth_chainId"), of="chain id")
        if named != self.chain_id:
            raise RpcUnavailable(f"{endpoint.rpc.endpoint}: is on chain {named}, not {self.chain_id}")
        endpoint.verified = True


async def _first_answer(tasks: Sequence[asyncio.Task[T | RpcError]]) -> None:
    """Until one task has something other than an error, or all are done."""
    pending = set(tasks)
    while pending:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        if any(task.exception() is None and not isinstance(task.result(), RpcError) for task in done):
            return


def answers_of(settled: Sequence[tuple[Endpoint, T | RpcError]]) -> list[tuple[Endpoint, T]]:
    """Only what was answered; raises the first error when nothing was."""
    good = [(endpoint, answer) for endpoint, answer in settled if not isinstance(answer, RpcError)]
    if good:
        return good
    raise next(answer for _, answer in settled if isinstance(answer, RpcError))
