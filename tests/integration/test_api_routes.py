"""Valid and invalid requests of every kind get their status through the one router, as bytes on a connection."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from fencepost.api import auth
from fencepost.application.api_keys import Scope
from fencepost.application.forwarding import FORWARD_TOKEN_HEADER
from fixtures.api import RECEIVER, ApiServer
from fixtures.core import eventually

_LENGTH = re.compile(rb"content-length: ([0-9]+)\r\n")


@dataclass(frozen=True, slots=True)
class Server:
    url: str
    tx_id: str  # of a confirmed transaction

    async def ask(self, request: bytes) -> bytes:
        place = urlsplit(self.url)
        reader, writer = await asyncio.open_connection(place.hostname, place.port)
        try:
            writer.write(request)
            return await reader.read()  # every request asks the server to close the connection
        finally:
            writer.close()

    def request(
        self, method: str, target: str, body: bytes = b"", *headers: str, json_type: bool = True
    ) -> bytes:
        lines = [f"{method} {target} HTTP/1.1", "host: 127.0.0.1", "connection: close", *headers]
        lines += [f"content-length: {len(body)}"] if body else []
        lines += ["content-type: application/json"] if body and json_type else []
        return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def _status(answer: bytes, method: bytes) -> int:
    """Return the status; the length must be right, and an error must be a problem that names the same status."""
    head, _, body = answer.partition(b"\r\n\r\n")
    length = _LENGTH.search(head + b"\r\n")
    assert length is not None, answer
    status = int(head.split(b" ", 2)[1])
    if method == b"HEAD":
        assert body == b""
        return status
    assert int(length[1]) == len(body), answer
    if status >= 400:
        assert b"content-type: application/problem+json" in head, answer
        assert json.loads(body)["status"] == status
    return status


async def _server(api: ApiServer) -> Server:
    confirmed = await api.post("/tx", api.transfer("own-0"), wait="confirmed")
    return Server(api.url, confirmed.json["txId"])


Ask = Callable[[Server], bytes]


def _post(body: Any, *headers: str, target: str = "/api/v1/tx") -> Ask:
    """Build a request; `body` is JSON, or raw bytes."""

    def ask(server: Server) -> bytes:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        return server.request("POST", target, raw, *headers)

    return ask


def _plain(method: str, target: str, *headers: str) -> Ask:
    return lambda server: server.request(method, target.replace("{id}", server.tx_id), b"", *headers)


def _in_pieces(server: Server, body: bytes) -> bytes:
    """Encode the body in chunks of seven bytes."""
    pieces = [body[start : start + 7] for start in range(0, len(body), 7)]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in [*pieces, b""])
    head = server.request(
        "POST", "/api/v1/tx", b"", "transfer-encoding: chunked", "content-type: application/json"
    )
    return head + chunks


class _Transfers:
    """Requests of one signer; call it with a request id or without one."""

    def __init__(self, signer: str) -> None:
        self._signer = signer

    def __call__(self, request_id: str | None = None, **more: Any) -> dict[str, Any]:
        asked = {"signer": self._signer, "payload": {"to": RECEIVER, "value": 1}, **more}
        return asked | ({"requestId": request_id} if request_id else {})


Cases = dict[str, tuple[Ask, int]]


def _cases(signer: str) -> Cases:
    tx = _Transfers(signer)
    return {
        **_single_submissions(tx),
        **_unusual_bodies(tx),
        **_unusual_headers(tx),
        **_batches(tx),
        **_queries(),
        "a slash at the end": (_post(tx("own-6"), target="/api/v1/tx/"), 404),
    }


def _single_submissions(tx: _Transfers) -> Cases:
    deep = b'{"payload":{"args":' + b"[" * 5000 + b"]" * 5000 + b"}}"
    return {
        "new": (_post(tx("own-1", tags=["a", "b"])), 202),
        "without a name": (_post(tx()), 202),
        "known": (_post(tx("own-0"), "prefer: wait=0"), 200),
        "named by a header": (_post(tx(), "idempotency-key: own-header"), 202),
        "waits": (_post(tx("own-2"), target="/api/v1/tx?wait=confirmed"), 200),
        "prefers to wait": (_post(tx("own-3"), "prefer: wait=60", target="/api/v1/tx?wait=confirmed"), 200),
        "another payload": (_post(tx("own-0", payload={"to": RECEIVER, "value": 2})), 409),
        "wrong field": (_post(tx("own-4", nonce=1)), 400),
        "unknown signer": (_post(tx("own-4") | {"signer": "0x" + "99" * 20}), 422),
        "wrong query": (_post(tx("own-4"), target="/api/v1/tx?wait=never"), 400),
        "query twice": (_post(tx("own-4"), target="/api/v1/tx?timeout=1&timeout=2"), 400),
        "no JSON": (_post(b"{"), 400),
        "no UTF-8": (_post(b'{"signer":"\xff"}'), 400),
        "too deep": (_post(deep), 400),
        "no body": (_plain("POST", "/api/v1/tx"), 400),
    }


def _unusual_bodies(tx: _Transfers) -> Cases:
    return {
        "another type": (
            lambda server: server.request(
                "POST", "/api/v1/tx", b"{}", "content-type: text/plain", json_type=False
            ),
            415,
        ),
        "a type of its own": (
            lambda server: server.request(
                "POST",
                "/api/v1/tx",
                json.dumps(tx("own-5")).encode(),
                "content-type: application/vnd.x+json; charset=utf-8",
                json_type=False,
            ),
            202,
        ),
        "too large": (_plain("POST", "/api/v1/tx", "content-length: 1048577"), 413),
        "too large in pieces": (
            lambda server: (
                server.request("POST", "/api/v1/tx", b"", "transfer-encoding: chunked")
                + b"100001\r\n"
                + b" " * 0x100001
                + b"\r\n0\r\n\r\n"
            ),
            413,
        ),
        "in pieces": (
            lambda server: (
                server.request(
                    "POST", "/api/v1/tx", b"", "transfer-encoding: chunked", "content-type: application/json"
                )
                + b"1\r\n{\r\n1\r\n}\r\n0\r\n\r\n"
            ),
            400,
        ),
        "a good one in pieces": (
            lambda server: _in_pieces(server, json.dumps(tx("own-10")).encode()),
            202,
        ),
        "known, in pieces": (
            lambda server: _in_pieces(server, json.dumps(tx("own-0")).encode()),
            200,
        ),
    }


def _unusual_headers(tx: _Transfers) -> Cases:
    return {
        "a header twice": (_post(tx("own-0"), "prefer: wait=0", "prefer: wait=30"), 200),
        "a page of another place": (_post(tx("own-6"), "origin: https://example.com"), 403),
        "a pass that is none": (_post(tx("own-6"), f"{FORWARD_TOKEN_HEADER}: 1.2.3"), 401),
        "a key that is none": (_post(tx("own-6"), "authorization: Bearer fp_nothing"), 401),
    }


def _batches(tx: _Transfers) -> Cases:
    batch = "/api/v1/tx/batch"
    return {
        "many": (
            _post(
                {"requests": [tx("own-7"), tx("own-0"), {"signer": 1}, tx("own-2", tags=["x"])]}, target=batch
            ),
            200,
        ),
        "many good ones": (_post({"requests": [tx("own-8"), tx("own-9")]}, target=batch), 200),
        "none of many": (_post({"requests": []}, target=batch), 400),
        "many and a query": (_post({"requests": [tx("own-9")]}, target=batch + "?x=1"), 400),
    }


def _queries() -> Cases:
    return {
        "look": (_plain("GET", "/api/v1/tx/{id}"), 200),
        "look in capitals": (lambda server: server.request("GET", f"/api/v1/tx/{server.tx_id.upper()}"), 200),
        "look at everything": (_plain("GET", "/api/v1/tx/{id}?include=payload,confirmations"), 200),
        "look and wait": (_plain("GET", "/api/v1/tx/{id}?wait=mined"), 200),
        "look at nothing": (_plain("GET", "/api/v1/tx/" + "0" * 36), 404),
        "look at something else": (_plain("GET", "/api/v1/tx/" + "x" * 36), 404),
        "look at a short name": (_plain("GET", "/api/v1/tx/1"), 404),
        "look further": (_plain("GET", "/api/v1/tx/" + "a/" * 18), 404),
        "look by an encoded path": (_plain("GET", "/api/v1/%74x/{id}"), 200),
        "look with a wrong query": (_plain("GET", "/api/v1/tx/{id}?include=nothing"), 400),
        "head": (_plain("HEAD", "/api/v1/tx/{id}"), 200),
        "options": (_plain("OPTIONS", "/api/v1/tx"), 405),
        "no method of it": (_plain("PUT", "/api/v1/tx"), 405),
        "no method of one": (_plain("DELETE", "/api/v1/tx/{id}"), 405),
    }


async def _check(server: Server, cases: Cases) -> None:
    got = {}
    for name, (ask, _) in cases.items():
        request = ask(server)
        got[name] = _status(await server.ask(request), request.partition(b" ")[0])
    assert got == {name: status for name, (_, status) in cases.items()}


async def test_requests_of_every_kind_get_their_status(api: ApiServer) -> None:
    await _check(await _server(api), _cases(api.signers[0]))


async def test_the_router_names_the_allowed_methods(api: ApiServer) -> None:
    server = await _server(api)
    for target, allowed in {
        "/api/v1/tx": b"GET, HEAD, POST",
        "/api/v1/tx/" + server.tx_id: b"GET, HEAD",
        "/rpc": b"POST",
        "/metrics": b"GET, HEAD",
    }.items():
        assert b"\r\nallow: " + allowed + b"\r\n" in await server.ask(server.request("PATCH", target))


async def test_callers_are_authenticated(api: ApiServer) -> None:
    server = await _server(api)
    reader = await api.key(Scope.TX_READ)
    writer = await api.key(Scope.TX_WRITE, signers=frozenset(api.signers[:1]))
    slow = await api.key(Scope.TX_WRITE, rate_per_s=0.001)

    async def closed() -> bool:
        answer = await server.ask(server.request("GET", "/api/v1/tx/" + "0" * 36))
        return answer.startswith(b"HTTP/1.1 401")

    await eventually(closed, within_s=10 * auth.KEY_CACHE_S)  # the absence of keys is cached for a moment

    def by(token: str, signer: str, request_id: str) -> Ask:
        asked = {"signer": signer, "requestId": request_id, "payload": {"to": RECEIVER}}
        return _post(asked, f"authorization: Bearer {token}")

    own, other = api.signers[:2]
    await _check(
        server,
        {
            "without a key": (_post({}), 401),
            "a wrong secret": (by(reader[:-1] + ("a" if reader[-1] != "a" else "b"), own, "own-1"), 401),
            "another scheme": (_post({}, "authorization: Basic xyz"), 401),
            "may only look": (by(reader, own, "own-1"), 403),
            "looks": (_plain("GET", "/api/v1/tx/{id}", f"authorization: Bearer {reader}"), 200),
            "writes": (by(writer, own, "own-1"), 202),
            "not for this signer": (by(writer, other, "own-1"), 403),
            "once": (by(slow, other, "own-2"), 202),
            "twice": (by(slow, other, "own-3"), 429),
        },
    )
