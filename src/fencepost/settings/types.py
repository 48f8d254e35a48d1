"""Define the types of settings: how a value is parsed, what is allowed, and how it is written.

Numbers are in `numeric_types`. The schema creates one instance per setting. Messages here never repeat a value, because
it may be a secret.
"""

# ruff: noqa: TRY004 - all types raise one exception for "not allowed"

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from fencepost.settings.masking import HIDDEN, check_dsn, check_url, mask_dsn, mask_url

T = TypeVar("T")
W = TypeVar("W", bound=str)
Plain = bool | int | float | str | list[str]

_MAX_RPC_URLS = 32


class SettingType(ABC, Generic[T]):
    """Base class of setting types; `suffix` is the unit that the Python name has and the key does not."""

    __slots__ = ()
    suffix: ClassVar[str] = ""
    secret: ClassVar[bool] = False

    @property
    @abstractmethod
    def allowed(self) -> str:
        """Describe the allowed values, to follow "must be"."""

    @abstractmethod
    def parse(self, raw: object) -> T:
        """Parse a value from TOML (floats are Decimal); raise ValueError if it is not allowed."""

    def from_text(self, text: str) -> object:
        """Convert the text of a variable or a flag to the value that TOML would give."""
        return text

    @abstractmethod
    def plain(self, value: T) -> Plain:
        """Return a parsed value as a file would have it."""

    def conceal(self, value: T) -> Plain:
        """Return a parsed value for display, with secrets masked."""
        return self.plain(value)


@dataclass(frozen=True, slots=True)
class Flag(SettingType[bool]):
    """Accept true or false."""

    _WORDS: ClassVar[dict[str, bool]] = {
        **dict.fromkeys(("true", "yes", "on", "1"), True),
        **dict.fromkeys(("false", "no", "off", "0"), False),
    }

    @property
    def allowed(self) -> str:
        """Describe the allowed values."""
        return "true or false"

    def from_text(self, text: str) -> object:
        """Convert the text of a variable or a flag."""
        return self._WORDS.get(text.strip().lower(), text)

    def parse(self, raw: object) -> bool:
        """Return the value, or raise ValueError if it is not allowed."""
        if not isinstance(raw, bool):
            raise ValueError("not a boolean")
        return raw

    def plain(self, value: bool) -> Plain:  # noqa: FBT001 - the type's value is a boolean
        """Return the value as a file would have it."""
        return value


@dataclass(frozen=True, slots=True)
class Choice(SettingType[W], Generic[W]):
    """Accept one of a few words."""

    choices: tuple[W, ...]

    @property
    def allowed(self) -> str:
        """Describe the allowed values."""
        return " or ".join(self.choices)

    def parse(self, raw: object) -> W:
        """Return the value, or raise ValueError if it is not allowed."""
        for choice in self.choices:
            if raw == choice:
                return choice
        raise ValueError("not one of the choices")

    def plain(self, value: W) -> Plain:
        """Return the value as a file would have it."""
        return value


@dataclass(frozen=True, slots=True)
class Text(SettingType[str]):
    """Accept a text that matches a pattern; `what` describes it in messages."""

    what: str
    pattern: str
    length_max: int

    @property
    def allowed(self) -> str:
        """Describe the allowed values."""
        return f"{self.what}, at most {self.length_max} characters"

    def parse(self, raw: object) -> str:
        """Return the value, or raise ValueError if it is not allowed."""
        if not isinstance(raw, str) or len(raw) > self.length_max or not re.fullmatch(self.pattern, raw):
            raise ValueError("does not match the pattern")
        return raw

    def plain(self, value: str) -> Plain:
        """Return the value as a file would have it."""
        return value


@dataclass(frozen=True, slots=True)
class Secret(SettingType[str]):
    """Accept a secret text that is never displayed."""

    what: str
    pattern: str
    secret: ClassVar[bool] = True

    @property
    def allowed(self) -> str:
        """Describe the allowed values."""
        return f'{self.what}, or ""'

    def parse(self, raw: object) -> str:
        """Return the value, or raise ValueError if it is not allowed."""
        if not isinstance(raw, str) or (raw and not re.fullmatch(self.pattern, raw)):
            raise ValueError("does not match the pattern")
        return raw

    def plain(self, value: str) -> Plain:
        """Return the value as a file would have it."""
        return value

    def conceal(self, value: str) -> Plain:
        """Return the value with its secrets masked."""
        return HIDDEN if value else ""


@dataclass(frozen=True, slots=True)
class FilePath(SettingType[str]):
    """Accept the path of a file or directory, or "" for none; `~/` is the home directory."""

    _MAX_LENGTH: ClassVar[int] = 1024

    @property
    def allowed(self) -> str:
        """Describe the allowed values."""
        return f'a path of printable characters, at most {self._MAX_LENGTH}, or ""'

    def parse(self, raw: object) -> str:
        """Return the value, or raise ValueError if it is not allowed."""
        if not isinstance(raw, str) or len(raw) > self._MAX_LENGTH or not raw.isprintable():
            raise ValueError("not a path")
        return raw

    def plain(self, value: str) -> Plain:
        """Return the value as a file would have it."""
        return value


@dataclass(frozen=True, slots=True)
class Dsn(SettingType[str]):
    """Accept a PostgreSQL URL, or "" for none."""

    secret: ClassVar[bool] = True

    @property
    def allowed(self) -> str:
        """Describe the allowed values."""
        return 'postgresql://USER:PASSWORD@HOST:PORT/DATABASE with special characters percent-encoded, or ""'

    def parse(self, raw: object) -> str:
        """Return the value, or raise ValueError if it is not allowed."""
        if not isinstance(raw, str):
            raise ValueError("not a string")
        if raw:
            check_dsn(raw)
        return raw

    def plain(self, value: str) -> Plain:
        """Return the value as a file would have it."""
        return value

    def conceal(self, value: str) -> Plain:
        """Return the value with its secrets masked."""
        return mask_dsn(value) if value else ""


@dataclass(frozen=True, slots=True)
class Url(SettingType[str]):
    """Accept a URL with one of the schemes, or "" for none."""

    schemes: tuple[str, ...]
    secret: ClassVar[bool] = True

    @property
    def allowed(self) -> str:
        """Describe the allowed values."""
        return f'a URL that starts with {_either(self.schemes)}, or ""'

    def parse(self, raw: object) -> str:
        """Return the value, or raise ValueError if it is not allowed."""
        if not isinstance(raw, str):
            raise ValueError("not a string")
        if raw:
            check_url(raw, schemes=self.schemes)
        return raw

    def plain(self, value: str) -> Plain:
        """Return the value as a file would have it."""
        return value

    def conceal(self, value: str) -> Plain:
        """Return the value with its secrets masked."""
        return mask_url(value) if value else ""


@dataclass(frozen=True, slots=True)
class UrlList(SettingType[tuple[str, ...]]):
    """Accept a list of different URLs with one of the schemes."""

    schemes: tuple[str, ...]
    secret: ClassVar[bool] = True

    @property
    def allowed(self) -> str:
        """Describe the allowed values."""
        begins = _either(self.schemes)
        return f"up to {_MAX_RPC_URLS} different URLs that start with {begins} (in a variable or flag: separated by commas)"

    def from_text(self, text: str) -> object:
        """Split the text of a variable or a flag at its commas."""
        # A variable that is set but empty is an error: it must not silently select the dev chain.
        return [part.strip() for part in text.split(",")]

    def parse(self, raw: object) -> tuple[str, ...]:
        """Return the value, or raise ValueError if it is not allowed."""
        if not isinstance(raw, list) or len(raw) > _MAX_RPC_URLS:
            raise ValueError("not a list of that length")
        for url in raw:
            if not isinstance(url, str):
                raise ValueError("not a string")
            check_url(url, schemes=self.schemes)
        if len(set(raw)) != len(raw):
            raise ValueError("a URL is given twice")
        return tuple(raw)

    def plain(self, value: tuple[str, ...]) -> Plain:
        """Return the value as a file would have it."""
        return list(value)

    def conceal(self, value: tuple[str, ...]) -> Plain:
        """Return the value with its secrets masked."""
        return [mask_url(url) for url in value]


@dataclass(frozen=True, slots=True)
class HeaderList(SettingType[tuple[tuple[str, str], ...]]):
    """Accept HTTP headers, each written `Name: value`. Their values are never displayed."""

    secret: ClassVar[bool] = True
    _MAX_HEADERS: ClassVar[int] = 20
    _HEADER: ClassVar[re.Pattern[str]] = re.compile(r"([A-Za-z0-9-]{1,100}): ?([!-~][ -~]{0,3999})")

    @property
    def allowed(self) -> str:
        """Describe the allowed values."""
        return f"up to {self._MAX_HEADERS} headers, each `Name: value` (in a variable or flag: on separate lines)"

    def from_text(self, text: str) -> object:
        """Split the text of a variable or a flag into lines."""
        return [line.strip() for line in text.splitlines() if line.strip()]

    def parse(self, raw: object) -> tuple[tuple[str, str], ...]:
        """Return the value, or raise ValueError if it is not allowed."""
        if not isinstance(raw, list) or len(raw) > self._MAX_HEADERS:
            raise ValueError("not a list of that length")
        headers = []
        for line in raw:
            found = self._HEADER.fullmatch(line) if isinstance(line, str) else None
            if found is None:
                raise ValueError("not a header")
            headers.append((found[1], found[2]))
        return tuple(headers)

    def plain(self, value: tuple[tuple[str, str], ...]) -> Plain:
        """Return the value as a file would have it."""
        return [f"{name}: {text}" for name, text in value]

    def conceal(self, value: tuple[tuple[str, str], ...]) -> Plain:
        """Return the value with its secrets masked."""
        return [f"{name}: {HIDDEN}" for name, _ in value]


def _either(schemes: Sequence[str]) -> str:
    return " or ".join(f"{scheme}://" for scheme in schemes)
