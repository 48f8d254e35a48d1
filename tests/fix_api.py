"""The front door of a real node, served by a real server on a port of its own.

`open_door` opens one in this process; `door` is one with settings that suit most tests: anvil mines at once, and a
receipt is final at once. `Door.get` and `Door.post` give status, headers and JSON.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import aiohttp
import pytest_asyncio

from fencepost.api import Services, create_app
from fencepost.application.api_keys import Scope, mint
from fencepost.domain.ids import Address
from fencepost.facade import Fencepost
from fencepost.serving import bind, serve, url_of
from fencepost.wiring import Running
from fencepost.wiring_api import services_of
from fix_anvil import TestChain
from fix_core import eventually

SOMEBODY = "0x" + "5e" * 20
FAST = {
    "lease.duration": "6s",  # time-outs of statements come from it, and machines may be busy
    "lease.renew_interval": "1s",
    "lease.skew_allowance": "0s",
    "chains.default.poll_interval": "50ms",
    "confirmations.required": "0",
}


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    json: Any

    @property
    def problem(self) -> tuple[int, str, str | None]:
        """Status, code and field of what must be a problem."""
        assert self.headers["Content-Type"] == "application/problem+json", self
        assert self.json["status"] == self.status
        assert {"type", "title", "detail", "hint"} <= set(self.json)
        return self.status, self.json["code"], self.json.get("field")


@dataclass(frozen=True, slots=True)
class Door:
    url: str
    session: aiohttp.ClientSession
    running: Running
    services: Services
    token: str | None = None

    @property
    def signers(self) -> list[Address]:
        return list(self.running.keys.addresses())

    def with_token(self, token: str | None) -> Door:
        return replace(self, token=token)

    async def key(self, *scopes: Scope, name: str = "tester", **more: Any) -> str:
        key, token = mint(name, scopes=frozenset(scopes), **more)
        await self.services.keys.add(key, actor="a test")
        return token

    async def get(self, path: str, **query: Any) -> Answer:
        return await self.send("GET", path, params=query)

    async def post(
        self, path: str, body: Any = None, *, headers: Mapping[str, str] | None = None, **query: Any
    ) -> Answer:
        return await self.send("POST", path, json=body, params=query, headers=headers)

    async def send(self, method: str, path: str, **more: Any) -> Answer:
        headers = dict(more.pop("headers", None) or {})
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token}"
        path = path if path.startswith(("/api", "//")) else f"/api/v1{path}"
        url = self.url + path.replace("//", "/", 1)
        async with self.session.request(method, url, headers=headers, **more) as response:
            is_json = "json" in response.headers.get("Content-Type", "")
            return Answer(
                response.status,
                dict(response.headers),
                await (response.json() if is_json else response.text()),
            )

    async def completions(self, count: int, *, limit: int = 100) -> list[dict[str, Any]]:
        """That many at least, page by page; other users of the server may hold the newest back for a while."""
        found: list[dict[str, Any]] = []
        after = ""

        async def came() -> bool:
            nonlocal after
            answer = await self.get("/completions", after=after, limit=limit)
            found.extend(answer.json["items"])
            after = answer.json["next"]
            return len(found) >= count

        await eventually(came)
        return found

    def transfer(self, request_id: str | None = None, **more: Any) -> dict[str, Any]:
        asked = {"signer": self.signers[0], "payload": {"to": SOMEBODY, "value": 1}}
        return asked | ({"requestId": request_id} if request_id else {}) | more


@asynccontextmanager
async def open_door(
    dsn: str, chain: TestChain, *, keys: int = 3, first_key: int = 0, **options: str
) -> AsyncIterator[Door]:
    """Options are settings, with `__` for the dots."""
    private_keys = ["0x" + key.hex() for key in chain.private_keys[first_key : first_key + keys]]
    with bind("127.0.0.1", 0) as listener:
        chosen = FAST | {"node.url": url_of(listener)}
        chosen |= {name.replace("__", "."): value for name, value in options.items()}
        async with Fencepost.open(
            dsn=dsn, rpc_url=chain.rpc_url, private_keys=private_keys, options=chosen
        ) as node:
            services = services_of(node.running)
            async with (
                serve(create_app(services), listener) as url,
                aiohttp.ClientSession() as session,
            ):
                yield Door(url, session, node.running, services)


@pytest_asyncio.fixture
async def door(dsn: str, anvil: TestChain) -> AsyncIterator[Door]:
    async with open_door(dsn, anvil) as opened:
        yield opened
