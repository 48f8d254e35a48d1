"""Define forwarded requests and the forward token that authenticates them between nodes.

A node that gets a request and does not hold the signer's lease may forward it to the lease holder. It does not send the
caller's API token. It sends a forward token, which names the caller (the id of the API key), the receiving process, the
time, the number of hops and a digest of the request (method, path, query, relevant headers and body). The token is
authenticated with HMAC-SHA256 and the secret that all nodes share. It is valid once, for `TOKEN_TTL_S`, at one process: an
intercepted token can't be used again, at another node, or for another request.

Text form: `1.<hops>.<key id or ->.<receiver>.<milliseconds>.<once>.<digest>.<seal>`
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Protocol
from uuid import UUID

MAX_HOPS = 2
TOKEN_TTL_S = 60.0
MAX_SEEN_TOKENS = 200_000  # used tokens within the TTL; beyond this, further tokens are rejected

FORWARD_TOKEN_HEADER = "x-fencepost-pass"  # noqa: S105 - the name of a header, no secret
# Request headers that are forwarded unchanged; the digest protects them.
FORWARDED_HEADERS = ("idempotency-key", "prefer")

_ONCE_BYTES = 16
_FORM = re.compile(
    r"1\.(?P<hops>[0-9]{1,3})\.(?P<caller>-|[0-9a-f]{1,64})\.(?P<to>[0-9a-f]{32})\.(?P<at_ms>[0-9]{1,15})"
    r"\.(?P<once>[0-9a-f]{32})\.(?P<digest>[0-9a-f]{64})\.(?P<seal>[0-9a-f]{64})"
)


@dataclass(frozen=True, slots=True)
class ForwardRequest:
    """A request to forward. `target` is path and query; `headers` has those of `FORWARDED_HEADERS` that were sent."""

    method: str
    target: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        hasher = hashlib.sha256()
        parts = [self.method, self.target]
        for name in FORWARDED_HEADERS:
            given = self.headers.get(name)
            parts += [name, "absent"] if given is None else [name, "given", given]
        for part in (*(part.encode() for part in parts), self.body):
            hasher.update(
                len(part).to_bytes(8, "big")
            )  # so that different lists of parts never hash the same bytes
            hasher.update(part)
        return hasher.hexdigest()


@dataclass(frozen=True, slots=True)
class ForwardToken:
    hops: int  # how often the request was forwarded, including this time
    caller: str | None  # the id of the caller's API key; None: no key, where none is required
    to: UUID  # the incarnation of the receiving process
    digest: str


class ForwardTokenRejected(ValueError):
    """The forward token is invalid, expired or already used."""


@dataclass(slots=True)
class ForwardTokens:
    """Create forward tokens for other nodes and verify received ones."""

    secret: str = field(repr=False)
    now_s: Callable[[], float] = time.time
    max_seen: int = MAX_SEEN_TOKENS
    _seen: OrderedDict[str, float] = field(default_factory=OrderedDict)  # when each expires

    def make(self, request: ForwardRequest, *, to: UUID, caller: str | None, hops: int) -> str:
        at_ms = int(self.now_s() * 1000)
        once = secrets.token_hex(_ONCE_BYTES)
        text = f"1.{hops}.{caller or '-'}.{to.hex}.{at_ms}.{once}.{request.digest}"
        return f"{text}.{self._seal(text)}"

    def read(self, text: str) -> ForwardToken:
        """Verify a token and mark it as used. Raises `ForwardTokenRejected`, also for a token that was used before."""
        found = _FORM.fullmatch(text)
        if found is None:
            raise ForwardTokenRejected("the forward token is malformed")
        if not hmac.compare_digest(self._seal(text.rpartition(".")[0]), found["seal"]):
            raise ForwardTokenRejected(
                "the forward token has a wrong signature: routing.secret must be the same on every node"
            )
        at_s = int(found["at_ms"]) / 1000
        if abs(self.now_s() - at_s) > TOKEN_TTL_S:
            raise ForwardTokenRejected(
                f"the forward token was created more than {TOKEN_TTL_S:g} s ago or ahead: check the nodes' clocks"
            )
        self._use_up(found["once"], at_s + TOKEN_TTL_S)
        caller = None if found["caller"] == "-" else found["caller"]
        return ForwardToken(int(found["hops"]), caller, UUID(hex=found["to"]), found["digest"])

    def _use_up(self, once: str, until_s: float) -> None:
        now_s = self.now_s()
        # They are nearly in the order of expiry: one that expires before its predecessor is kept a little longer.
        while self._seen and next(iter(self._seen.values())) < now_s:
            self._seen.popitem(last=False)
        if once in self._seen:
            raise ForwardTokenRejected("the forward token was used before")
        if len(self._seen) >= self.max_seen:
            raise ForwardTokenRejected(
                f"more than {self.max_seen} forward tokens were used within {TOKEN_TTL_S:g} s"
            )
        self._seen[once] = until_s

    def _seal(self, text: str) -> str:
        return hmac.new(self.secret.encode(), text.encode(), hashlib.sha256).hexdigest()


@dataclass(frozen=True, slots=True)
class ForwardResponse:
    """The lease holder's response. `headers` has those that the caller needs, with lower-case names."""

    status: int
    body: bytes
    media_type: str
    headers: Mapping[str, str]


class NoForwardResponse(Enum):
    NOT_EXECUTED = auto()  # the lease holder certainly did nothing
    UNKNOWN = auto()  # the lease holder may have executed it


class Forwarder(Protocol):
    async def __call__(
        self, owner: str, request: ForwardRequest, *, caller: str | None, hops: int, wait_s: float
    ) -> ForwardResponse | NoForwardResponse:
        """Forward a request to the node with this name.

        `hops` includes this time. `wait_s` is how long the request itself waits for a milestone.
        """
        ...
