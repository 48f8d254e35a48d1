"""Define the transport-independent parts of a call (sans-I/O).

A call is a generator: it yields the next step, an HTTP request or a pause, receives the response, and returns its result.
`Client` and `AsyncClient` run the same generators over different transports.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import urlsplit

from fencepost.errors import InvalidRequest

T = TypeVar("T")

CONNECT_TIMEOUT_S = 5.0
MAX_RESPONSE_BYTES = 64 * 1024 * 1024
MAX_URL_CHARS = 2048


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """Address of a node: the part of its URL before `/api`."""

    is_tls: bool
    host: str
    port: int
    prefix: str

    @property
    def origin(self) -> str:
        """Return scheme, host and port as a URL."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.is_tls else 'http'}://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """Step: send an HTTP request to a node."""

    node: NodeAddress
    method: str
    target: str  # path and query, encoded
    headers: Mapping[str, str]
    body: bytes | None
    timeout_s: float
    is_repeatable: bool  # if not, use a new connection: a reused one may prove dead only after sending


@dataclass(frozen=True, slots=True)
class Pause:
    """Step: wait."""

    seconds: float


@dataclass(frozen=True, slots=True)
class NodeResponse:
    """Outcome of a request: the node's HTTP response."""

    status: int
    retry_after: str | None
    body: bytes


@dataclass(frozen=True, slots=True)
class NoResponse:
    """Outcome of a request without a response."""

    reason: str
    sent: bool  # whether the request may have arrived


Steps = Generator[HttpRequest | Pause, NodeResponse | NoResponse | None, T]
Pages = Callable[[str | None], Steps[tuple[list[T], str | None]]]
"""Fetch one page: takes a cursor (None for the first page), returns the items and the next cursor (None after the last)."""


def parse_node_url(url: str) -> NodeAddress:
    """Parse a node's URL. Error messages don't repeat it, because it may contain a password."""
    try:
        parts = urlsplit(url if len(url) <= MAX_URL_CHARS and url.isprintable() else "")
        port = parts.port
    except ValueError:
        raise InvalidRequest("the node's URL has no valid host and port", field="url") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or " " in url:
        raise InvalidRequest("the node's URL must be like http://HOST:PORT", field="url")
    if parts.username is not None or parts.query or parts.fragment:
        raise InvalidRequest(
            "the node's URL must not have a user, query or fragment; pass an API key as api_key", field="url"
        )
    is_tls = parts.scheme == "https"
    return NodeAddress(is_tls, parts.hostname, port or (443 if is_tls else 80), parts.path.rstrip("/"))


def describe(error: Exception) -> str:
    """Describe briefly why there was no response."""
    if isinstance(error, TimeoutError):
        return "no response in time"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error)[:200] or type(error).__name__
