"""Limit what a signer may pay, call and spend, per transaction and per day (UTC; value and gas together).

A request that the policy rejects is never stored, so it never costs a nonce. A request that is known already is not
rejected any more: a caller that repeats it gets the same transaction, whatever the policy says by now. Gas and price are
often known only when a transaction is signed, so the limits are checked there again, for every attempt.

The day's budget holds what each transaction may cost at most: its value and gas limit times fee cap, taken before the request
is stored as far as that is known, and in full before the first signature. An attempt that may cost more takes the
difference. When the transaction has ended, its receipt says what it did cost, and the rest goes back. A crash in between
leaves some of the budget unused, never too much of it spent. Policies are cached for `CACHE_TTL_S`: a change takes that
long to reach every node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

from fencepost.application.accept import Request
from fencepost.application.ports import Accepted, AcceptOutcome, Actor, Ledger
from fencepost.application.ttl_cache import TtlCache
from fencepost.application.uuid7 import new_tx_id
from fencepost.domain.ids import Address, Signer
from fencepost.domain.transaction import Call
from fencepost.domain.transaction_state import Intent

CACHE_TTL_S = 1.0
PLAIN = "0x"  # stands among selectors for a transfer without calldata
_SELECTOR_BYTES = 4

# The least gas of any transaction: what a request without a gas limit is sure to use.
INTRINSIC_GAS = 21_000


@dataclass(frozen=True, slots=True)
class Limits:
    """Hold the limits of a signer; None is no limit. A limit on receivers or selectors also forbids deployments."""

    receivers: frozenset[Address] | None = None
    selectors: frozenset[str] | None = None
    value_wei_max: int | None = None
    daily_wei_max: int | None = None
    gas_max: int | None = None
    fee_cap_max_wei: int | None = None


def intent_refusal(limits: Limits, intent: Intent) -> str | None:
    """Return why the policy rejects the request, or None. The daily budget is checked separately."""
    if limits.gas_max is not None and intent.gas is not None and intent.gas > limits.gas_max:
        return f"a gas limit of {intent.gas} is more than its gasMax of {limits.gas_max}"
    fees, most_wei = intent.fees, limits.fee_cap_max_wei
    if most_wei is not None and fees is not None and fees.fee_cap_wei > most_wei:
        return f"{fees.fee_cap_wei} wei per gas is more than its feeCapMax of {most_wei}"
    return refusal(limits, intent.call)


def refusal(limits: Limits, call: Call) -> str | None:
    """Return why the policy rejects the call, or None. Gas, price and the daily budget are checked separately."""
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
    """Return the selector of a call. Calldata that is too short gives a value that no policy can list."""
    return "0x" + call.data[:_SELECTOR_BYTES].hex()


class SpendingPolicies(Protocol):
    """Store the policies and the daily budgets of signers."""

    async def all(self) -> Mapping[Signer, Limits]: ...

    async def put(self, signer: Signer, limits: Limits, actor: Actor) -> None: ...

    async def remove(self, signer: Signer, actor: Actor) -> bool:
        """Remove the policy of a signer, and return whether there was one."""
        ...

    async def reserve(
        self, signer: Signer, tx_id: UUID, *, value_wei: int, wei: int, force: bool = False
    ) -> bool:
        """Reserve what the transaction may cost, `wei` in all, in the signer's daily budget; False reserves nothing.

        A second call for the same transaction reserves only the difference. `force` reserves it even if the
        budget is too small. Without a daily limit nothing is reserved.
        """
        ...

    async def release(self, signer: Signer, tx_id: UUID) -> None:
        """Give back what was reserved for a request that was not stored."""
        ...

    async def settle(self, signer: Signer) -> int:
        """Record what ended transactions did cost, give back the rest, and return how many there were."""
        ...

    async def spent_today_wei(self, signer: Signer) -> int: ...


@dataclass(frozen=True, slots=True)
class SpendingDecision:
    """Hold a decision about a request: `refused` is the reason if it was rejected.

    `tx_id` is the id under which a part of the daily budget was reserved, if any was.
    """

    refused: str | None = None
    tx_id: UUID | None = None


ADMITTED = SpendingDecision()


@dataclass(slots=True)
class SpendingGuard:
    """Check requests against the policies, and reserve their cost in the daily budgets."""

    policies: SpendingPolicies
    ledger: Ledger
    _all: TtlCache[None, Mapping[Signer, Limits]] = field(init=False)

    def __post_init__(self) -> None:
        self._all = TtlCache(lambda _: self.policies.all(), ttl_s=CACHE_TTL_S)

    async def limits_of(self, signer: Signer) -> Limits | None:
        """Return the limits of a signer, or None if it has no policy."""
        return (await self._all.get(None)).get(signer)

    async def admit(self, requests: Sequence[Request]) -> list[SpendingDecision]:
        """Decide about each request, in order. An admitted request has its cost reserved in the daily budget."""
        limits_of = (await self._all.get(None)).get
        admissions = []
        for request in requests:
            limits = limits_of(request.signer)
            admissions.append(ADMITTED if limits is None else await self._decide(request, limits))
        return admissions

    async def _decide(self, request: Request, limits: Limits) -> SpendingDecision:
        reason = intent_refusal(limits, request.intent)
        if reason is None:
            value_wei, wei = request.intent.call.value_wei, least_cost_wei(request.intent)
            if limits.daily_wei_max is None or not wei:
                return ADMITTED
            tx_id = new_tx_id()
            if await self.reserve(request.signer, tx_id, value_wei=value_wei, wei=wei):
                return SpendingDecision(tx_id=tx_id)
            reason = over_budget(wei, limits)
        return ADMITTED if await self._is_known(request) else SpendingDecision(reason)

    async def reserve(
        self, signer: Signer, tx_id: UUID, *, value_wei: int, wei: int, force: bool = False
    ) -> bool:
        """Reserve as `SpendingPolicies.reserve` does; before it fails, settle ended transactions and try again."""

        async def reserved() -> bool:
            return await self.policies.reserve(signer, tx_id, value_wei=value_wei, wei=wei, force=force)

        return await reserved() or (await self.policies.settle(signer) > 0 and await reserved())

    async def spent_today_wei(self, signer: Signer) -> int:
        await self.policies.settle(signer)
        return await self.policies.spent_today_wei(signer)

    async def _is_known(self, request: Request) -> bool:
        if request.request_id is None:
            return False
        return await self.ledger.find_by_request(request.signer, request.request_id) is not None

    async def settle(self, request: Request, admission: SpendingDecision, accepted: Accepted) -> None:
        """Give the reservation back if the stored request created no transaction."""
        if accepted.outcome is not AcceptOutcome.CREATED:
            await self.release_unstored(request, admission)

    async def release_unstored(self, request: Request, admission: SpendingDecision) -> None:
        """Give back the reservation of a request that was certainly not stored."""
        if admission.tx_id is not None:
            await self.policies.release(request.signer, admission.tx_id)


def least_cost_wei(intent: Intent) -> int:
    """Return what a request may cost as far as it says so: its value, and gas times price where it brings the price."""
    price_wei = 0 if intent.fees is None else intent.fees.fee_cap_wei
    return intent.call.value_wei + (intent.gas or INTRINSIC_GAS) * price_wei


def over_budget(wei: int, limits: Limits) -> str:
    return (
        f"{wei} wei, value and gas, is more than is left of the {limits.daily_wei_max} it may spend per day"
    )
