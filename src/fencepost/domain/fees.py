"""What a replacement must pay.

A node replaces a pooled transaction only if tip and fee cap both rise by at least ten per cent. The rise is an integer
ceil, because a price that falls one wei short is refused. The cap is never passed: when the least acceptable
replacement lies above it there is no replacement, and the transaction is stuck until a person decides.
"""

from __future__ import annotations

from fencepost.domain.transaction import Fees

MIN_BUMP_PERCENT = 10


def raise_by(price_wei: int, percent: int) -> int:
    return max(-(-price_wei * (100 + percent) // 100), price_wei + 1)


def replacement(last: Fees, *, percent: int, cap_wei: int, quote: Fees | None = None) -> Fees | None:
    """The price of an attempt that may follow `last`; None when the cap forbids it."""
    percent = max(percent, MIN_BUMP_PERCENT)
    least = Fees(
        fee_cap_wei=raise_by(last.fee_cap_wei, MIN_BUMP_PERCENT),
        tip_wei=raise_by(last.tip_wei, MIN_BUMP_PERCENT),
    )
    if least.fee_cap_wei > cap_wei:
        return None
    fee_cap_wei = raise_by(last.fee_cap_wei, percent)
    tip_wei = raise_by(last.tip_wei, percent)
    if quote is not None:
        fee_cap_wei = max(fee_cap_wei, quote.fee_cap_wei)
        tip_wei = max(tip_wei, quote.tip_wei)
    fee_cap_wei = min(fee_cap_wei, cap_wei)
    return Fees(fee_cap_wei=fee_cap_wei, tip_wei=max(least.tip_wei, min(tip_wei, fee_cap_wei)))


def within_cap(quote: Fees, cap_wei: int) -> Fees:
    """A first attempt pays what is quoted, but never more than the cap."""
    fee_cap_wei = min(quote.fee_cap_wei, cap_wei)
    return Fees(fee_cap_wei=fee_cap_wei, tip_wei=min(quote.tip_wei, fee_cap_wei))
