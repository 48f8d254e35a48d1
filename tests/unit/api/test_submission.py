"""Submission of one transaction: the caller gets an answer whatever the commit returns, and on every cancellation."""

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
from fencepost.api import Dependencies, create_app, pipeline
from fencepost.application.accept import RequestAcceptor
from fencepost.application.admission import AdmissionControl
from fencepost.application.api_keys import ApiKey, Scope, hash_secret
from fencepost.application.ports import Accepted, AcceptOutcome, NewRequest
from fencepost.application.spending_policy import Limits, SpendingGuard
from fencepost.domain.ids import Signer, parse_address
from fencepost.http.server import bind, serve
from fixtures.core import eventually

CHAIN_ID = 31_337
SIGNER = parse_address("0x" + "a1" * 20)
WITHIN_S = 10.0
TOKEN = "fp_" + "0" * 16 + "_secret"


@dataclass(slots=True)
class Node:
    """A node whose commits end on demand."""

    storing: list[tuple[NewRequest, asyncio.Future[Accepted]]] = field(default_factory=list)
    shown: list[Signer] = field(default_factory=list)
    limits: dict[Signer, Limits] = field(default_factory=dict)
    rate_per_s: float | None = None
    needs_key: bool = False
    is_stopped: bool = False
    admission: AdmissionControl = field(
        default_factory=lambda: AdmissionControl(FakeObserver(), 1_000, 1_000)
    )

    # ---- the ledger

    async def accept(self, requests: Sequence[NewRequest]) -> Sequence[Accepted]:
        return [await self._store(request) for request in requests]

    async def find_by_request(self, _signer: Signer, _request_id: str) -> None:
        return None

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
    def services(self) -> Dependencies:
        keys = SimpleNamespace(addresses=lambda: [SIGNER])
        return cast(
            "Dependencies",
            SimpleNamespace(
                acceptor=RequestAcceptor(
                    cast("Any", self),
                    cast("Any", keys),
                    frozenset({CHAIN_ID}),
                    self.shown.append,
                    self.admission,
                ),
                tx_waiter=self,
                keys=self,
                spending=SpendingGuard(cast("Any", self), cast("Any", self)),
                node=SimpleNamespace(
                    version="0",
                    incarnation=uuid4(),
                    name="n",
                    is_database_failure=lambda error: isinstance(error, OSError),
                    metrics=bytes,
                ),
                chains=SimpleNamespace(by_id={CHAIN_ID: None}, default_id=CHAIN_ID),
                codec=SimpleNamespace(parse_address=parse_address),
                cluster=SimpleNamespace(forward_tokens=None),
                settings=SimpleNamespace(
                    host="127.0.0.1",
                    auth="open",
                    max_waits_per_key=256,
                    max_streams_per_key=64,
                    accepting_nodes="any",
                ),
                nonces=None,
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
        """Wait until `count` commits are in progress."""
        await until(lambda: len(self.node.storing) >= count)

    async def let_in(self) -> None:
        """Make a first call: it loads keys and policies, which are cached from then on."""
        for turn in ("keys", "policies"):
            self.ask(f"first, for {turn}")
            await self.stored()
            self.node.end()
            assert (await self.answer())[0] == 202


@asynccontextmanager
async def asking(node: Node, *, bound_s: float | None = None) -> AsyncIterator[Client]:
    async with AsyncExitStack() as stack:
        if bound_s is not None:
            patch = stack.enter_context(pytest.MonkeyPatch.context())
            patch.setattr(pipeline, "RESPONSE_TIMEOUT_S", bound_s)
            patch.setattr(pipeline, "MAX_WAIT_S", 0)
        listener = stack.enter_context(bind("127.0.0.1", 0))
        server = await stack.enter_async_context(AsyncExitStack())
        await server.enter_async_context(serve(create_app(node.services), listener))
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        stack.callback(writer.close)
        yield Client(node, server.aclose, reader, writer)


async def test_a_submission_is_answered_when_it_is_stored_and_not_before() -> None:
    async with asking(node := Node()) as client:
        await client.let_in()
        client.ask("a")
        await client.stored()
        assert len(node.shown) == 2
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await client.reader.readexactly(1)
        node.end()
        status, said = await client.answer()
        assert (status, said["requestId"], said["state"]) == (202, "a", "QUEUED")
        assert len(node.shown) == 3


async def test_concurrent_submissions_are_answered_in_order() -> None:
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
async def test_a_request_that_was_not_stored_is_rejected(
    outcome: AcceptOutcome, said: tuple[int, str]
) -> None:
    async with asking(node := Node()) as client:
        await client.let_in()
        client.ask("a")
        await client.stored()
        node.end(outcome)
        assert await client.code() == said
        assert len(node.shown) == 2


async def test_a_database_error_is_reported_and_frees_its_slot() -> None:
    async with asking(node := Node()) as client:
        await client.let_in()
        for _ in range(3):
            client.ask("a")
            await client.stored()
            node.storing.pop()[1].set_exception(OSError("cut"))
            assert await client.code() == (503, "database_unavailable")
    assert node.admission._being_stored == 0


async def test_a_slow_commit_is_answered_with_a_timeout() -> None:
    async with asking(node := Node(), bound_s=0.3) as client:
        await client.let_in()
        client.ask("a")
        assert await client.code() == (503, "busy")
        assert node.storing.pop()[1].cancelled()
        client.ask("b")
        await client.stored()
        node.end()
        assert (await client.answer())[0] == 202
    assert node.admission._being_stored == 0


async def stopped(client: Client) -> None:
    await client.stop_server()


async def test_a_server_that_stops_answers_that_the_outcome_is_unknown() -> None:
    async with asking(node := Node()) as client:
        await client.let_in()
        client.ask("a")
        await client.stored()
        node.is_stopped = True
        async with asyncio.TaskGroup() as group:
            group.create_task(stopped(client))
            assert await client.code() == (503, "stopping")


async def test_a_caller_that_disconnects_changes_nothing() -> None:
    async with asking(node := Node()) as client:
        await client.let_in()
        client.ask("a")
        await client.stored()
        client.writer.transport.abort()
        await asyncio.sleep(0.05)
        node.end()
        await until(lambda: len(node.shown) == 3)


async def test_a_signer_with_a_policy_is_checked() -> None:
    node = Node(limits={Signer(CHAIN_ID, SIGNER): Limits(value_wei_max=10**18)})
    async with asking(node) as client:
        await client.let_in()
        client.ask("a", value=5)
        await client.stored()
        node.end()
        assert (await client.answer())[0] == 202
        client.ask("b", value=10**18 + 1)
        assert await client.code() == (403, "policy_refused")
        assert not node.storing


async def test_a_key_is_charged_once_per_call() -> None:
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
