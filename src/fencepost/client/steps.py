"""What a call to a node is made of, without doing any of it.

A call is a generator: it yields what shall happen next, a request to send or a pause, is told the outcome, and returns
its result. `Client` and `AsyncClient` are two ways to walk through the same generators.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import urlsplit

from fencepost.errors import InvalidRequest

T = TypeVar("T")

CONNECT_WITHIN_S = 5.0
MOST_ANSWER_BYTES = 64 * 1024 * 1024
MOST_URL_CHARS = 2048


@dataclass(frozen=True, slots=True)
class Base:
    """Where a node is: everything of its URL before `/api`."""

    is_tls: bool
    host: str
    port: int
    prefix: str

    @property
    def origin(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.is_tls else 'http'}://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Send:
    base: Base
    method: str
    target: str  # path and query, encoded
    headers: Mapping[str, str]
    body: bytes | None
    timeout_s: float
    is_repeatable: (
        bool  # if not, it goes over a new connection: an old one may turn out to be dead only after sending
    )


@dataclass(frozen=True, slots=True)
class Pause:
    seconds: float


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    retry_after: str | None
    body: bytes


@dataclass(frozen=True, slots=True)
class NoAnswer:
    reason: str
    sent: bool  # it may have arrived


Steps = Generator[Send | Pause, Answer | NoAnswer | None, T]
Pages = Callable[[str | None], Steps[tuple[list[T], str | None]]]
"""From a cursor, None at the beginning, to items and the next cursor, None at the end."""


def parse_base(url: str) -> Base:
    """Messages don't repeat the URL: what is wrong with it may be a password in it."""
    try:
        parts = urlsplit(url if len(url) <= MOST_URL_CHARS and url.isprintable() else "")
        port = parts.port
    except ValueError:
        raise InvalidRequest("the node's URL has no valid host and port", field="url") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or " " in url:
        raise InvalidRequest("the node's URL must be like http://HOST:PORT", field="url")
    if parts.username is not None or parts.query or parts.fragment:
        raise InvalidRequest(
            "the node's URL may have no user, query or fragment; a key goes into api_key", field="url"
        )
    is_tls = parts.scheme == "https"
    return Base(is_tls, parts.hostname, port or (443 if is_tls else 80), parts.path.rstrip("/"))


def told(error: Exception) -> str:
    """Why there was no answer, in a few words."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error)[:200] or type(error).__name__
