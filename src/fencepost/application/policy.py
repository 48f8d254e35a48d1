"""What a signer may do: whom it pays, what it calls, how much at once and how much a day (by UTC, value without gas).

A request that the policy refuses is never stored, so it never costs a nonce. One that is known already is not refused
any more: whoever repeats it gets the same transaction, whatever the policy says by now. The day's budget is taken
before the request is stored and given back when nothing new was; a crash in between leaves some of it unused, never
too much of it spent. Policies are remembered for `REMEMBER_S`: a change takes that long to reach every node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Protocol

from fencepost.application.accept import Request
from fencepost.application.operate import Actor
from fencepost.application.ports import Accepted, AcceptOutcome, Ledger
from fencepost.application.remembered import Remembered
from fencepost.domain.ids import Address, Signer
from fencepost.domain.transaction import Call

REMEMBER_S = 1.0
PLAIN = "0x"  # stands among selectors for a transfer without calldata
_SELECTOR_BYTES = 4


@dataclass(frozen=True, slots=True)
class Limits:
    """What is None does not matter. Whoever limits receivers or selectors also forbids deployments."""

    receivers: frozenset[Address] | None = None
    selectors: frozenset[str] | None = None
    value_wei_max: int | None = None
    daily_wei_max: int | None = None


def refusal(limits: Limits, call: Call) -> str | None:
    """Why the signer may not do this, if it may not; the day's budget apart."""
    if call.to is None and (limits.receivers is not None or limits.selectors is not None):
        return "it may not deploy contracts"
    if limits.receivers is not None and call.to not in limits.receivers:
        return f"{call.to} is none of its receivers"
    if limits.selectors is not None and selector_of(call) not in limits.selectors:
        return f"{selector_of(call)} is none of its selectors"
    if limits.value_wei_max is not None and call.value_wei > limits.value_wei_max:
        return f"{call.value_wei} wei are more than the {limits.value_wei_max} it may send at once"
    return None


def selector_of(call: Call) -> str:
    """Calldata too short for a selector is one of its own, which no policy can name."""
    return "0x" + call.data[:_SELECTOR_BYTES].hex()


class Policies(Protocol):
    async def all(self) -> Mapping[Signer, Limits]: ...

    async def put(self, signer: Signer, limits: Limits, actor: Actor) -> None: ...

    async def remove(self, signer: Signer, actor: Actor) -> bool:
        """Whether there was one."""
        ...

    async def take(self, signer: Signer, wei: int, *, most_wei: int) -> date | None:
        """The day that it was taken from; None, with nothing taken, when that day had not so much left."""
        ...

    async def give_back(self, signer: Signer, wei: int, day: date) -> None: ...

    async def spent_today_wei(self, signer: Signer) -> int: ...


@dataclass(frozen=True, slots=True)
class Admission:
    """`refused` says why not. `taken_from` is the day whose budget paid; what took nothing has nothing to give back."""

    refused: str | None = None
    taken_from: date | None = None


ADMITTED = Admission()


@dataclass(slots=True)
class PolicyGuard:
    policies: Policies
    ledger: Ledger
    _all: Remembered[None, Mapping[Signer, Limits]] = field(init=False)

    def __post_init__(self) -> None:
        self._all = Remembered(lambda _: self.policies.all(), believe_s=REMEMBER_S)

    async def limits_of(self, signer: Signer) -> Limits | None:
        return (await self._all.get(None)).get(signer)

    async def admit(self, requests: Sequence[Request]) -> list[Admission]:
        """One each. What is admitted has its part of the day's budget."""
        limits_of = (await self._all.get(None)).get
        admissions = []
        for request in requests:
            limits = limits_of(request.signer)
            admissions.append(ADMITTED if limits is None else await self._judge(request, limits))
        return admissions

    async def _judge(self, request: Request, limits: Limits) -> Admission:
        reason = refusal(limits, request.intent.call)
        wei = request.intent.call.value_wei
        if reason is None:
            if limits.daily_wei_max is None or not wei:
                return ADMITTED
            day = await self.policies.take(request.signer, wei, most_wei=limits.daily_wei_max)
            if day is not None:
                return Admission(taken_from=day)
            reason = f"{wei} wei are more than is left of the {limits.daily_wei_max} it may send a day"
        return ADMITTED if await self._is_known(request) else Admission(reason)

    async def _is_known(self, request: Request) -> bool:
        if request.request_id is None:
            return False
        return await self.ledger.find_by_request(request.signer, request.request_id) is not None

    async def settle(self, request: Request, admission: Admission, accepted: Accepted) -> None:
        """After an admitted request was taken: if it created nothing, what it took of the day goes back."""
        if accepted.outcome is not AcceptOutcome.CREATED:
            await self.give_back(request, admission)

    async def give_back(self, request: Request, admission: Admission) -> None:
        """For a request of which is certain that it was not stored."""
        if admission.taken_from is not None:
            wei = request.intent.call.value_wei
            await self.policies.give_back(request.signer, wei, admission.taken_from)
