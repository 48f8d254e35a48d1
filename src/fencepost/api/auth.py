"""Authenticate callers and check what they may do.

With `api.auth = open`, a node on a loopback address serves callers without a key until the first key is created: such
callers run on the same machine. From then on every request needs a key, also after all keys are revoked; the rows of
revoked keys are the record of that. Requests through a proxy are rejected while the node is open, because their
senders may be remote. A key's row is cached, so a revocation takes effect within `KEY_CACHE_S`. Rate limits are token
buckets, one per key and node. A request that another node forwards carries a forward token instead of a key, and that
node has already counted it.
"""

from __future__ import annotations

import ipaddress
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal
from urllib.parse import urlsplit
from uuid import UUID

from fencepost.api.problems import RETRY_AFTER_S, ApiError
from fencepost.api.request import IncomingRequest
from fencepost.application.api_keys import ApiKey, KeyStore, Scope, is_secret, split_token
from fencepost.application.forwarding import (
    FORWARD_TOKEN_HEADER,
    MAX_HOPS,
    ForwardToken,
    ForwardTokenRejected,
    ForwardTokens,
)
from fencepost.application.ports import Actor
from fencepost.application.ttl_cache import TtlCache
from fencepost.domain.ids import Address
from fencepost.errors import SettingError
from fencepost.http.connection_limits import peer_name

KEY_CACHE_S = 2.0
MAX_CACHED = 10_000
MAX_CACHED_URL_CHARS = 300  # characters of a cached URL, so that callers can't fill the memory
BURST_S = 1.0  # a bucket holds the tokens of this time, and at least one


@lru_cache(maxsize=1024)
def is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]").partition("%")[0]).is_loopback
    except ValueError:
        return False


Auth = Literal["open", "required"]


def require_keys(host: str, *, auth: Auth, keys_exist: bool) -> bool:
    """Return whether callers need a key; reject an open node on an address that other machines can reach."""
    if keys_exist or auth == "required":
        return True
    if is_loopback(host):
        return False
    raise SettingError(
        f"api.host is {host}, which other machines can reach, and there is no API key:"
        " create one with `fencepost keys create`, set api.auth = required, or listen on 127.0.0.1"
    )


@dataclass(frozen=True, slots=True)
class Caller:
    """An authenticated caller. Without a key it is a program on this machine of an open node, and may do everything."""

    key: ApiKey | None
    forward_token: ForwardToken | None = None  # set if another node authenticated, counted and forwarded it

    def allows(self, *scopes: Scope) -> bool:
        return self.key is None or any(self.key.allows(scope) for scope in scopes)

    def require(self, *scopes: Scope) -> None:
        if scopes and not self.allows(*scopes):
            raise ApiError("scope_missing", f"the operation needs the scope {' or '.join(scopes)}")

    @property
    def addresses(self) -> tuple[Address, ...] | None:
        """Return the signers that the caller may see; None means all."""
        if self.key is None or self.key.signers is None:
            return None
        return tuple(sorted(self.key.signers))

    @property
    def is_node_admin(self) -> bool:
        """Return whether the caller may administer a node: a key that is limited to some signers may not."""
        return self.key is None or (self.key.signers is None and self.key.allows(Scope.ADMIN))

    def may_use(self, address: Address) -> bool:
        return self.key is None or self.key.signers is None or address in self.key.signers

    def require_signer(self, address: Address) -> None:
        if self.key is not None and not self.may_use(address):
            raise ApiError("signer_forbidden", f"this API key may not use {address}", field="signer")

    def actor(self, by: str | None) -> Actor:
        own = self.key.name if self.key is not None else "local"
        return Actor(f"{by} ({own})" if by else own, self.key.id if self.key is not None else None)


LOCAL = Caller(None)


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at_s: float


@dataclass(slots=True)
class FailureLimit:
    """Limit failed authentications per peer: `burst` at once, then `per_s` per second."""

    burst: int = 20
    per_s: float = 1.0
    now_s: Callable[[], float] = time.monotonic
    _full_at_s: OrderedDict[str, float] = field(
        default_factory=OrderedDict
    )  # when all failures of a peer are forgotten

    def wait_s(self, peer: str) -> float:
        """Return the seconds until the peer may fail again; 0 if it may now."""
        left_s = self._full_at_s.get(peer, 0.0) - self.now_s()
        return max(0.0, left_s - (self.burst - 1) / self.per_s)

    def count(self, peer: str) -> None:
        now_s = self.now_s()
        # Bounded, so that the limit ends soon after a long attack.
        forgotten_s = max(now_s, self._full_at_s.get(peer, 0.0)) + 1 / self.per_s
        self._full_at_s[peer] = min(forgotten_s, now_s + (self.burst + 1) / self.per_s)
        self._full_at_s.move_to_end(peer)
        while len(self._full_at_s) > MAX_CACHED:
            self._full_at_s.popitem(last=False)


@dataclass(slots=True)
class Authenticator:
    keys: KeyStore
    host: str
    incarnation: UUID
    forward_tokens: ForwardTokens | None = None
    auth: Auth = "open"
    max_waits_per_key: int = 256
    max_streams_per_key: int = 64
    _waits: Counter[str] = field(default_factory=Counter)
    _streams: Counter[str] = field(default_factory=Counter)
    _buckets: OrderedDict[str, _Bucket] = field(default_factory=OrderedDict)
    _may_be_open: bool = field(init=False)  # until the first key exists
    _failures: FailureLimit = field(default_factory=FailureLimit)
    _proven: OrderedDict[str, None] = field(default_factory=OrderedDict)  # ids of keys that were valid here
    _found: TtlCache[str, tuple[ApiKey, bytes] | None] = field(init=False)
    _keys_exist: TtlCache[None, bool] = field(init=False)

    def __post_init__(self) -> None:
        self._may_be_open = self.auth == "open" and is_loopback(self.host)
        self._found = TtlCache(self.keys.find, ttl_s=KEY_CACHE_S, max_entries=MAX_CACHED)
        self._keys_exist = TtlCache(lambda _: self.keys.exist(), ttl_s=KEY_CACHE_S)

    async def admit(self, request: IncomingRequest) -> Caller:
        given = request.headers.get("authorization")
        if given is not None:
            return Caller(await self._authenticate(given, peer_name(request.scope.get("client"))))
        if await self._is_open():
            require_same_machine(request)
            return LOCAL
        raise ApiError("key_missing", "the request has no API key")

    async def admit_metrics(self, request: IncomingRequest) -> Caller:
        """Admit programs on this machine without a key; other callers need a key that may read all signers."""
        if "authorization" not in request.headers and is_loopback(self.host):
            try:
                require_same_machine(request)
            except ApiError:
                raise ApiError(
                    "key_missing", "the request has no API key and does not come from this machine"
                ) from None
            return LOCAL
        caller = await self.admit(request)
        self.charge(caller)
        caller.require(Scope.TX_READ)
        if caller.addresses is not None:
            raise ApiError("scope_missing", "the operation needs a key that is not limited to signers")
        return caller

    async def _is_open(self) -> bool:
        """Return whether callers without a key are served. Once a key exists, they never are again."""
        if self._may_be_open and await self._keys_exist.get(None):
            self._may_be_open = False
        return self._may_be_open

    async def admit_forwarded(self, request: IncomingRequest) -> Caller:
        """Admit a request with a forward token. The pipeline compares the token's digest after it has read the body."""
        if self.forward_tokens is None:
            raise ApiError("pass_refused", "this node has no routing.secret")
        try:
            forward_token = self.forward_tokens.read(request.headers[FORWARD_TOKEN_HEADER])
        except ForwardTokenRejected as error:
            raise ApiError("pass_refused", str(error)) from None
        if forward_token.hops > MAX_HOPS:
            raise ApiError(
                "not_leader",
                f"the request was forwarded more than {MAX_HOPS} times",
                retry_after_s=RETRY_AFTER_S,
            )
        if forward_token.to != self.incarnation:
            raise ApiError(
                "not_leader", "the forward token names another process", retry_after_s=RETRY_AFTER_S
            )
        if forward_token.caller is None:
            if not await self._is_open():
                raise ApiError("key_missing", "the forwarded request has no API key")
            return Caller(None, forward_token)
        found = await self._found.get(forward_token.caller)
        if found is None:
            raise ApiError("key_invalid", "the caller's API key is unknown or revoked")
        return Caller(found[0], forward_token)

    async def _authenticate(self, given: str, peer: str) -> ApiKey:
        """Return the key of an `Authorization` header.

        Failures are limited per peer. Beyond the limit only keys that were valid before are looked up: guesses cost no
        statement, and callers with a valid key behind the same address are still served.
        """
        parts = split_token(_bearer(given))
        wait_s = self._failures.wait_s(peer)
        if wait_s and (parts is None or parts[0] not in self._proven):
            raise _throttled(wait_s)
        found = await self._found.get(parts[0]) if parts is not None else None
        if parts is None or found is None or not is_secret(parts[1], found[1]):
            self._failures.count(peer)
            raise (
                _throttled(wait_s) if wait_s else ApiError("key_invalid", "the API key is unknown or revoked")
            )
        self._proven[parts[0]] = None
        self._proven.move_to_end(parts[0])
        while len(self._proven) > MAX_CACHED:
            self._proven.popitem(last=False)
        return found[0]

    @contextmanager
    def waiting(self, caller: Caller, calls: int = 1) -> Iterator[None]:
        """Count requests that wait; raise `rate_limited` beyond `max_waits_per_key` at this node."""
        if caller.forward_token is not None or caller.key is None or not calls:
            yield
            return
        key_id = caller.key.id
        if self._waits[key_id] + calls > self.max_waits_per_key:
            raise ApiError(
                "rate_limited",
                f"{self._waits[key_id]} requests with this key are waiting, and the limit is {self.max_waits_per_key}:"
                " send requests without wait, or poll /api/v1/completions",
                retry_after_s=RETRY_AFTER_S,
            )
        self._waits[key_id] += calls
        try:
            yield
        finally:
            self._waits[key_id] -= calls
            if not self._waits[key_id]:
                del self._waits[key_id]

    def open_stream(self, caller: Caller) -> Callable[[], None]:
        """Count a stream and return the function that ends it; raise `rate_limited` beyond `max_streams_per_key`."""
        name = "" if caller.key is None else caller.key.id
        if self._streams[name] >= self.max_streams_per_key:
            raise ApiError(
                "rate_limited",
                f"{self._streams[name]} event streams of this caller are open, and the limit is"
                f" {self.max_streams_per_key}: close one, or raise api.max_streams_per_key",
                retry_after_s=RETRY_AFTER_S,
            )
        self._streams[name] += 1

        def end() -> None:
            self._streams[name] -= 1
            if not self._streams[name]:
                del self._streams[name]

        return end

    def charge(self, caller: Caller, calls: int = 1) -> None:
        """Take tokens from the key's bucket; raise `rate_limited` if it is empty.

        A batch costs one token per request, and may take the bucket below zero once.
        """
        if caller.forward_token is not None or caller.key is None or caller.key.rate_per_s is None:
            return
        rate = caller.key.rate_per_s
        maximum = max(1.0, rate * BURST_S)
        now_s = time.monotonic()
        bucket = self._buckets.setdefault(caller.key.id, _Bucket(maximum, now_s))
        bucket.tokens = min(maximum, bucket.tokens + (now_s - bucket.at_s) * rate)
        bucket.at_s = now_s
        if bucket.tokens < 1.0:
            raise ApiError(
                "rate_limited",
                f"the limit of this API key is {rate:g} requests per second",
                retry_after_s=(1.0 - bucket.tokens) / rate,
            )
        bucket.tokens -= calls
        self._buckets.move_to_end(caller.key.id)
        while len(self._buckets) > MAX_CACHED:
            self._buckets.popitem(last=False)


def _bearer(given: str) -> str:
    scheme, _, token = given.partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise ApiError("key_invalid", "Authorization must be a Bearer token")
    return token.strip()


def _throttled(wait_s: float) -> ApiError:
    return ApiError(
        "auth_throttled", "too many invalid API keys came from this address", retry_after_s=wait_s
    )


def require_same_machine(request: IncomingRequest) -> None:
    """Reject requests that reach a loopback address but do not come from a program on this machine.

    A proxy on this machine forwards remote requests and adds a header. A web page in a local browser sends its origin;
    after DNS rebinding it sends its own name as the host.
    """
    for name in request.headers:
        # Some proxies and gateways write `_` for `-`.
        if (plain := name.replace("_", "-")) in _PROXY_HEADERS or plain.startswith("x-forwarded"):
            raise ApiError(
                "proxy_refused", f"the header {name[:60]} shows that the request came through a proxy"
            )
    host, origin = request.headers.get("host", ""), request.headers.get("origin")
    if not _is_local_url("//" + host) or (origin is not None and not _is_local_url(origin)):
        raise ApiError("origin_refused", "without API keys, only programs on this machine are served")


# Headers of reverse proxies, tunnels and content delivery networks. They name the remote client or the way of the request.
_PROXY_HEADERS = frozenset(
    {
        "cdn-loop",
        "cf-connecting-ip",
        "client-ip",
        "fastly-client-ip",
        "fly-client-ip",
        "forwarded",
        "true-client-ip",
        "via",
        "x-client-ip",
        "x-cluster-client-ip",
        "x-envoy-external-address",
        "x-original-forwarded-for",
        "x-original-host",
        "x-proxyuser-ip",
        "x-real-ip",
    }
)


def _is_local_url(url: str) -> bool:
    return (
        _is_local_url_cached(url)
        if len(url) <= MAX_CACHED_URL_CHARS
        else _is_local_url_cached.__wrapped__(url)
    )


@lru_cache(maxsize=1024)
def _is_local_url_cached(url: str) -> bool:
    try:
        return is_loopback(urlsplit(url).hostname or "")
    except ValueError:
        return False
