"""Callers: requests to random nodes, repeated with the same request id until somebody acknowledges them.

Each request has an effect of its own, so that the chain alone can tell whether it happened once. A signer that has much
waiting gets nothing new for a while: the run measures survival, not how long a queue can be.
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
from fencepost.lab.chaos_stage import Stage
from fencepost.lab.history import Acknowledged, effect_of

POST_TIMEOUT_S = 2.0
AGAIN_S = 0.2
AGAIN_MOST_S = 2.0
NOTICE_WITHIN_S = 30.0
CALLERS_MOST = 150
WAITING_MOST_STRICT = 12
WAITING_MOST_PIPELINED = 320


class _Told(msgspec.Struct, rename="camel"):
    tx_id: str


class _Problem(msgspec.Struct):
    code: str = ""


@dataclass(slots=True)
class Load:
    stage: Stage
    acknowledged: list[Acknowledged] = field(default_factory=list)
    answers: Counter[str] = field(default_factory=Counter)
    asked: int = 0
    under_way: int = 0
    ended: Counter[str] = field(default_factory=Counter)  # by signer, as last seen in the database
    _of_signer: Counter[str] = field(default_factory=Counter)

    async def pour(self, until_s: float, signers: Sequence[Address]) -> None:
        """Asks until then; returns when everything asked was answered for good."""
        async with _session() as session, asyncio.TaskGroup() as group:
            for signer in signers:
                group.create_task(self._of_one(signer, until_s, session, group))

    async def ask_each(self, signers: Sequence[Address]) -> None:
        """One request for each signer, whatever waits already; returns when all were answered for good."""
        async with _session() as session, asyncio.TaskGroup() as group:
            for signer in signers:
                self._begin(signer, session, group, self.stage.chance(f"one for {signer}"))

    async def _of_one(
        self, signer: Address, until_s: float, session: aiohttp.ClientSession, group: asyncio.TaskGroup
    ) -> None:
        plan = self.stage.plan
        chance = self.stage.chance(f"load {signer}")
        is_pipelined = signer in self.stage.pipelined
        per_s = plan.pipelined_per_s if is_pipelined else plan.strict_per_s
        waiting_most = WAITING_MOST_PIPELINED if is_pipelined else WAITING_MOST_STRICT
        while time.monotonic() < until_s or self._must_notice(signer, until_s):
            await asyncio.sleep(chance.expovariate(per_s))
            waits = self._of_signer[signer] - self.ended[signer]
            if waits < waiting_most and self.under_way < CALLERS_MOST:
                self._begin(signer, session, group, chance)

    def _begin(
        self,
        signer: Address,
        session: aiohttp.ClientSession,
        group: asyncio.TaskGroup,
        chance: random.Random,
    ) -> None:
        self._of_signer[signer] += 1
        self.asked += 1
        group.create_task(self._ask(signer, self.asked, session, chance))

    def _must_notice(self, signer: Address, until_s: float) -> bool:
        """A signer without requests is looked at by nobody, so its stranger would not be noticed."""
        waits = signer in self.stage.struck - self.stage.protected
        return waits and time.monotonic() < until_s + NOTICE_WITHIN_S

    async def _ask(
        self, signer: Address, number: int, session: aiohttp.ClientSession, chance: random.Random
    ) -> None:
        to = chance.choice(self.stage.signers)
        request_id = f"chaos-{number}"
        body = {"signer": signer, "requestId": request_id, "payload": {"to": to, "value": str(number)}}
        self.under_way += 1
        try:
            pause_s = AGAIN_S
            while True:  # until acknowledged: whoever runs the load bounds it
                answer = await self._post(body, session, chance)
                if answer is not None:
                    break
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, AGAIN_MOST_S)
        finally:
            self.under_way -= 1
        if answer:
            effect = effect_of(to=to, value_wei=number, data="0x")
            self.acknowledged.append(Acknowledged(time.time(), signer, request_id, answer, effect))
        else:
            self._of_signer[signer] -= 1

    async def _post(
        self, body: Mapping[str, object], session: aiohttp.ClientSession, chance: random.Random
    ) -> str | None:
        """The transaction's id; "" when it is refused for good; None when nobody knows: ask again."""
        nodes = [slot.node for slot in self.stage.slots if slot.node is not None and slot.node.is_alive]
        if not nodes:
            return None
        try:
            async with session.post(f"{chance.choice(nodes).url}/api/v1/tx", json=body) as response:
                said = await response.read()
                self.answers[str(response.status)] += 1
                if response.ok:
                    return msgspec.json.decode(said, type=_Told).tx_id
                code = msgspec.json.decode(said, type=_Problem).code
        except (aiohttp.ClientError, TimeoutError, OSError, msgspec.MsgspecError) as error:
            self.answers[type(error).__name__] += 1
            return None
        self.answers[code] += 1
        return "" if code == "signer_protected" else None


def _session() -> aiohttp.ClientSession:
    timeout = aiohttp.ClientTimeout(total=POST_TIMEOUT_S)
    return aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0))
