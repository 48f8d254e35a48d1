"""Follow events from the command line."""

from __future__ import annotations

import json
import time

from aiohttp import web

from fencepost.events.signatures import new_secret, secret_text, verify
from fixtures.api import ApiServer
from fixtures.client import run_fencepost


async def test_tail_prints_events_from_a_place_as_lines_and_as_json(api: ApiServer) -> None:
    answer = await api.post("/tx", api.transfer("followed"), wait="finished", timeout=60)
    assert answer.status == 200, answer
    tail = ("events", "tail", "--after=", "--type=tx.queued", "--type=tx.confirmed", "--limit=2")
    env = {"FENCEPOST_URL": api.url}
    status, out, errors = await run_fencepost(*tail, env=env)
    assert status == 0, errors
    first, last = out.splitlines()
    assert "tx.queued" in first
    assert "tx.confirmed" in last
    assert "followed" in last
    status, out, errors = await run_fencepost(*tail, "--json", env=env)
    assert status == 0, errors
    assert [json.loads(line)["type"] for line in out.splitlines()] == ["tx.queued", "tx.confirmed"]
    status, _, errors = await run_fencepost("events", "tail", "--after=yesterday", env=env)
    assert (status, errors.count("\n")) == (2, 1)


async def test_listen_forwards_signed_events_in_order(api: ApiServer) -> None:
    answer = await api.post("/tx", api.transfer("forwarded"), wait="finished", timeout=60)
    assert answer.status == 200, answer
    key = new_secret()
    secret = secret_text(key)
    received: list[str] = []

    async def receive(request: web.Request) -> web.Response:
        body = await request.read()
        # Raises if the signature is wrong, and the status is then 500.
        verify(body, dict(request.headers), [key], now_s=time.time())
        received.append(json.loads(body)["type"])
        return web.Response(status=200 if len(received) == 1 else 503)

    app = web.Application()
    app.router.add_post("/hook", receive)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/hook"
        listen = (
            "events",
            "listen",
            f"--forward-to={url}",
            "--after=",
            "--type=tx.queued",
            "--type=tx.confirmed",
        )
        env = {"FENCEPOST_URL": api.url}
        status, out, errors = await run_fencepost(
            *listen, f"--secret={secret}", "--limit=2", "--json", env=env
        )
        assert status == 0, errors
        assert [json.loads(line)["result"] for line in out.splitlines()] == ["200", "503"]
        assert received == ["tx.queued", "tx.confirmed"]
    finally:
        await runner.cleanup()
    status, out, errors = await run_fencepost(*listen, "--limit=1", env=env)
    assert status == 0, errors
    assert "no answer (ConnectionRefusedError)" in out
    assert "whsec_" in errors
    status, _, errors = await run_fencepost("events", "listen", "--forward-to=ftp://here", env=env)
    assert (status, "--forward-to" in errors) == (2, True)
