"""Compute what an attempt may pay and what a replacement must pay.

A signature never pays more than the lowest of the caller's maximum, the signer's policy and the chain's cap: `FeeLimit` is
that lowest one. An endpoint replaces a pooled transaction only if tip and fee cap both rise by at least ten per cent. The
rise is rounded up, because a price that is one wei short is rejected. If the lowest acceptable replacement exceeds the
limit, there is no replacement: the same bytes are sent again until the market falls or the limit rises.
"""

from __future__ import annotations

from enum import StrEnum

from fencepost.domain.struct import Struct
from fencepost.domain.transaction import Fees, TxType

MIN_BUMP_PERCENT = 10

_DYNAMIC_FEE = TxType.DYNAMIC_FEE  # a module constant, because every signature compares with it


class FeeTier(StrEnum):
    """How soon a transaction should be mined, and so which of the quoted prices it pays."""

    SLOW = "slow"
    NORMAL = "normal"
    FAST = "fast"
    URGENT = "urgent"


class FeeQuote(Struct, frozen=True):
    """What a source suggests to pay now, per tier, and the name of the source."""

    slow: Fees
    normal: Fees
    fast: Fees
    urgent: Fees
    source: str = "node"

    @classmethod
    def flat(cls, fees: Fees, source: str = "node") -> FeeQuote:
        """Return a quote with the same fees for every tier."""
        return cls(fees, fees, fees, fees, source)

    def of(self, tier: FeeTier) -> Fees:
        """Return the fees of a tier."""
        if tier is FeeTier.NORMAL:
            return self.normal
        return {FeeTier.SLOW: self.slow, FeeTier.FAST: self.fast, FeeTier.URGENT: self.urgent}[tier]

    def limited(self, *, times: int, reference: FeeQuote, floor_wei: int) -> FeeQuote:
        """Return the quote with each tier at most so many times the reference, or the floor if that is higher."""

        def limit(fees: Fees, usual: Fees) -> Fees:
            most_wei = max(floor_wei, times * usual.fee_cap_wei)
            return within(fees, Fees(fee_cap_wei=most_wei, tip_wei=most_wei))

        return FeeQuote(
            limit(self.slow, reference.slow),
            limit(self.normal, reference.normal),
            limit(self.fast, reference.fast),
            limit(self.urgent, reference.urgent),
            self.source,
        )


class FeeLimit(Struct, frozen=True):
    """The highest fees per gas that a signature may pay, and the name of the setting or policy that set them."""

    fees: Fees
    source: str

    def lowered(self, fees: Fees, source: str) -> FeeLimit:
        """Return the lower of the two limits, for fee cap and tip separately."""
        lowest = Fees(
            fee_cap_wei=min(self.fees.fee_cap_wei, fees.fee_cap_wei),
            tip_wei=min(self.fees.tip_wei, fees.tip_wei),
        )
        is_lower = fees.fee_cap_wei < self.fees.fee_cap_wei or fees.tip_wei < self.fees.tip_wei
        return FeeLimit(lowest, source if is_lower else self.source)

    def allows(self, fees: Fees, tx_type: TxType) -> bool:
        """Return whether a transaction of this type may pay these fees. Types 0 and 1 have no separate tip."""
        if fees.fee_cap_wei > self.fees.fee_cap_wei:
            return False
        return tx_type is not _DYNAMIC_FEE or fees.tip_wei <= self.fees.tip_wei


def fees_for_type(fees: Fees, tx_type: TxType) -> Fees:
    """Return the fees as this type states them: types 0 and 1 have one price, which both fields hold."""
    if tx_type is _DYNAMIC_FEE or fees.tip_wei == fees.fee_cap_wei:
        return fees
    return Fees(fee_cap_wei=fees.fee_cap_wei, tip_wei=fees.fee_cap_wei)


def higher(one: Fees, other: Fees) -> Fees:
    """Return the higher of the two, for fee cap and tip separately."""
    return Fees(max(one.fee_cap_wei, other.fee_cap_wei), max(one.tip_wei, other.tip_wei))


def raise_by(price_wei: int, percent: int) -> int:
    return max(-(-price_wei * (100 + percent) // 100), price_wei + 1)


def replacement(
    last: Fees, *, percent: int, limit: Fees, quote: Fees | None = None, min_percent: int = MIN_BUMP_PERCENT
) -> Fees | None:
    """Return the fees of an attempt that replaces one with the fees `last`; None if the limit forbids it.

    Both prices rise by at least `min_percent`: the chain's pools reject less.
    """
    min_percent = max(min_percent, MIN_BUMP_PERCENT)
    percent = max(percent, min_percent)
    least = Fees(
        fee_cap_wei=raise_by(last.fee_cap_wei, min_percent),
        tip_wei=raise_by(last.tip_wei, min_percent),
    )
    if least.fee_cap_wei > limit.fee_cap_wei or least.tip_wei > limit.tip_wei:
        return None
    fee_cap_wei = raise_by(last.fee_cap_wei, percent)
    tip_wei = raise_by(last.tip_wei, percent)
    if quote is not None:
        fee_cap_wei = max(fee_cap_wei, quote.fee_cap_wei)
        tip_wei = max(tip_wei, quote.tip_wei)
    fee_cap_wei = min(fee_cap_wei, limit.fee_cap_wei)
    tip_wei = min(tip_wei, limit.tip_wei, fee_cap_wei)
    return Fees(fee_cap_wei=fee_cap_wei, tip_wei=max(least.tip_wei, tip_wei))


def within(quote: Fees, limit: Fees) -> Fees:
    """Return the fees of a first attempt: the quote, but never more than the limit."""
    fee_cap_wei = min(quote.fee_cap_wei, limit.fee_cap_wei)
    return Fees(fee_cap_wei=fee_cap_wei, tip_wei=min(quote.tip_wei, limit.tip_wei, fee_cap_wei))
