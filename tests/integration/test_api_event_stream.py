"""Server-sent events: the same events as the pages, continued by id, bounded per key, ended with the key or the node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec
import pytest

from fencepost.api import events as events_module
from fencepost.application.api_keys import Scope, split_token
from fixtures.anvil import TestChain
from fixtures.api import ApiServer, open_api
from fixtures.core import eventually
from integration.test_api_events import LIFE, finished, read

PATIENCE_S = 60.0


@dataclass(slots=True)
class Stream:
    """Parse server-sent events as a browser does: `last_id` also moves by blocks without data."""

    response: aiohttp.ClientResponse
    last_id: str = ""
    heartbeats: int = 0
    problems: list[dict[str, Any]] = field(default_factory=list)

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        name = data = ""
        async for raw in self.response.content:
            line = raw.decode().removesuffix("\n")
            if line.startswith(":"):
                self.heartbeats += 1
            elif line.startswith("id: "):
                self.last_id = line[4:]
            elif line.startswith("event: "):
                name = line[7:]
            elif line.startswith("data: "):
                data = line[6:]
            elif not line and data:
                decoded = msgspec.json.decode(data)
                if name == "problem":
                    self.problems.append(decoded)
                else:
                    yield decoded
                name = data = ""

    async def until(self, kind: str) -> list[dict[str, Any]]:
        found = []
        async with asyncio.timeout(PATIENCE_S):
            async for event in self.events():
                found.append(event)
                if event["type"] == kind:
                    return found
        raise AssertionError(f"the stream ended without {kind}: {found} {self.problems}")

    async def end(self) -> list[dict[str, Any]]:
        async with asyncio.timeout(PATIENCE_S):
            return [event async for event in self.events()]


@asynccontextmanager
async def streaming(api: ApiServer, *, last_id: str | None = None, **query: Any) -> AsyncIterator[Stream]:
    headers: dict[str, str] = {}
    if api.token is not None:
        headers["Authorization"] = f"Bearer {api.token}"
    if last_id is not None:
        headers["Last-Event-ID"] = last_id
    timeout = aiohttp.ClientTimeout(total=None)
    url = f"{api.url}/api/v1/events/stream"
    async with api.session.get(url, params=query, headers=headers, timeout=timeout) as response:
        assert response.status == 200, await response.text()
        yield Stream(response)


async def rejected(api: ApiServer, headers: Mapping[str, str] | None = None, **query: Any) -> Any:
    async with asyncio.timeout(PATIENCE_S):
        answer = await api.send("GET", "/events/stream", params=query, headers=headers)
    return answer.problem


async def test_a_stream_has_the_events_of_the_pages_in_order(api: ApiServer) -> None:
    async with streaming(api) as stream:
        assert stream.response.headers["Content-Type"] == "text/event-stream"
        assert stream.response.headers["Cache-Control"] == "no-store"
        await finished(api, "streamed")
        seen = await stream.until("tx.confirmed")
        assert stream.last_id == seen[-1]["id"]
    assert [event["type"] for event in seen if event["type"] in LIFE] == LIFE
    assert [event["id"] for event in seen] == [event["id"] for event in await read(api)]


async def test_a_stream_continues_after_the_last_event_id(api: ApiServer) -> None:
    await finished(api, "continued")
    listed = await read(api)
    async with streaming(api, last_id=listed[1]["id"], after="now") as stream:
        again = await stream.until("tx.confirmed")
    assert [event["id"] for event in again] == [event["id"] for event in listed[2:]]


async def test_filters_apply_and_heartbeats_move_the_place(
    api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events_module, "HEARTBEAT_INTERVAL_S", 0.05)
    async with streaming(api, types="signer.paused") as stream:
        await finished(api, "unwanted")
        last = (await read(api))[-1]["id"]

        async def passed() -> bool:
            await asyncio.sleep(0)
            return bool(stream.last_id >= last)

        reading = asyncio.create_task(stream.end())
        await eventually(passed)
        assert stream.heartbeats > 0
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def test_a_key_streams_only_the_events_of_its_signers(api: ApiServer) -> None:
    own = api.with_token(await api.key(Scope.TX_READ, signers=frozenset({api.signers[1]})))
    admin = api.with_token(await api.key(Scope.TX_READ, Scope.TX_WRITE, name="both"))
    async with streaming(own) as stream:
        await finished(admin, "first")
        await finished(admin, "second", signer=api.signers[1])
        seen = await stream.until("tx.confirmed")
    assert {event["signer"] for event in seen} == {api.signers[1]}
    assert "nonce" not in str(seen)
    assert (await rejected(api))[0] == 401


async def test_a_revoked_key_ends_its_stream(api: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events_module, "HEARTBEAT_INTERVAL_S", 0.05)
    keeper = await api.key(Scope.ADMIN, name="keeper")
    token = await api.key(Scope.TX_READ, name="leaving")
    async with streaming(api.with_token(token)) as stream:
        parts = split_token(token)
        assert parts is not None
        await api.services.keys.revoke(parts[0], actor="a test")
        await stream.end()
        assert [problem["code"] for problem in stream.problems] == ["key_invalid"]
    assert (await api.with_token(keeper).get("/events")).status == 200


async def test_a_key_has_a_bounded_number_of_streams(dsn: str, anvil: TestChain) -> None:
    async with open_api(dsn, anvil, api__max_streams_per_key="1") as api:
        keyed, other = [api.with_token(await api.key(Scope.TX_READ, name=name)) for name in ("a", "b")]
        async with streaming(keyed):
            assert (await rejected(keyed))[:2] == (429, "rate_limited")
            async with streaming(other):
                pass

        async def may_again() -> bool:
            return (await keyed.send("HEAD", "/events/stream")).status == 200

        await eventually(may_again)  # the closed connection no longer counts
        assert (await keyed.send("HEAD", "/events/stream")).status == 200  # nor does a finished HEAD


async def test_bad_and_expired_places_are_problems_and_hold_no_stream(dsn: str, anvil: TestChain) -> None:
    async with open_api(dsn, anvil, api__max_streams_per_key="1") as api:
        await finished(api, "old")
        events = await read(api)
        await api.running.pool.execute("UPDATE managed_tx SET finished_at = finished_at - interval '40 days'")
        await api.running.pool.execute("UPDATE journal_batch SET at = at - interval '40 days'")
        assert await api.running.events.log.prune(older_than_s=30 * 86_400) > 0
        for _ in range(3):
            assert await rejected(api, {"Last-Event-ID": "evt_1"}) == (400, "cursor_invalid", "after")
            assert (await rejected(api, after="x"))[:2] == (400, "cursor_invalid")
            assert (await rejected(api, wait="5"))[:2] == (400, "query_invalid")
            assert await rejected(api, {"Last-Event-ID": events[0]["id"]}) == (410, "events_expired", "after")
        async with streaming(api):
            pass


async def test_a_stopping_node_ends_its_streams_properly(dsn: str, anvil: TestChain) -> None:
    async with open_api(dsn, anvil) as api, streaming(api) as stream:
        ending = asyncio.create_task(stream.end())

        async def has_begun() -> bool:
            await asyncio.sleep(0)
            return stream.heartbeats > 0

        await eventually(has_begun)
        api.running.tx_waiter.stop()
        api.running.events.hint()
        await ending  # raises if the stream was cut
        assert stream.problems == []


async def test_a_failure_of_the_log_ends_the_stream_with_its_reason(
    api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with streaming(api) as stream:

        async def fail(*_: object, **__: object) -> None:
            raise ConnectionRefusedError

        monkeypatch.setattr(api.running.events.log, "read", fail)
        api.running.events.hint()
        await stream.end()
        assert [problem["code"] for problem in stream.problems] == ["database_unavailable"]
