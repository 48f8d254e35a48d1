"""Define the setting types for numbers: counts, factors, durations, prices. None is ever rounded silently."""

# ruff: noqa: TRY004 - all types raise one exception for "not allowed"

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import ClassVar, Generic

from fencepost.settings.types import Plain, SettingType, W

_WHOLE = re.compile(r"[+-]?[0-9]{1,30}")
_DECIMAL = re.compile(r"[+-]?[0-9]{1,30}(\.[0-9]{1,30})?")
_DURATION = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,15})?) ?(ms|s|m|h)?")
_SECONDS_OF = {"ms": Decimal("0.001"), "s": Decimal(1), "m": Decimal(60), "h": Decimal(3600)}
_WEI_PER_GWEI = 10**9
_MAX_DIGITS = 60


@dataclass(frozen=True, slots=True)
class Integer(SettingType[int]):
    """Accept a whole number in a range."""

    low: int
    high: int

    @property
    def allowed(self) -> str:
        """Describe the allowed values."""
        return f"a whole number from {self.low} to {self.high}"

    def from_text(self, text: str) -> object:
        """Convert the text of a variable or a flag."""
        return int(text) if _WHOLE.fullmatch(text.strip()) else text

    def parse(self, raw: object) -> int:
        """Return the value, or raise ValueError if it is not allowed."""
        if not isinstance(raw, int) or isinstance(raw, bool) or not self.low <= raw <= self.high:
            raise ValueError("not a whole number in range")
        return raw

    def plain(self, value: int) -> Plain:
        """Return the value as a file would have it."""
        return value


@dataclass(frozen=True, slots=True)
class IntegerOr(SettingType[int | W], Generic[W]):
    """Accept a whole number in a range, or one of a few words."""

    low: int
    high: int
    words: tuple[W, ...]

    @property
    def allowed(self) -> str:
        """Describe the allowed values."""
        return f"a whole number from {self.low} to {self.high}, or {' or '.join(self.words)}"

    def from_text(self, text: str) -> object:
        """Convert the text of a variable or a flag."""
        return Integer(self.low, self.high).from_text(text)

    def parse(self, raw: object) -> int | W:
        """Return the value, or raise ValueError if it is not allowed."""
        for word in self.words:
            if raw == word:
                return word
        return Integer(self.low, self.high).parse(raw)

    def plain(self, value: int | W) -> Plain:
        """Return the value as a file would have it."""
        return value


@dataclass(frozen=True, slots=True)
class Number(SettingType[float]):
    """Accept a number in a range."""

    low: float
    high: float

    @property
    def allowed(self) -> str:
        """Describe the allowed values."""
        return f"a number from {self.low:g} to {self.high:g}"

    def from_text(self, text: str) -> object:
        """Convert the text of a variable or a flag."""
        return Decimal(text.strip()) if _DECIMAL.fullmatch(text.strip()) else text

    def parse(self, raw: object) -> float:
        """Return the value, or raise ValueError if it is not allowed."""
        number = float(_finite(raw))
        if not self.low <= number <= self.high:
            raise ValueError("out of range")
        return number

    def plain(self, value: float) -> Plain:
        """Return the value as a file would have it."""
        return value


@dataclass(frozen=True, slots=True)
class Duration(SettingType[float]):
    """Accept a duration: `10s`, `250ms`, `2m`, `1h` or a bare number of seconds. The value is in seconds."""

    low_s: float
    high_s: float
    suffix: ClassVar[str] = "_s"

    @property
    def allowed(self) -> str:
        """Describe the allowed values."""
        return (
            f"a duration from {duration_text(self.low_s)} to {duration_text(self.high_s)},"
            " written like 10s, 250ms, 2m, 1h or as a number of seconds"
        )

    def parse(self, raw: object) -> float:
        """Return the value, or raise ValueError if it is not allowed."""
        if isinstance(raw, str):
            written = _DURATION.fullmatch(raw.strip())
            if written is None:
                raise ValueError("not a duration")
            seconds = float(Decimal(written[1]) * _SECONDS_OF[written[2] or "s"])
        else:
            seconds = float(_finite(raw))
        # Compare as floats, because the bounds are floats: the decimal 0.1 is less than the float 0.1.
        if not self.low_s <= seconds <= self.high_s:
            raise ValueError("out of range")
        return seconds

    def plain(self, value: float) -> Plain:
        """Return the value as a file would have it."""
        return duration_text(value)


@dataclass(frozen=True, slots=True)
class DurationList(SettingType[tuple[float, ...]]):
    """Accept a list of durations. The values are in seconds."""

    low_s: float
    high_s: float
    max_items: int
    suffix: ClassVar[str] = "_s"

    @property
    def allowed(self) -> str:
        """Describe the allowed values."""
        return (
            f"1 to {self.max_items} durations from {duration_text(self.low_s)} to {duration_text(self.high_s)}"
            " (in a variable or flag: separated by commas)"
        )

    def from_text(self, text: str) -> object:
        """Split the text of a variable or a flag at its commas."""
        return [part.strip() for part in text.split(",")]

    def parse(self, raw: object) -> tuple[float, ...]:
        """Return the value, or raise ValueError if it is not allowed."""
        if not isinstance(raw, list) or not 1 <= len(raw) <= self.max_items:
            raise ValueError("not a list of that length")
        return tuple(Duration(self.low_s, self.high_s).parse(one) for one in raw)

    def plain(self, value: tuple[float, ...]) -> Plain:
        """Return the value as a file would have it."""
        return [duration_text(one) for one in value]


@dataclass(frozen=True, slots=True)
class Gwei(SettingType[int]):
    """Accept a decimal number of Gwei. The value is in wei and never rounded."""

    low_wei: int
    high_wei: int
    suffix: ClassVar[str] = "_wei"

    @property
    def allowed(self) -> str:
        """Describe the allowed values."""
        low, high = self.plain(self.low_wei), self.plain(self.high_wei)
        return f"a price in Gwei from {low} to {high} with at most 9 decimals, such as 1.5"

    def parse(self, raw: object) -> int:
        """Return the value, or raise ValueError if it is not allowed."""
        if isinstance(raw, str):
            if not _DECIMAL.fullmatch(raw.strip()):
                raise ValueError("not a decimal number")
            raw = Decimal(raw.strip())
        wei = Fraction(_finite(raw)) * _WEI_PER_GWEI
        if not self.low_wei <= wei <= self.high_wei or wei.denominator != 1:
            raise ValueError("out of range or finer than a wei")
        return int(wei)

    def plain(self, value: int) -> Plain:
        """Return the value as a file would have it."""
        whole, rest = divmod(value, _WEI_PER_GWEI)
        return f"{whole}.{rest:09d}".rstrip("0").rstrip(".")


def duration_text(seconds: float) -> str:
    """Format a duration with the largest unit that divides it, from two of that unit on."""
    for unit, size_s in (("h", 3600), ("m", 60)):
        # 60s and 90s stay in seconds; 120s is 2m.
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
    # 1e-999999999 is a few bytes of text but gigabytes of digits.
    if number.adjusted() > _MAX_DIGITS or len(number.as_tuple().digits) - number.adjusted() > _MAX_DIGITS:
        raise ValueError("too many digits")
    return number
