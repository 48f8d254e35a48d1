"""The short way and the usual way give the same answers, to the byte: status, headers in their order, body.

Every request goes to two servers in front of the same node: one has the short way, the other only routes. What must
differ is made alike first: the date, the ids of transactions, and the names under which each server was asked.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from fencepost.api import create_app
from fencepost.api import gate as gates
from fencepost.api.app import routed
from fencepost.api.gate import Gate
from fencepost.api.operations import operations
from fencepost.application.api_keys import Scope
from fencepost.application.forwarding import PASS_HEADER
from fencepost.serving import bind, serve
from fix_api import SOMEBODY, Door
from fix_core import eventually

_ID = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_TIME = re.compile(rb"(date|retry-after): [^\r]*\r\n")
_LENGTH = re.compile(rb"content-length: ([0-9]+)\r\n")
_ITS_OWN = re.compile(rb'"((?:created|updated|finished)At|hash|blockHash|blockNumber|number|nonce)":[^,}]*')
_NAME = re.compile(rb"(short|usual)-")


@dataclass(frozen=True, slots=True)
class Way:
    name: str
    url: str
    tx_id: str  # of a transaction that was asked for this way

    async def ask(self, request: bytes) -> bytes:
        place = urlsplit(self.url)
        reader, writer = await asyncio.open_connection(place.hostname, place.port)
        try:
            writer.write(request)
            return await reader.read()  # until the server closes: every request says so
        finally:
            writer.close()

    def request(
        self, method: str, target: str, body: bytes = b"", *headers: str, json_type: bool = True
    ) -> bytes:
        lines = [f"{method} {target} HTTP/1.1", "host: 127.0.0.1", "connection: close", *headers]
        lines += [f"content-length: {len(body)}"] if body else []
        lines += ["content-type: application/json"] if body and json_type else []
        return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def _alike(answer: bytes) -> bytes:
    """A length counts the digits of a time, so it is compared with the body instead."""
    head, _, body = answer.partition(b"\r\n\r\n")
    length = _LENGTH.search(head)
    assert length is not None, answer
    assert answer.startswith(b"HTTP/1.1 200") or int(length[1]) == len(body), answer
    head = _LENGTH.sub(b"", _TIME.sub(rb"\1: ", head + b"\r\n"))
    return _NAME.sub(b"way-", _ID.sub(b"<id>", head + _ITS_OWN.sub(rb'"\1"', body)))


@asynccontextmanager
async def _both_ways(door: Door) -> AsyncIterator[tuple[Way, Way]]:
    services = door.services
    table = operations()
    gate = Gate(services.keys, services.host, services.node.incarnation, services.passes)
    with bind("127.0.0.1", 0) as first, bind("127.0.0.1", 0) as second:
        async with (
            serve(create_app(services), first) as short_url,
            serve(routed(table, services, gate), second) as usual_url,
        ):
            ids = [
                (await door.post("/tx", door.transfer(f"{name}-0"), wait="confirmed")).json["txId"]
                for name in ("short", "usual")
            ]
            yield Way("short", short_url, ids[0]), Way("usual", usual_url, ids[1])


Ask = Callable[[Way], bytes]


def _post(body: Any, *headers: str, target: str = "/api/v1/tx") -> Ask:
    """`body` is JSON, or bytes that go out as they are; `%s` in it becomes the name of the way."""

    def ask(way: Way) -> bytes:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        named = [header.replace("%s", way.name) for header in headers]
        return way.request("POST", target, raw.replace(b"%s", way.name.encode()), *named)

    return ask


def _plain(method: str, target: str, *headers: str) -> Ask:
    return lambda way: way.request(method, target.replace("{id}", way.tx_id), b"", *headers)


def _in_pieces(way: Way, body: bytes) -> bytes:
    """Of seven bytes each, with their lengths before them."""
    pieces = [body[start : start + 7] for start in range(0, len(body), 7)]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in [*pieces, b""])
    head = way.request(
        "POST", "/api/v1/tx", b"", "transfer-encoding: chunked", "content-type: application/json"
    )
    return head + chunks


def _cases(signer: str) -> dict[str, tuple[Ask, int]]:
    def tx(request_id: str | None = None, **more: Any) -> dict[str, Any]:
        asked = {"signer": signer, "payload": {"to": SOMEBODY, "value": 1}, **more}
        return asked | ({"requestId": request_id} if request_id else {})

    batch = "/api/v1/tx/batch"
    deep = b'{"payload":{"args":' + b"[" * 5000 + b"]" * 5000 + b"}}"
    return {
        "new": (_post(tx("%s-1", tags=["a", "b"])), 202),
        "without a name": (_post(tx()), 202),
        "known": (_post(tx("%s-0"), "prefer: wait=0"), 200),
        "named by a header": (_post(tx(), "idempotency-key: %s-header"), 202),
        "waits": (_post(tx("%s-2"), target="/api/v1/tx?wait=confirmed"), 200),
        "prefers to wait": (_post(tx("%s-3"), "prefer: wait=60", target="/api/v1/tx?wait=confirmed"), 200),
        "another payload": (_post(tx("%s-0", payload={"to": SOMEBODY, "value": 2})), 409),
        "wrong field": (_post(tx("%s-4", nonce=1)), 400),
        "unknown signer": (_post(tx("%s-4") | {"signer": "0x" + "99" * 20}), 422),
        "wrong query": (_post(tx("%s-4"), target="/api/v1/tx?wait=never"), 400),
        "query twice": (_post(tx("%s-4"), target="/api/v1/tx?timeout=1&timeout=2"), 400),
        "no JSON": (_post(b"{"), 400),
        "no UTF-8": (_post(b'{"signer":"\xff"}'), 400),
        "too deep": (_post(deep), 400),
        "no body": (_plain("POST", "/api/v1/tx"), 400),
        "another type": (
            lambda way: way.request("POST", "/api/v1/tx", b"{}", "content-type: text/plain", json_type=False),
            415,
        ),
        "a type of its own": (
            lambda way: way.request(
                "POST",
                "/api/v1/tx",
                json.dumps(tx(f"{way.name}-5")).encode(),
                "content-type: application/vnd.x+json; charset=utf-8",
                json_type=False,
            ),
            202,
        ),
        "too large": (_plain("POST", "/api/v1/tx", "content-length: 1048577"), 413),
        "too large in pieces": (
            lambda way: (
                way.request("POST", "/api/v1/tx", b"", "transfer-encoding: chunked")
                + b"100001\r\n"
                + b" " * 0x100001
                + b"\r\n0\r\n\r\n"
            ),
            413,
        ),
        "in pieces": (
            lambda way: (
                way.request(
                    "POST", "/api/v1/tx", b"", "transfer-encoding: chunked", "content-type: application/json"
                )
                + b"1\r\n{\r\n1\r\n}\r\n0\r\n\r\n"
            ),
            400,
        ),
        "a good one in pieces": (
            lambda way: _in_pieces(way, json.dumps(tx(f"{way.name}-10")).encode()),
            202,
        ),
        "known, in pieces": (
            lambda way: _in_pieces(way, json.dumps(tx(f"{way.name}-0")).encode()),
            200,
        ),
        "a header twice": (_post(tx("%s-0"), "prefer: wait=0", "prefer: wait=30"), 200),
        "a page of another place": (_post(tx("%s-6"), "origin: https://example.com"), 403),
        "a pass that is none": (_post(tx("%s-6"), f"{PASS_HEADER}: 1.2.3"), 401),
        "a key that is none": (_post(tx("%s-6"), "authorization: Bearer fp_nothing"), 401),
        "many": (
            _post(
                {"requests": [tx("%s-7"), tx("%s-0"), {"signer": 1}, tx("%s-2", tags=["x"])]}, target=batch
            ),
            200,
        ),
        "many good ones": (_post({"requests": [tx("%s-8"), tx("%s-9")]}, target=batch), 200),
        "none of many": (_post({"requests": []}, target=batch), 400),
        "many and a query": (_post({"requests": [tx("%s-9")]}, target=batch + "?x=1"), 400),
        "look": (_plain("GET", "/api/v1/tx/{id}"), 200),
        "look in capitals": (lambda way: way.request("GET", f"/api/v1/tx/{way.tx_id.upper()}"), 200),
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
        "a slash at the end": (_post(tx("%s-6"), target="/api/v1/tx/"), 307),
    }


async def _compare(ways: tuple[Way, Way], cases: dict[str, tuple[Ask, int]]) -> None:
    """Statuses as wanted, and everything alike; all of it is asked before anything is judged."""
    answers = {name: [_alike(await way.ask(ask(way))) for way in ways] for name, (ask, _) in cases.items()}
    got = {name: int(both[0].split(b" ", 2)[1]) for name, both in answers.items()}
    assert got == {name: status for name, (_, status) in cases.items()}
    assert [(name, *both) for name, both in answers.items() if both[0] != both[1]] == []


async def test_both_ways_give_the_same_answers(door: Door) -> None:
    async with _both_ways(door) as ways:
        await _compare(ways, _cases(door.signers[0]))


async def test_both_ways_let_the_same_callers_in(door: Door) -> None:
    async with _both_ways(door) as ways:
        reader = await door.key(Scope.TX_READ)
        writer = await door.key(Scope.TX_WRITE, signers=frozenset(door.signers[:1]))
        slow = await door.key(Scope.TX_WRITE, rate_per_s=0.001)

        async def closed() -> bool:
            answers = [await way.ask(way.request("GET", "/api/v1/tx/" + "0" * 36)) for way in ways]
            return all(answer.startswith(b"HTTP/1.1 401") for answer in answers)

        await eventually(
            closed, within_s=10 * gates.REMEMBER_S
        )  # that there are no keys is believed for a moment

        def by(token: str, signer: str, request_id: str) -> Ask:
            asked = {"signer": signer, "requestId": request_id, "payload": {"to": SOMEBODY}}
            return _post(asked, f"authorization: Bearer {token}")

        own, other = door.signers[:2]
        await _compare(
            ways,
            {
                "without a key": (_post({}), 401),
                "a wrong secret": (by(reader[:-1] + ("a" if reader[-1] != "a" else "b"), own, "%s-1"), 401),
                "another scheme": (_post({}, "authorization: Basic xyz"), 401),
                "may only look": (by(reader, own, "%s-1"), 403),
                "looks": (_plain("GET", "/api/v1/tx/{id}", f"authorization: Bearer {reader}"), 200),
                "writes": (by(writer, own, "%s-1"), 202),
                "not for this signer": (by(writer, other, "%s-1"), 403),
                "once": (by(slow, other, "%s-2"), 202),
                "twice": (by(slow, other, "%s-3"), 429),
            },
        )
