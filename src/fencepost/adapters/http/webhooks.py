"""Send webhooks over HTTP without reaching private networks.

A host name is resolved here, every address is checked, and the connection goes to an address that was checked: a name that resolves
differently a moment later changes nothing. The same check is made when a socket is created, so a literal address can't pass
either. Redirects are not followed, proxies of the environment are not used, TLS is verified, and time, connections and the part
of the response that is read are bounded.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from ssl import SSLContext
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from fencepost.events.subscriptions import MAX_ANSWER_BYTES
from fencepost.events.webhooks import Answer

MAX_CONNECTIONS = 256
MAX_IDLE_S = 10.0
MAX_HEADER_BYTES = 8190
_SUCCESS = range(200, 300)
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


class AddressForbidden(OSError):
    """Report that an endpoint resolves to an address that is not public."""


def is_public(text: str) -> bool:
    """Return whether an IP address is in the public internet; also of the IPv4 address that an IPv6 address contains."""
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if inner is None and address in _NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
        if inner is not None:
            return is_public(str(inner))
        if address.teredo is not None or address.is_site_local:
            return False
    return address.is_global and not address.is_multicast and not address.is_reserved


class CheckedResolver(AbstractResolver):
    """Resolve a host, and fail if any of its addresses is private."""

    def __init__(self, resolver: AbstractResolver, *, allow_private: bool) -> None:
        self._resolver = resolver
        self._allow_private = allow_private

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self._resolver.resolve(host, port, family)
        if not self._allow_private and not all(is_public(one["host"]) for one in found):
            raise AddressForbidden(
                "the host resolves to a private address, which events.webhook.allow_private forbids"
            )
        return found

    async def close(self) -> None:
        await self._resolver.close()


class WebhookSender:
    """Send webhooks. One HTTP client serves all endpoints."""

    def __init__(
        self,
        *,
        timeout_s: float,
        allow_private: bool,
        max_in_flight: int,
        ssl: SSLContext | None = None,
        resolver: AbstractResolver | None = None,
    ) -> None:
        self._timeout_s = timeout_s
        self._allow_private = allow_private
        self._max_in_flight = max_in_flight
        self._ssl = ssl
        self._resolver = resolver
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def __call__(self, url: str, headers: dict[str, str], body: bytes) -> Answer:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._post(url, headers, body)
        except TimeoutError:
            return Answer(None, f"no answer within {self._timeout_s:g} s")
        except AddressForbidden as error:
            return Answer(None, str(error))
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return Answer(None, _reason(error))

    async def _post(self, url: str, headers: dict[str, str], body: bytes) -> Answer:
        async with self._opened().post(
            URL(url), data=body, headers={"user-agent": "Fencepost", **headers}, allow_redirects=False
        ) as response:
            answer = (await _first_bytes(response)).decode(errors="replace")
            if response.status in _SUCCESS:
                return Answer(response.status, None, answer)
            retry_after_s = _retry_after_s(response.headers.get("retry-after"))
            return Answer(response.status, f"the endpoint answered {response.status}", answer, retry_after_s)

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            resolver = self._resolver or aiohttp.ThreadedResolver()
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=MAX_CONNECTIONS,
                    limit_per_host=self._max_in_flight,
                    resolver=CheckedResolver(resolver, allow_private=self._allow_private),
                    use_dns_cache=False,
                    keepalive_timeout=MAX_IDLE_S,
                    ssl=True if self._ssl is None else self._ssl,
                    socket_factory=self._open_socket,
                ),
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                max_line_size=MAX_HEADER_BYTES,
                max_field_size=MAX_HEADER_BYTES,
                read_bufsize=MAX_ANSWER_BYTES,
                timeout=aiohttp.ClientTimeout(total=None),
                trust_env=False,
            )
        return self._session

    def _open_socket(self, info: Any) -> socket.socket:
        """Open a socket for a connection; the last check before the connection is made."""
        family, kind, protocol, _, address = info
        if not self._allow_private and not is_public(str(address[0])):
            raise AddressForbidden(
                "the endpoint has a private address, which events.webhook.allow_private forbids"
            )
        return socket.socket(family, kind, protocol)


async def _first_bytes(response: aiohttp.ClientResponse) -> bytes:
    """Read the beginning of the body; close the connection if there is more."""
    found = b""
    while len(found) < MAX_ANSWER_BYTES:
        chunk = await response.content.read(MAX_ANSWER_BYTES - len(found))
        if not chunk:
            return found
        found += chunk
    if not response.content.at_eof():
        response.close()
    return found


def _retry_after_s(text: str | None) -> float | None:
    """Return the seconds of a `Retry-After` header, which is a number or a date; None if it is neither."""
    if text is None:
        return None
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        at = parsedate_to_datetime(text)
    except ValueError:
        return None
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return max(0.0, (at - datetime.now(UTC)).total_seconds())


def _reason(error: Exception) -> str:
    """Return a short text for a failed connection. It never contains what was sent."""
    inner = error.__cause__ or error
    if isinstance(inner, AddressForbidden):
        return str(inner)
    return f"no answer: {type(error).__name__}: {str(error)[:200]}"
