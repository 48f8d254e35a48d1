"""Amounts as people write them, exact to the wei: "0.1ether", "5 gwei", "123". No floats: they lose what is owed."""

from __future__ import annotations

import re

MOST_CHARS = 120
MOST_WEI = 2**256 - 1
DECIMALS = {"wei": 0, "kwei": 3, "mwei": 6, "gwei": 9, "ether": 18, "eth": 18}

_AMOUNT = re.compile(r"([0-9]+)(?:\.([0-9]+))?\s*([a-z]*)", re.ASCII)


def wei(text: str) -> int:
    """The amount in wei. Without a unit it is in wei already. Raises ValueError for what is no such amount."""
    written = _AMOUNT.fullmatch(text.strip().lower()) if len(text) <= MOST_CHARS else None
    if written is None:
        raise ValueError(f"{text[:40]!r} is no amount: write it like 0.1ether, 5gwei or 123")
    whole, fraction, unit = written[1], (written[2] or "").rstrip("0"), written[3] or "wei"
    if unit not in DECIMALS:
        raise ValueError(f"{unit[:20]!r} is no unit: there are {', '.join(DECIMALS)}")
    if len(fraction) > DECIMALS[unit]:
        raise ValueError(f"{text[:40]!r} is finer than a wei")
    amount = int(whole + fraction.ljust(DECIMALS[unit], "0"))
    if amount > MOST_WEI:
        raise ValueError(f"{text[:40]!r} is more than 2^256-1 wei")
    return amount


def in_ether(amount_wei: int) -> str:
    """The same amount for people's eyes: all digits that matter, and no others."""
    whole, rest = divmod(amount_wei, 10**18)
    fraction = f"{rest:018}".rstrip("0")
    return f"{whole}.{fraction}" if fraction else str(whole)
