"""A JSON-RPC endpoint in front of the chain's node that injects faults and records what is sent.

A share of the requests, chosen by seed, gets an error without being forwarded, no answer and then a reset, or is executed
and then answered with an error. An endpoint may also report wrong nonces, or lag: it then answers as the chain was some
blocks ago. Sends are recorded just before they are forwarded, with their hash. Forwarded requests share a lock with
reorgs.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec
from aiohttp import web

from fencepost.adapters.evm.encoding import decode_signed
from lab.checker.history import ChainTx, Sent, effect_of
from lab.proxies.shared_lock import SharedLock

HANG_S = 2.5
_MAX_BODY_BYTES = 64 * 1024 * 1024
_TAGGED = {"eth_getTransactionCount": 1, "eth_getBalance": 1, "eth_getBlockByNumber": 0}
_REJECTIONS = (
    (503, None),
    (502, None),
    (429, None),
    (200, {"code": -32005, "message": "rate limit exceeded"}),
    (200, {"code": -32603, "message": "Internal error"}),
)


@dataclass(slots=True)
class RpcFaults:
    """Shares of requests with a fault; the others are answered.

    `lie` is added to nonces, `lag_blocks` is how far the endpoint lags, `repointed_to` is the endpoint of another chain.
    """

    error: float = 0.0
    hang: float = 0.0
    executed: float = 0.0
    lie: int = 0
    lag_blocks: int = 0
    repointed_to: str = ""


@dataclass(slots=True)
class SendRecord:
    """Everything that was sent over all endpoints."""

    sent: list[Sent] = field(default_factory=list)
    injected: Counter[str] = field(default_factory=Counter)
    _decoded: dict[str, ChainTx] = field(default_factory=dict)
    _raw: dict[tuple[str, int], list[str]] = field(default_factory=lambda: defaultdict(list))

    def note(self, raw: str, via: str) -> None:
        """Record a send."""
        tx = self._decoded.get(raw)
        if tx is None:
            tx = self._decoded[raw] = as_chain_tx(bytes.fromhex(raw.removeprefix("0x")))
            self._raw[tx.signer, tx.nonce].append(raw)
        self.sent.append(Sent(time.time(), tx, via))

    def other_attempts(self, signer: str, nonce: int, tx_hash: str) -> list[str]:
        """Return other bytes that were sent for the same nonce."""
        return [raw for raw in self._raw[signer.lower(), nonce] if self._decoded[raw].hash != tx_hash]


def as_chain_tx(raw: bytes) -> ChainTx:
    decoded = decode_signed(raw)
    call = decoded.tx.call
    effect = effect_of(to=call.to, value_wei=call.value_wei, data=f"0x{call.data.hex()}")
    return ChainTx(decoded.hash, decoded.sender, decoded.tx.nonce, effect)


@dataclass(slots=True)
class RpcProxy:
    """One endpoint with its faults."""

    name: str
    upstream_url: str
    record: SendRecord
    rng: random.Random
    session: aiohttp.ClientSession
    chain_lock: SharedLock
    url: str = ""
    faults: RpcFaults = field(default_factory=RpcFaults)

    def heal(self) -> None:
        self.faults = RpcFaults()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = msgspec.json.decode(await request.read())
        fault = self._draw_fault()
        if fault == "error":
            return self._rejection(body)
        if fault == "hang":
            await asyncio.sleep(HANG_S)
            return _reset(request)
        try:
            async with self.chain_lock.shared():
                answers = await self._forward(body if isinstance(body, list) else [body])
        except (aiohttp.ClientError, TimeoutError):
            return _reset(request)
        if fault == "executed":
            return _reset(request) if self.rng.random() < 0.5 else self._rejection(body)  # noqa: PLR2004 - half of them
        return _json(answers if isinstance(body, list) else answers[0])

    def _draw_fault(self) -> str:
        drawn, faults = self.rng.random(), self.faults
        for fault, share in (("error", faults.error), ("hang", faults.hang), ("executed", faults.executed)):
            if drawn < share:
                self.record.injected[fault] += 1
                return fault
            drawn -= share
        return "answer"

    def _rejection(self, body: Any) -> web.Response:
        status, error = self.rng.choice(_REJECTIONS)
        if error is None:
            return web.Response(status=status, text="upstream trouble")
        calls = body if isinstance(body, list) else [body]
        answers = [{"jsonrpc": "2.0", "id": call.get("id"), "error": error} for call in calls]
        return _json(answers if isinstance(body, list) else answers[0])

    # ---- forwarding

    async def _forward(self, calls: list[dict[str, Any]]) -> list[Any]:
        seen = await self._head() - self.faults.lag_blocks if self.faults.lag_blocks else None
        asked = calls if seen is None else [_at_block(call, seen) for call in calls]
        for call in calls:
            if call["method"] == "eth_sendRawTransaction":
                self.record.note(call["params"][0], self.name)
        answers = await self._post(asked)
        by_id = {answer["id"]: answer for answer in answers}
        return [self._falsify(call, by_id[call["id"]], seen) for call in calls]

    async def _head(self) -> int:
        answer = await self._post([{"jsonrpc": "2.0", "id": 1, "method": "eth_blockNumber", "params": []}])
        return int(answer[0]["result"], 16)

    async def _post(self, calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
        payload: Any = calls if len(calls) > 1 else calls[0]
        headers = {"content-type": "application/json"}
        upstream = self.faults.repointed_to or self.upstream_url
        async with self.session.post(
            upstream, data=msgspec.json.encode(payload), headers=headers
        ) as response:
            said = msgspec.json.decode(await response.read())
        return said if isinstance(said, list) else [said]

    def _falsify(self, call: dict[str, Any], answer: dict[str, Any], seen: int | None) -> dict[str, Any]:
        result = answer.get("result")
        method = call["method"]
        if self.faults.lie and method == "eth_getTransactionCount" and isinstance(result, str):
            return {**answer, "result": hex(max(0, int(result, 16) + self.faults.lie))}
        if seen is None or result is None:
            return answer
        if method == "eth_blockNumber":
            return {**answer, "result": hex(seen)}
        number = result.get("blockNumber") or result.get("number") if isinstance(result, dict) else None
        is_newer = isinstance(number, str) and int(number, 16) > seen
        if is_newer and method in ("eth_getTransactionReceipt", "eth_getBlockByNumber"):
            return {**answer, "result": None}
        return answer


def _at_block(call: dict[str, Any], number: int) -> dict[str, Any]:
    """Return the same call, about the chain at an older block."""
    position = _TAGGED.get(call["method"])
    params = list(call.get("params", []))
    if position is None or len(params) <= position or params[position] not in ("latest", "pending"):
        return call
    params[position] = hex(max(0, number))
    return {**call, "params": params}


def _json(payload: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(payload), content_type="application/json")


def _reset(request: web.Request) -> web.Response:
    """Abort the connection without an answer."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=500)


@asynccontextmanager
async def rpc_proxy(
    name: str, upstream_url: str, *, record: SendRecord, rng: random.Random, chain_lock: SharedLock
) -> AsyncIterator[RpcProxy]:
    timeout = aiohttp.ClientTimeout(total=10)
    connector = aiohttp.TCPConnector(limit=32)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        made = RpcProxy(name, upstream_url, record, rng, session, chain_lock)
        app = web.Application(client_max_size=_MAX_BODY_BYTES)
        app.router.add_post("/", made.handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        made.url = f"http://127.0.0.1:{port}"
        try:
            yield made
        finally:
            await runner.cleanup()
