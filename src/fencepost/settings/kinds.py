"""Kinds of values: how each is read, what is allowed, and how it is written back. Numbers stand in `quantities`.

A kind is a value itself, made once in the declaration. `parse` takes what TOML gave (floats come as Decimal) and raises
ValueError for everything that `allowed` does not name; `from_text` turns the text of a variable or a flag into what
TOML would have given. `plain` writes a parsed value the way a file would, `conceal` the same for people's eyes. No
message here ever repeats a value: the caller knows whether it is a secret.
"""

# ruff: noqa: TRY004 - one exception type says "not allowed" for all kinds

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

_RPC_URLS_MAX = 32


class Kind(ABC, Generic[T]):
    """`suffix` is the unit that the Python name carries and the key does not."""

    __slots__ = ()
    suffix: ClassVar[str] = ""
    secret: ClassVar[bool] = False

    @property
    @abstractmethod
    def allowed(self) -> str: ...

    @abstractmethod
    def parse(self, raw: object) -> T: ...

    def from_text(self, text: str) -> object:
        return text

    @abstractmethod
    def plain(self, value: T) -> Plain: ...

    def conceal(self, value: T) -> Plain:
        return self.plain(value)


@dataclass(frozen=True, slots=True)
class Flag(Kind[bool]):
    _WORDS: ClassVar[dict[str, bool]] = {
        **dict.fromkeys(("true", "yes", "on", "1"), True),
        **dict.fromkeys(("false", "no", "off", "0"), False),
    }

    @property
    def allowed(self) -> str:
        return "true or false"

    def from_text(self, text: str) -> object:
        return self._WORDS.get(text.strip().lower(), text)

    def parse(self, raw: object) -> bool:
        if not isinstance(raw, bool):
            raise ValueError("not a truth value")
        return raw

    def plain(self, value: bool) -> Plain:  # noqa: FBT001 - the kind's value is a truth value
        return value


@dataclass(frozen=True, slots=True)
class Choice(Kind[W], Generic[W]):
    choices: tuple[W, ...]

    @property
    def allowed(self) -> str:
        return " or ".join(self.choices)

    def parse(self, raw: object) -> W:
        for choice in self.choices:
            if raw == choice:
                return choice
        raise ValueError("not one of the choices")

    def plain(self, value: W) -> Plain:
        return value


@dataclass(frozen=True, slots=True)
class Text(Kind[str]):
    """A short printable text; `what` names it in messages."""

    what: str
    pattern: str
    length_max: int

    @property
    def allowed(self) -> str:
        return f"{self.what}, at most {self.length_max} characters"

    def parse(self, raw: object) -> str:
        if not isinstance(raw, str) or len(raw) > self.length_max or not re.fullmatch(self.pattern, raw):
            raise ValueError("not such a text")
        return raw

    def plain(self, value: str) -> Plain:
        return value


@dataclass(frozen=True, slots=True)
class Secret(Kind[str]):
    """A text that nobody is shown."""

    what: str
    pattern: str
    secret: ClassVar[bool] = True

    @property
    def allowed(self) -> str:
        return f'{self.what}, or ""'

    def parse(self, raw: object) -> str:
        if not isinstance(raw, str) or (raw and not re.fullmatch(self.pattern, raw)):
            raise ValueError("not such a text")
        return raw

    def plain(self, value: str) -> Plain:
        return value

    def conceal(self, value: str) -> Plain:
        return HIDDEN if value else ""


@dataclass(frozen=True, slots=True)
class FilePath(Kind[str]):
    """The path of a file or directory, or "" for none; `~/` is the home directory."""

    _LENGTH_MAX: ClassVar[int] = 1024

    @property
    def allowed(self) -> str:
        return f'a path of printable characters, at most {self._LENGTH_MAX}, or ""'

    def parse(self, raw: object) -> str:
        if not isinstance(raw, str) or len(raw) > self._LENGTH_MAX or not raw.isprintable():
            raise ValueError("not a path")
        return raw

    def plain(self, value: str) -> Plain:
        return value


@dataclass(frozen=True, slots=True)
class Dsn(Kind[str]):
    secret: ClassVar[bool] = True

    @property
    def allowed(self) -> str:
        return 'postgresql://USER:PASSWORD@HOST:PORT/DATABASE with special characters percent-encoded, or ""'

    def parse(self, raw: object) -> str:
        if not isinstance(raw, str):
            raise ValueError("not a text")
        if raw:
            check_dsn(raw)
        return raw

    def plain(self, value: str) -> Plain:
        return value

    def conceal(self, value: str) -> Plain:
        return mask_dsn(value) if value else ""


@dataclass(frozen=True, slots=True)
class Url(Kind[str]):
    schemes: tuple[str, ...]
    secret: ClassVar[bool] = True

    @property
    def allowed(self) -> str:
        return f'a URL that begins with {_either(self.schemes)}, or ""'

    def parse(self, raw: object) -> str:
        if not isinstance(raw, str):
            raise ValueError("not a text")
        if raw:
            check_url(raw, schemes=self.schemes)
        return raw

    def plain(self, value: str) -> Plain:
        return value

    def conceal(self, value: str) -> Plain:
        return mask_url(value) if value else ""


@dataclass(frozen=True, slots=True)
class UrlList(Kind[tuple[str, ...]]):
    schemes: tuple[str, ...]
    secret: ClassVar[bool] = True

    @property
    def allowed(self) -> str:
        begins = _either(self.schemes)
        return f"up to {_RPC_URLS_MAX} different URLs that begin with {begins} (in a variable or flag: commas between)"

    def from_text(self, text: str) -> object:
        # Whoever sets the variable wants a node: empty text must not quietly become "no node, so the dev chain".
        return [part.strip() for part in text.split(",")]

    def parse(self, raw: object) -> tuple[str, ...]:
        if not isinstance(raw, list) or len(raw) > _RPC_URLS_MAX:
            raise ValueError("not a list of that length")
        for url in raw:
            if not isinstance(url, str):
                raise ValueError("not a text")
            check_url(url, schemes=self.schemes)
        if len(set(raw)) != len(raw):
            raise ValueError("a URL stands twice")
        return tuple(raw)

    def plain(self, value: tuple[str, ...]) -> Plain:
        return list(value)

    def conceal(self, value: tuple[str, ...]) -> Plain:
        return [mask_url(url) for url in value]


def _either(schemes: Sequence[str]) -> str:
    return " or ".join(f"{scheme}://" for scheme in schemes)
