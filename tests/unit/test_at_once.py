"""Taking a transaction without a task: it is answered whatever comes of the commit, and whoever gives it up."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import pytest

from fakes.observer import FakeObserver
from fencepost.api import Services, answering, create_app
from fencepost.application.accept import Accept
from fencepost.application.api_keys import ApiKey, Scope, hash_secret
from fencepost.application.intake import Intake
from fencepost.application.policy import Limits, PolicyGuard
from fencepost.application.ports import Accepted, AcceptOutcome, NewRequest
from fencepost.domain.ids import Signer, parse_address
from fencepost.serving import bind, serve
from fix_core import eventually

CHAIN_ID = 31_337
SIGNER = parse_address("0x" + "a1" * 20)
WITHIN_S = 10.0
TOKEN = "fp_" + "0" * 16 + "_secret"


@dataclass(slots=True)
class Node:
    """A node whose commits end when the test says so."""

    storing: list[tuple[NewRequest, asyncio.Future[Accepted]]] = field(default_factory=list)
    ways: list[str] = field(default_factory=list)
    told: list[Signer] = field(default_factory=list)
    limits: dict[Signer, Limits] = field(default_factory=dict)
    rate_per_s: float | None = None
    needs_key: bool = False
    is_stopped: bool = False
    intake: Intake = field(default_factory=lambda: Intake(FakeObserver(), 1_000, 1_000))

    # ---- the ledger

    def accept_one(self, request: NewRequest) -> asyncio.Future[Accepted]:
        self.ways.append("at once")
        return self._store(request)

    async def accept(self, requests: Sequence[NewRequest]) -> Sequence[Accepted]:
        self.ways.append("in a task")
        return [await self._store(request) for request in requests]

    def _store(self, request: NewRequest) -> asyncio.Future[Accepted]:
        future: asyncio.Future[Accepted] = asyncio.get_running_loop().create_future()
        self.storing.append((request, future))
        return future

    def end(self, outcome: AcceptOutcome = AcceptOutcome.CREATED) -> None:
        request, future = self.storing.pop(0)
        future.set_result(Accepted(outcome, request.tx_id))

    # ---- keys and policies

    async def exist(self) -> bool:
        return self.needs_key

    async def find(self, key_id: str) -> tuple[ApiKey, bytes] | None:
        key = ApiKey(key_id, "tester", frozenset({Scope.TX_WRITE}), None, self.rate_per_s, cast("Any", None))
        return key, hash_secret("secret")

    async def all(self) -> Mapping[Signer, Limits]:
        return self.limits

    @property
    def services(self) -> Services:
        keys = SimpleNamespace(addresses=lambda: [SIGNER])
        return cast(
            "Services",
            SimpleNamespace(
                accept=Accept(
                    cast("Any", self),
                    cast("Any", keys),
                    frozenset({CHAIN_ID}),
                    self.told.append,
                    self.intake,
                ),
                waiting=self,
                keys=self,
                policy=PolicyGuard(cast("Any", self), cast("Any", self)),
                node=SimpleNamespace(version="0", incarnation=uuid4(), name="n"),
                chains={CHAIN_ID: None},
                default_chain_id=CHAIN_ID,
                parse_address=parse_address,
                host="127.0.0.1",
                intake="any",
                passes=None,
                metrics=bytes,
                nonces=None,
                is_database_failure=lambda error: isinstance(error, OSError),
            ),
        )


async def until(probe: Callable[[], bool]) -> None:
    async def probed() -> bool:
        return probe()

    await eventually(probed, within_s=WITHIN_S)


@dataclass(frozen=True, slots=True)
class Client:
    node: Node
    stop_server: Callable[[], Awaitable[None]]
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def ask(self, request_id: str, *headers: str, value: Any = 1, target: str = "/api/v1/tx") -> None:
        body = json.dumps(
            {"signer": SIGNER, "requestId": request_id, "payload": {"to": SIGNER, "value": value}}
        )
        lines = [f"POST {target} HTTP/1.1", "host: localhost", "content-type: application/json", *headers]
        self.writer.write("\r\n".join([*lines, f"content-length: {len(body)}", "", body]).encode())

    async def answer(self) -> tuple[int, dict[str, Any]]:
        async with asyncio.timeout(WITHIN_S):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = int(head.partition("content-length: ")[2].partition("\r")[0])
            return int(head.split(" ", 2)[1]), json.loads(await self.reader.readexactly(length))

    async def code(self) -> tuple[int, str]:
        status, said = await self.answer()
        return status, said["code"]

    async def stored(self, count: int = 1) -> None:
        """Until so many commits are under way."""
        await until(lambda: len(self.node.storing) >= count)

    async def let_in(self) -> None:
        """The first call reads who may come in, and whom a policy binds; from then on that is remembered."""
        for turn in ("keys", "policies"):
            self.ask(f"first, for {turn}")
            await self.stored()
            self.node.end()
            assert (await self.answer())[0] == 202
        self.node.ways.clear()


@asynccontextmanager
async def asking(node: Node, *, bound_s: float | None = None) -> AsyncIterator[Client]:
    async with AsyncExitStack() as stack:
        if bound_s is not None:
            patch = stack.enter_context(pytest.MonkeyPatch.context())
            patch.setattr(answering, "ANSWER_WITHIN_S", bound_s)
            patch.setattr(answering, "MOST_WAIT_S", 0)
        listener = stack.enter_context(bind("127.0.0.1", 0))
        server = await stack.enter_async_context(AsyncExitStack())
        await server.enter_async_context(serve(create_app(node.services), listener))
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        stack.callback(writer.close)
        yield Client(node, server.aclose, reader, writer)


async def test_it_is_answered_when_it_is_stored_and_not_before() -> None:
    async with asking(node := Node()) as client:
        await client.let_in()
        client.ask("a")
        await client.stored()
        assert (node.ways, len(node.told)) == (["at once"], 2)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await client.reader.readexactly(1)
        node.end()
        status, said = await client.answer()
        assert (status, said["requestId"], said["state"]) == (202, "a", "QUEUED")
        assert len(node.told) == 3


async def test_those_that_come_together_are_answered_in_their_order() -> None:
    async with asking(node := Node()) as client:
        await client.let_in()
        for number in range(40):
            client.ask(str(number), value="many" if number % 3 == 2 else 1)
        for number in range(40):
            if number % 3 == 2:
                assert await client.code() == (400, "field_invalid")
                continue
            await client.stored()
            assert [request.request_id for request, _ in node.storing] == [str(number)]
            node.end()
            assert (await client.answer())[1]["requestId"] == str(number)


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        (AcceptOutcome.CONFLICT, (409, "request_conflict")),
        (AcceptOutcome.PROTECTED, (409, "signer_protected")),
    ],
)
async def test_what_was_not_stored_is_told(outcome: AcceptOutcome, said: tuple[int, str]) -> None:
    async with asking(node := Node()) as client:
        await client.let_in()
        client.ask("a")
        await client.stored()
        node.end(outcome)
        assert await client.code() == said
        assert len(node.told) == 2


async def test_an_error_of_the_database_is_told_and_gives_the_room_back() -> None:
    async with asking(node := Node()) as client:
        await client.let_in()
        for _ in range(3):
            client.ask("a")
            await client.stored()
            node.storing.pop()[1].set_exception(OSError("cut"))
            assert await client.code() == (503, "database_unavailable")
    assert node.intake._being_stored == 0


async def test_what_takes_too_long_is_answered_and_given_up() -> None:
    async with asking(node := Node(), bound_s=0.3) as client:
        await client.let_in()
        client.ask("a")
        assert await client.code() == (503, "busy")
        assert node.storing.pop()[1].cancelled()
        client.ask("b")
        await client.stored()
        node.end()
        assert (await client.answer())[0] == 202
    assert node.intake._being_stored == 0


async def stopped(client: Client) -> None:
    await client.stop_server()


async def test_a_server_that_stops_says_that_nothing_is_known() -> None:
    async with asking(node := Node()) as client:
        await client.let_in()
        client.ask("a")
        await client.stored()
        node.is_stopped = True
        async with asyncio.TaskGroup() as group:
            group.create_task(stopped(client))
            assert await client.code() == (503, "stopping")


async def test_a_caller_that_goes_away_changes_nothing() -> None:
    async with asking(node := Node()) as client:
        await client.let_in()
        client.ask("a")
        await client.stored()
        client.writer.transport.abort()
        await asyncio.sleep(0.05)
        node.end()
        await until(lambda: len(node.told) == 3)


async def test_a_signer_with_a_policy_is_judged_in_a_task() -> None:
    node = Node(limits={Signer(CHAIN_ID, SIGNER): Limits(value_wei_max=10**18)})
    async with asking(node) as client:
        await client.let_in()
        client.ask("a", value=5)
        await client.stored()
        node.end()
        assert (await client.answer())[0] == 202
        assert node.ways == ["in a task"]


async def test_a_key_pays_for_each_call_once_whichever_way_it_goes() -> None:
    node = Node(needs_key=True, rate_per_s=5.0)
    async with asking(node) as client:
        statuses = []
        for number in range(7):
            client.ask(str(number), f"authorization: Bearer {TOKEN}", value="bad" if number % 2 else 1)
            if number < 5 and not number % 2:
                await client.stored()
                node.end()
            statuses.append((await client.answer())[0])
        assert statuses == [202, 400, 202, 400, 202, 429, 429]
        assert "at once" in node.ways
