"""Convert written amounts such as "0.1ether", "5 gwei" or "123" to wei exactly, without floats."""

from __future__ import annotations

import re

MAX_CHARS = 120
MAX_WEI = 2**256 - 1
DECIMALS = {"wei": 0, "kwei": 3, "mwei": 6, "gwei": 9, "ether": 18, "eth": 18}

_AMOUNT = re.compile(r"([0-9]+)(?:\.([0-9]+))?\s*([a-z]*)", re.ASCII)


def wei(text: str) -> int:
    """Convert an amount to wei; without a unit it is in wei already. Raise ValueError if it is not an amount."""
    written = _AMOUNT.fullmatch(text.strip().lower()) if len(text) <= MAX_CHARS else None
    if written is None:
        raise ValueError(f"{text[:40]!r} is not an amount: write it like 0.1ether, 5gwei or 123")
    whole, fraction, unit = written[1], (written[2] or "").rstrip("0"), written[3] or "wei"
    if unit not in DECIMALS:
        raise ValueError(f"{unit[:20]!r} is not a unit: use one of {', '.join(DECIMALS)}")
    if len(fraction) > DECIMALS[unit]:
        hint = f"; did you mean {written[1]}.{written[2]}ether?" if not written[3] else ""
        raise ValueError(f"{text[:40]!r} has a fraction of a wei{hint}")
    amount = int(whole + fraction.ljust(DECIMALS[unit], "0"))
    if amount > MAX_WEI:
        raise ValueError(f"{text[:40]!r} is more than 2^256-1 wei")
    return amount


def in_ether(amount_wei: int) -> str:
    """Format an amount in ether, exact and without trailing zeros."""
    whole, rest = divmod(amount_wei, 10**18)
    fraction = f"{rest:018}".rstrip("0")
    return f"{whole}.{fraction}" if fraction else str(whole)
