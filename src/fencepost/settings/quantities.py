"""Kinds of values that are numbers: counts, factors, durations, prices. None of them is ever rounded silently."""

# ruff: noqa: TRY004 - one exception type says "not allowed" for all kinds

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import ClassVar, Generic

from fencepost.settings.kinds import Kind, Plain, W

_WHOLE = re.compile(r"[+-]?[0-9]{1,30}")
_DECIMAL = re.compile(r"[+-]?[0-9]{1,30}(\.[0-9]{1,30})?")
_DURATION = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,15})?) ?(ms|s|m|h)?")
_SECONDS_OF = {"ms": Decimal("0.001"), "s": Decimal(1), "m": Decimal(60), "h": Decimal(3600)}
_WEI_A_GWEI = 10**9
_DIGITS_MAX = 60


@dataclass(frozen=True, slots=True)
class Whole(Kind[int]):
    low: int
    high: int

    @property
    def allowed(self) -> str:
        return f"a whole number from {self.low} to {self.high}"

    def from_text(self, text: str) -> object:
        return int(text) if _WHOLE.fullmatch(text.strip()) else text

    def parse(self, raw: object) -> int:
        if not isinstance(raw, int) or isinstance(raw, bool) or not self.low <= raw <= self.high:
            raise ValueError("not a whole number in range")
        return raw

    def plain(self, value: int) -> Plain:
        return value


@dataclass(frozen=True, slots=True)
class WholeOr(Kind[int | W], Generic[W]):
    """A whole number, or one of a few words that stand for a rule."""

    low: int
    high: int
    words: tuple[W, ...]

    @property
    def allowed(self) -> str:
        return f"a whole number from {self.low} to {self.high}, or {' or '.join(self.words)}"

    def from_text(self, text: str) -> object:
        return Whole(self.low, self.high).from_text(text)

    def parse(self, raw: object) -> int | W:
        for word in self.words:
            if raw == word:
                return word
        return Whole(self.low, self.high).parse(raw)

    def plain(self, value: int | W) -> Plain:
        return value


@dataclass(frozen=True, slots=True)
class Number(Kind[float]):
    low: float
    high: float

    @property
    def allowed(self) -> str:
        return f"a number from {self.low:g} to {self.high:g}"

    def from_text(self, text: str) -> object:
        return Decimal(text.strip()) if _DECIMAL.fullmatch(text.strip()) else text

    def parse(self, raw: object) -> float:
        number = float(_finite(raw))
        if not self.low <= number <= self.high:
            raise ValueError("out of range")
        return number

    def plain(self, value: float) -> Plain:
        return value


@dataclass(frozen=True, slots=True)
class Duration(Kind[float]):
    """Seconds in Python; `10s`, `250ms`, `2m`, `1h` or a bare number of seconds outside."""

    low_s: float
    high_s: float
    suffix: ClassVar[str] = "_s"

    @property
    def allowed(self) -> str:
        return (
            f"a duration from {duration_text(self.low_s)} to {duration_text(self.high_s)},"
            " written like 10s, 250ms, 2m, 1h or as a number of seconds"
        )

    def parse(self, raw: object) -> float:
        if isinstance(raw, str):
            written = _DURATION.fullmatch(raw.strip())
            if written is None:
                raise ValueError("not a duration")
            seconds = float(Decimal(written[1]) * _SECONDS_OF[written[2] or "s"])
        else:
            seconds = float(_finite(raw))
        # Compared as floats, for the bounds are floats: the decimal 0.1 is less than the float 0.1.
        if not self.low_s <= seconds <= self.high_s:
            raise ValueError("out of range")
        return seconds

    def plain(self, value: float) -> Plain:
        return duration_text(value)


@dataclass(frozen=True, slots=True)
class Gwei(Kind[int]):
    """Wei in Python, a decimal number of Gwei outside; never rounded."""

    low_wei: int
    high_wei: int
    suffix: ClassVar[str] = "_wei"

    @property
    def allowed(self) -> str:
        low, high = self.plain(self.low_wei), self.plain(self.high_wei)
        return f"a price in Gwei from {low} to {high} with at most 9 decimals, such as 1.5"

    def parse(self, raw: object) -> int:
        if isinstance(raw, str):
            if not _DECIMAL.fullmatch(raw.strip()):
                raise ValueError("not a decimal number")
            raw = Decimal(raw.strip())
        wei = Fraction(_finite(raw)) * _WEI_A_GWEI
        if not self.low_wei <= wei <= self.high_wei or wei.denominator != 1:
            raise ValueError("out of range or finer than a wei")
        return int(wei)

    def plain(self, value: int) -> Plain:
        whole, rest = divmod(value, _WEI_A_GWEI)
        return f"{whole}.{rest:09d}".rstrip("0").rstrip(".")


def duration_text(seconds: float) -> str:
    for unit, size_s in (("h", 3600), ("m", 60)):
        # 60s and 90s stay seconds, as people write them; 120s is 2m.
        if seconds >= 2 * size_s and seconds % size_s == 0:
            return f"{seconds / size_s:g}{unit}"
    if 0 < seconds < 1:
        return f"{Decimal(repr(seconds)) * 1000:f}".rstrip("0").rstrip(".") + "ms"
    return f"{seconds:.15g}s"


def _finite(raw: object) -> Decimal:
    if isinstance(raw, bool) or not isinstance(raw, int | float | Decimal):
        raise ValueError("not a number")
    number = Decimal(repr(raw)) if isinstance(raw, float) else Decimal(raw)
    if not number.is_finite():
        raise ValueError("not a finite number")
    # 1e-999999999 is a few bytes of text and gigabytes of digits; nothing here needs more than these.
    if number.adjusted() > _DIGITS_MAX or len(number.as_tuple().digits) - number.adjusted() > _DIGITS_MAX:
        raise ValueError("too many digits")
    return number
