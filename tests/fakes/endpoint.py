"""Endpoints that misbehave on purpose: real HTTP on 127.0.0.1, and chains that use them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from aiohttp import web

from fencepost.adapters.evm.chain import EvmChain
from fencepost.adapters.evm.rpc import JsonRpc
from fencepost.domain.ids import Address, TxHash
from fencepost.domain.transaction import SignedTx
from fencepost.errors import RpcRefused

ADDRESS = Address("0x" + "11" * 20)
Respond = Callable[[web.Request, Any], Awaitable[web.StreamResponse]]


class FakeEndpoint:
    """An HTTP server that behaves like an endpoint: `methods` answer unless `respond` replaces everything."""

    def __init__(self) -> None:
        self.methods: dict[str, Any] = {"eth_chainId": "0x7a69"}
        self.respond: Respond = self.answer
        self.bodies: list[Any] = []  # every request, decoded
        self.url = ""

    @property
    def asked(self) -> list[str]:
        calls = [call for body in self.bodies for call in (body if isinstance(body, list) else [body])]
        return [call["method"] for call in calls]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read())
        self.bodies.append(body)
        return await self.respond(request, body)

    async def answer(self, _request: web.Request, body: Any) -> web.StreamResponse:
        return web.json_response(
            [self.one(call) for call in body] if isinstance(body, list) else self.one(body)
        )

    def one(self, call: dict[str, Any]) -> dict[str, Any]:
        if call["method"] not in self.methods:
            return failure(call, "method not found", code=-32601)
        said = self.methods[call["method"]]
        said = said(*call["params"]) if callable(said) else said
        if isinstance(said, RpcRefused):
            return failure(call, str(said), code=said.rpc_code or -32000, data=said.data)
        return {"jsonrpc": "2.0", "id": call["id"], "result": said}


def failure(call: dict[str, Any], message: str, *, code: int, data: object = None) -> dict[str, Any]:
    error = {"code": code, "message": message, "data": data}
    return {"jsonrpc": "2.0", "id": call["id"], "error": error}


@asynccontextmanager
async def serve_endpoints(count: int) -> AsyncIterator[list[FakeEndpoint]]:
    """Serve endpoints behind URLs in which everything but host and port is secret."""
    async with AsyncExitStack() as stack:
        nodes = [FakeEndpoint() for _ in range(count)]
        for node in nodes:
            app = web.Application()
            app.router.add_post("/{tail:.*}", node.handle)
            runner = web.AppRunner(app, shutdown_timeout=0.1)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            port = runner.addresses[0][1]
            node.url = f"http://user:s3cret@127.0.0.1:{port}/v3/s3cret?key=s3cret"
        yield nodes


class OpenChains:
    """Opens chains, closes them at the end, and has a clock that moves only by hand."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.chains: list[EvmChain] = []

    def chain(self, *nodes: FakeEndpoint, timeout_s: float = 5, grace_s: float = 5) -> EvmChain:
        rpcs = [JsonRpc(node.url, timeout_s=timeout_s) for node in nodes]
        made = EvmChain(rpcs, grace_s=grace_s, clock=lambda: self.now_s)
        self.chains.append(made)
        return made

    async def close(self) -> None:
        for chain in self.chains:
            await chain.close()


def tx(number: int = 1) -> SignedTx:
    return SignedTx(raw=bytes([number]), hash=TxHash(f"0x{number:064x}"))


def hash_of(raw: str) -> str:
    """Return the hash that an honest endpoint answers to the bytes of `tx`."""
    return f"0x{int(raw, 16):064x}"


def block(number: int, *hashes: str) -> dict[str, Any]:
    return {
        "number": hex(number),
        "hash": f"0x{number:064x}",
        "parentHash": f"0x{number - 1:064x}",
        "timestamp": "0x1",
        "transactions": list(hashes),
    }


async def hang(_request: web.Request, _body: Any) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


async def reset(request: web.Request, _body: Any) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


def status(code: int, text: str = "") -> Respond:
    async def respond(_request: web.Request, _body: Any) -> web.StreamResponse:
        return web.Response(status=code, text=text, headers={"location": "/other"})

    return respond


def answer_with(text: str) -> Respond:
    return status(200, text)
