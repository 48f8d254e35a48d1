"""Callers that send requests to random nodes, and repeat each with the same request id until it is acknowledged.

Each request has its own effect, so that the chain alone shows whether it happened once. A signer with a long queue gets no
new requests for a while.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import aiohttp
import msgspec

from fencepost.domain.ids import Address
from lab.chaos.testbed import Testbed
from lab.checker.history import Acknowledged, effect_of

POST_TIMEOUT_S = 2.0
AGAIN_S = 0.2
MAX_AGAIN_S = 2.0
NOTICE_TIMEOUT_S = 30.0
MAX_CALLERS = 150
MAX_WAITING_STRICT = 12
MAX_WAITING_PIPELINED = 320


class _AcceptedBody(msgspec.Struct, rename="camel"):
    tx_id: str


class _Problem(msgspec.Struct):
    code: str = ""


@dataclass(slots=True)
class Load:
    """The callers of a run, and what they were answered."""

    testbed: Testbed
    acknowledged: list[Acknowledged] = field(default_factory=list)
    answers: Counter[str] = field(default_factory=Counter)
    asked: int = 0
    under_way: int = 0
    ended: Counter[str] = field(default_factory=Counter)  # per signer, as last seen in the database
    _of_signer: Counter[str] = field(default_factory=Counter)

    async def generate(self, until_s: float, signers: Sequence[Address]) -> None:
        """Send requests until a time; return when each was acknowledged or rejected for good."""
        async with _session() as session, asyncio.TaskGroup() as group:
            for signer in signers:
                group.create_task(self._of_one(signer, until_s, session, group))

    async def request_each(self, signers: Sequence[Address]) -> None:
        """Send one request for each signer; return when each was acknowledged or rejected for good."""
        async with _session() as session, asyncio.TaskGroup() as group:
            for signer in signers:
                self._begin(signer, session, group, self.testbed.rng(f"one for {signer}"))

    async def _of_one(
        self, signer: Address, until_s: float, session: aiohttp.ClientSession, group: asyncio.TaskGroup
    ) -> None:
        plan = self.testbed.plan
        rng = self.testbed.rng(f"load {signer}")
        is_pipelined = signer in self.testbed.pipelined
        per_s = plan.pipelined_per_s if is_pipelined else plan.strict_per_s
        waiting_most = MAX_WAITING_PIPELINED if is_pipelined else MAX_WAITING_STRICT
        while time.monotonic() < until_s or self._must_notice(signer, until_s):
            await asyncio.sleep(rng.expovariate(per_s))
            waits = self._of_signer[signer] - self.ended[signer]
            if waits < waiting_most and self.under_way < MAX_CALLERS:
                self._begin(signer, session, group, rng)

    def _begin(
        self,
        signer: Address,
        session: aiohttp.ClientSession,
        group: asyncio.TaskGroup,
        rng: random.Random,
    ) -> None:
        self._of_signer[signer] += 1
        self.asked += 1
        group.create_task(self._ask(signer, self.asked, session, rng))

    def _must_notice(self, signer: Address, until_s: float) -> bool:
        """Return whether a signer needs requests because no lane would check it otherwise."""
        waits = signer in self.testbed.used_victims - self.testbed.protected
        return waits and time.monotonic() < until_s + NOTICE_TIMEOUT_S

    async def _ask(
        self, signer: Address, number: int, session: aiohttp.ClientSession, rng: random.Random
    ) -> None:
        to = rng.choice(self.testbed.signers)
        request_id = f"chaos-{number}"
        body = {"signer": signer, "requestId": request_id, "payload": {"to": to, "value": str(number)}}
        self.under_way += 1
        try:
            pause_s = AGAIN_S
            while True:  # until acknowledged; the run bounds the time
                answer = await self._post(body, session, rng)
                if answer is not None:
                    break
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, MAX_AGAIN_S)
        finally:
            self.under_way -= 1
        if answer:
            effect = effect_of(to=to, value_wei=number, data="0x")
            self.acknowledged.append(Acknowledged(time.time(), signer, request_id, answer, effect))
        else:
            self._of_signer[signer] -= 1

    async def _post(
        self, body: Mapping[str, object], session: aiohttp.ClientSession, rng: random.Random
    ) -> str | None:
        """Return the transaction's id, "" if the request is rejected for good, None if the outcome is unknown."""
        nodes = [slot.node for slot in self.testbed.slots if slot.node is not None and slot.node.is_alive]
        if not nodes:
            return None
        try:
            async with session.post(f"{rng.choice(nodes).url}/api/v1/tx", json=body) as response:
                said = await response.read()
                self.answers[str(response.status)] += 1
                if response.ok:
                    return msgspec.json.decode(said, type=_AcceptedBody).tx_id
                code = msgspec.json.decode(said, type=_Problem).code
        except (aiohttp.ClientError, TimeoutError, OSError, msgspec.MsgspecError) as error:
            self.answers[type(error).__name__] += 1
            return None
        self.answers[code] += 1
        return "" if code == "signer_protected" else None


def _session() -> aiohttp.ClientSession:
    timeout = aiohttp.ClientTimeout(total=POST_TIMEOUT_S)
    return aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0))
