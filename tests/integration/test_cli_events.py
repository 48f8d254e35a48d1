"""Follow events from the command line."""

from __future__ import annotations

import json

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
