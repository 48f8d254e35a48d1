"""Who is at the door, and what they may do.

Without any key in the database the door is open, and then only on a loopback address: whoever can reach it is on this
machine already. From the first key on, every call needs one. A key's row is remembered for a moment, so a revocation
takes effect within `REMEMBER_S`. Rates are token buckets, one a key and node. A call that another node hands on has a
pass instead of a key, and was counted there.
"""

from __future__ import annotations

import ipaddress
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import lru_cache
from urllib.parse import urlsplit
from uuid import UUID

from fencepost.api.incoming import Incoming
from fencepost.api.problems import RETRY_AFTER_S, ApiError
from fencepost.application.api_keys import ApiKey, KeyStore, Scope, is_secret, split_token
from fencepost.application.forwarding import MOST_HOPS, PASS_HEADER, Pass, Passes, PassRefused
from fencepost.application.operate import Actor
from fencepost.application.remembered import Remembered
from fencepost.domain.ids import Address
from fencepost.errors import SettingError

REMEMBER_S = 2.0
MOST_REMEMBERED = 10_000
LONGEST_REMEMBERED = 300  # characters of a URL: nobody fills the memory with names
BURST_S = 1.0  # a bucket holds what its rate gives in this time, and at least one


@lru_cache(maxsize=1024)
def is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]").partition("%")[0]).is_loopback
    except ValueError:
        return False


def require_keys(host: str, keys_exist: bool) -> bool:  # noqa: FBT001 - it is a table of two columns
    """Whether callers need a key. Another address than loopback without any key is refused."""
    if keys_exist:
        return True
    if is_loopback(host):
        return False
    raise SettingError(
        f"api.host is {host}, which others can reach, and there is no API key:"
        " make one with `fencepost keys create`, or listen on 127.0.0.1"
    )


@dataclass(frozen=True, slots=True)
class Caller:
    """None for a key: a caller on this machine while there are no keys. It may do everything."""

    key: ApiKey | None
    came_with: Pass | None = None  # another node let the caller in, counted the call, and handed it on

    def allows(self, *scopes: Scope) -> bool:
        return self.key is None or any(self.key.allows(scope) for scope in scopes)

    def require(self, *scopes: Scope) -> None:
        if scopes and not self.allows(*scopes):
            raise ApiError("scope_missing", f"this needs {' or '.join(scopes)}")

    @property
    def addresses(self) -> tuple[Address, ...] | None:
        """The only signers that it may see; None is all of them."""
        if self.key is None or self.key.signers is None:
            return None
        return tuple(sorted(self.key.signers))

    def may_use(self, address: Address) -> bool:
        return self.key is None or self.key.signers is None or address in self.key.signers

    def require_signer(self, address: Address) -> None:
        if self.key is not None and not self.may_use(address):
            raise ApiError("signer_forbidden", f"this key has no right to {address}", field="signer")

    def actor(self, by: str | None) -> Actor:
        own = self.key.name if self.key is not None else "local"
        return Actor(f"{by} ({own})" if by else own, self.key.id if self.key is not None else None)


LOCAL = Caller(None)


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at_s: float


@dataclass(slots=True)
class Gate:
    keys: KeyStore
    host: str
    incarnation: UUID
    passes: Passes | None = None
    _buckets: OrderedDict[str, _Bucket] = field(default_factory=OrderedDict)
    _is_local: bool = field(init=False)  # only those on this machine can reach it
    _found: Remembered[str, tuple[ApiKey, bytes] | None] = field(init=False)
    _keys_exist: Remembered[None, bool] = field(init=False)

    def __post_init__(self) -> None:
        self._is_local = is_loopback(self.host)
        self._found = Remembered(self.keys.find, believe_s=REMEMBER_S, most=MOST_REMEMBERED)
        self._keys_exist = Remembered(lambda _: self.keys.exist(), believe_s=REMEMBER_S)

    async def admit(self, request: Incoming) -> Caller:
        given = request.headers.get("authorization")
        if given is not None:
            return Caller(await self._key_of(_bearer(given)))
        if self._is_local and not await self._keys_exist.get(None):
            _refuse_foreign_pages(request)
            return LOCAL
        raise ApiError("key_missing", "no API key was sent")

    async def admit_handed_on(self, request: Incoming) -> Caller:
        """Who has a pass instead of a key. Whether it is for what is asked is seen once the body is here."""
        if self.passes is None:
            raise ApiError("pass_refused", "routing.secret is not given at this node")
        try:
            came_with = self.passes.read(request.headers[PASS_HEADER])
        except PassRefused as error:
            raise ApiError("pass_refused", str(error)) from None
        if came_with.hops > MOST_HOPS:
            raise ApiError(
                "not_leader", f"handed on more than {MOST_HOPS} times", retry_after_s=RETRY_AFTER_S
            )
        if came_with.to != self.incarnation:
            raise ApiError("not_leader", "meant for another process", retry_after_s=RETRY_AFTER_S)
        if came_with.caller is None:
            if not self._is_local or await self._keys_exist.get(None):
                raise ApiError("key_missing", "the caller had no API key")
            return Caller(None, came_with)
        found = await self._found.get(came_with.caller)
        if found is None:
            raise ApiError("key_invalid", "the caller's API key is unknown or revoked")
        return Caller(found[0], came_with)

    async def _key_of(self, token: str) -> ApiKey:
        parts = split_token(token)
        found = await self._found.get(parts[0]) if parts is not None else None
        if parts is None or found is None or not is_secret(parts[1], found[1]):
            raise ApiError("key_invalid", "the API key is unknown or revoked")
        return found[0]

    def charge(self, caller: Caller, calls: int = 1) -> None:
        """A batch costs as many calls as it has requests; a bucket may go into debt for it once."""
        if caller.came_with is not None or caller.key is None or caller.key.rate_per_s is None:
            return
        rate = caller.key.rate_per_s
        most = max(1.0, rate * BURST_S)
        now_s = time.monotonic()
        bucket = self._buckets.setdefault(caller.key.id, _Bucket(most, now_s))
        bucket.tokens = min(most, bucket.tokens + (now_s - bucket.at_s) * rate)
        bucket.at_s = now_s
        if bucket.tokens < 1.0:
            raise ApiError(
                "rate_limited",
                f"this key may make {rate:g} calls a second",
                retry_after_s=(1.0 - bucket.tokens) / rate,
            )
        bucket.tokens -= calls
        self._buckets.move_to_end(caller.key.id)
        while len(self._buckets) > MOST_REMEMBERED:
            self._buckets.popitem(last=False)


def _bearer(given: str) -> str:
    scheme, _, token = given.partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise ApiError("key_invalid", "Authorization must be a Bearer token")
    return token.strip()


def _refuse_foreign_pages(request: Incoming) -> None:
    """An open door on this machine can be reached by any web page in a browser here: those are turned away.

    A page of another origin says so, and one that rebinds its name to our address has that name as the host.
    """
    host, origin = request.headers.get("host", ""), request.headers.get("origin")
    if not _names_here("//" + host) or (origin is not None and not _names_here(origin)):
        raise ApiError("origin_refused", "without API keys only programs on this machine are served")


def _names_here(url: str) -> bool:
    return _is_here(url) if len(url) <= LONGEST_REMEMBERED else _is_here.__wrapped__(url)


@lru_cache(maxsize=1024)
def _is_here(url: str) -> bool:
    try:
        return is_loopback(urlsplit(url).hostname or "")
    except ValueError:
        return False
