"""A signing service that behaves as web3signer does, on 127.0.0.1, with eth-account doing the signing.

The `web3signer` fixture starts one a call and gives its URL; everything stops with the test. It answers one call a
request, wants a nonce, and reports errors with HTTP 400. What it signs can be changed on the way (`tamper`), signed
with another key (`sign_as`), or replaced by any answer at all (`answer`).
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest
from aiohttp import web
from eth_account import Account

Fields = dict[str, Any]
Answer = Callable[[web.Request, Fields], Awaitable[web.StreamResponse | None]]


class _Service:
    def __init__(
        self,
        private_keys: Sequence[str],
        *,
        tamper: Callable[[Fields], Fields] | None = None,
        sign_as: str | None = None,
        answer: Answer | None = None,
    ) -> None:
        self._keys = {Account.from_key(key).address.lower(): key for key in private_keys}
        self._tamper = tamper
        self._sign_as = sign_as
        self._answer = answer

    async def handle(self, request: web.Request) -> web.StreamResponse:
        call = json.loads(await request.read())
        if not isinstance(call, dict):
            return _error(None, -32700, "Parse error")
        if self._answer is not None:
            answer = await self._answer(request, call)
            if answer is not None:
                return answer
        return self._reply(call)

    def _reply(self, call: Fields) -> web.Response:
        if call["method"] == "eth_accounts":
            return _result(call, list(self._keys))
        if call["method"] != "eth_signTransaction":
            return _error(call, -32601, "Method not found")
        (fields,) = call["params"]
        key = self._keys.get(fields["from"].lower())
        if key is None:
            return _error(call, -32000, "From address does not match an available account")
        if "nonce" not in fields:
            return _error(call, -32602, "Invalid params")
        return _result(call, self._sign(fields, self._sign_as or key))

    def _sign(self, fields: Fields, key: str) -> str:
        if self._tamper is not None:
            fields = self._tamper(dict(fields))
        wanted = {name: value for name, value in fields.items() if name != "from"}
        if wanted["type"] == "0x0":
            del wanted["type"]
        if "to" in wanted:
            wanted["to"] = bytes.fromhex(wanted["to"][2:])
        raw = bytes(Account.sign_transaction(wanted, key).raw_transaction)
        return "0x" + raw.hex()


def _result(call: Fields, result: Any) -> web.Response:
    return web.json_response({"jsonrpc": "2.0", "id": call["id"], "result": result})


def _error(call: Fields | None, code: int, message: str) -> web.Response:
    body = {"jsonrpc": "2.0", "id": call and call["id"], "error": {"code": code, "message": message}}
    return web.json_response(body, status=400)


@pytest.fixture
async def web3signer() -> AsyncIterator[Callable[..., Awaitable[str]]]:
    async with AsyncExitStack() as running:

        async def start(private_keys: Sequence[str], **behaviour: Any) -> str:
            app = web.Application()
            app.router.add_post("/", _Service(private_keys, **behaviour).handle)
            runner = web.AppRunner(app, shutdown_timeout=1)
            await runner.setup()
            running.push_async_callback(runner.cleanup)
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            host, port = runner.addresses[0][:2]
            return f"http://{host}:{port}/"

        yield start
