"""HTTP on a connection when something goes wrong, and what each side may keep the other waiting with."""

from __future__ import annotations

import asyncio

import pytest

from fakes.wire import CLOSES, WITHIN_S, Echo, ok, post, until, wired

# ---- what goes wrong


def refusal(status: bytes) -> bytes:
    said = status.partition(b" ")[2]
    lines = [b"content-type: text/plain; charset=utf-8", b"content-length: %d" % len(said), CLOSES]
    return b"\r\n".join([b"HTTP/1.1 " + status, *lines]) + b"\r\n\r\n" + said


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01 this is no HTTP\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nhost: here\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
        b"POST /echo HTTP/1.1\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /echo HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nnot a length\r\n",
        b"GET /\xff HTTP/1.1\r\n\r\n",
    ],
)
async def test_what_is_no_request_is_refused(garbage: bytes) -> None:
    async with wired(Echo()) as wire:
        wire.say(garbage)
        assert await wire.rest() == refusal(b"400 Bad Request")


async def test_garbage_behind_a_request_does_not_cost_its_answer() -> None:
    app = Echo()
    async with wired(app) as wire:
        wire.say(post("/slow"), b"\x00 nothing\r\n\r\n")
        await asyncio.sleep(0.05)
        app.may_answer.set()
        assert await wire.rest() == ok(b"slow", CLOSES)


async def test_a_body_that_turns_into_garbage_ends_what_waits_for_it() -> None:
    app = Echo()
    async with wired(app) as wire:
        wire.say(b"POST /echo HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n")
        await asyncio.sleep(0.05)
        wire.say(b"not a length\r\n")
        assert await wire.rest() == refusal(b"400 Bad Request")
        await until(lambda: not app.busy)
    assert app.bodies == [b"one (cut)"]


async def test_an_endless_head_is_refused() -> None:
    async with wired(Echo()) as wire:
        wire.say(b"GET /echo HTTP/1.1\r\n")
        for number in range(8):
            await asyncio.sleep(0.02)
            wire.say(b"x-%d: " % number, b"a" * 10_000, b"\r\n")
        assert await wire.rest() == refusal(b"431 Request Header Fields Too Large")


async def test_a_long_head_is_taken() -> None:
    async with wired(Echo()) as wire:
        wire.say(post("/echo", b"long", *(f"x-{number}: {'a' * 1000}" for number in range(50))))
        assert await wire.answer() == ok(b"long")


@pytest.mark.parametrize("path", ["/broken", "/silent", "/split", "/begins_wrongly"])
async def test_an_application_that_fails_is_a_mistake_of_ours(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with wired(Echo()) as wire:
        wire.say(post(path), post("/echo", b"next"))
        said = b"Internal Server Error"
        lines = [b"content-type: text/plain; charset=utf-8", b"content-length: %d" % len(said)]
        head = b"\r\n".join([b"HTTP/1.1 500 Internal Server Error", *lines]) + b"\r\n\r\n"
        assert [await wire.answer(), await wire.answer()] == [head + said, ok(b"next")]
    assert [record.name for record in caplog.records] == ["fencepost.exchange"]


async def test_what_is_said_after_the_answer_is_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with wired(Echo()) as wire:
        wire.say(post("/says_more"), post("/echo", b"next"))
        assert [await wire.answer(), await wire.answer()] == [ok(b"said"), ok(b"next")]
    assert [record.name for record in caplog.records] == ["fencepost.exchange"]


async def test_a_client_that_hangs_up_is_noticed() -> None:
    app = Echo()
    async with wired(app) as wire:
        wire.say(post("/watch", b"x"))
        await asyncio.sleep(0.05)
        wire.writer.close()
        async with asyncio.timeout(WITHIN_S):
            await app.gone.wait()


async def test_a_client_that_hangs_up_early_is_noticed() -> None:
    app = Echo()
    async with wired(app) as wire:
        wire.say(b"POST /echo HTTP/1.1\r\ncontent-length: 10\r\n\r\nhalf")
        await asyncio.sleep(0.05)
        wire.writer.close()
        await until(lambda: bool(app.bodies))
    assert app.bodies == [b"half (cut)"]


# ---- bounds


async def test_a_client_waits_while_nobody_reads_its_body() -> None:
    app = Echo()
    body = b"x" * 30_000_000
    async with wired(app) as wire:
        wire.say(post("/late", body))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await wire.writer.drain()
        app.may_answer.set()
        assert len(await wire.answer()) > len(body)
    assert app.bodies == [body]


async def test_an_application_waits_while_nobody_reads_its_answers() -> None:
    app = Echo()
    async with wired(app) as wire:
        wire.say(*[post("/large")] * 20)
        await asyncio.sleep(0.5)
        assert len(app.scopes) < 5
        for _ in range(20):
            assert await wire.answer() == ok(b"x" * 30_000_000)
