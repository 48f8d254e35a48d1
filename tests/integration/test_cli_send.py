"""`fencepost send` over a bad connection: it always prints the request id, and the exit code says what is known."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from fixtures.client import run_fencepost

ME, RECEIVER = "0x" + "11" * 20, "0x" + "5e" * 20
SEND = ("send", "--from", ME, "--to", RECEIVER)
TAKEN = {"txId": "0198", "requestId": "r", "chainId": 1, "signer": ME, "state": "QUEUED"}


@dataclass(slots=True)
class FakeNode:
    """Answers POST with one given answer and everything else with another; an empty answer cuts the connection."""

    url: str
    request_ids: list[str] = field(default_factory=list)


@asynccontextmanager
async def fake_node(to_post: bytes, to_get: bytes = b"") -> AsyncIterator[FakeNode]:
    node = FakeNode("")

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head.lower())
        body = await reader.readexactly(int(length[1])) if length else b""
        if body:
            node.request_ids.append(json.loads(body)["requestId"])
        writer.write(to_post if head.startswith(b"POST") else to_get)
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    node.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield node


def answer(status: int, body: object) -> bytes:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (status, len(text), text)


def problem(status: int, code: str) -> bytes:
    shown = {"type": "x", "title": "no", "status": status, "code": code, "detail": "because"}
    return answer(status, shown)


@pytest.mark.parametrize(
    ("to_post", "to_get"),
    [
        (b"", b""),
        (answer(200, b"<html>"), b""),
        (answer(302, b""), b""),
        (problem(500, "internal"), b""),
        (answer(202, TAKEN), answer(500, b"")),
    ],
    ids=["cut", "no-json", "redirect", "server-error", "taken-then-lost"],
)
async def test_an_unknown_outcome_has_its_own_exit_code_and_prints_the_request_id(
    to_post: bytes, to_get: bytes
) -> None:
    async with fake_node(to_post, to_get) as node:
        status, out, errors = await run_fencepost(*SEND, "--wait=mined", "--url", node.url)
    assert (status, out) == (3, "")
    assert len(set(node.request_ids)) == 1  # after any number of tries
    first, last = errors.splitlines()
    assert first == f"fencepost: request id {node.request_ids[0]}"
    assert f"run it again with --request-id {node.request_ids[0]}" in last


async def test_a_rejection_exits_with_2_and_the_request_id() -> None:
    async with fake_node(problem(422, "signer_unknown")) as node:
        status, _, errors = await run_fencepost(*SEND, "--request-id", "order 7", "--url", node.url)
    assert status == 2
    assert "The request was not accepted" in errors
    assert "run it again with --request-id 'order 7'" in errors
    async with fake_node(problem(409, "request_conflict")) as node:
        status, _, errors = await run_fencepost(*SEND, "--request-id=r", "--url", node.url)
    assert status == 2
    assert "run it again" not in errors


async def test_an_unreachable_node_exits_with_2_and_the_request_id() -> None:
    status, _, errors = await run_fencepost(*SEND, "--request-id=r", "--url", "http://127.0.0.1:1")
    assert status == 2
    assert "The request was not accepted" in errors
    assert "--request-id r" in errors


async def test_an_empty_request_id_is_rejected_before_anything_is_sent() -> None:
    async with fake_node(answer(202, TAKEN)) as node:
        commands = (SEND, ("call-contract", RECEIVER, "f()", "--from", ME))
        for command, request_id in zip(commands, ("", " "), strict=True):
            status, _, errors = await run_fencepost(*command, "--request-id", request_id, "--url", node.url)
            assert status == 2
            assert "--request-id" in errors
            assert "empty" in errors
    assert node.request_ids == []
