"""A call on its way from one node to another: the pass that it carries, and what can come of it.

A node that takes a caller's call and is not the signer's owner may hand it on. The caller's token stays behind: a pass
goes along that says who the caller is (the id of the key), which process it is for, when it was made, how often the
call was handed on, and what exactly is asked (a digest of method, path, query, the headers that matter and the body).
It is sealed with HMAC-SHA256 by the secret that the nodes share. A pass is good once, for `GOOD_FOR_S`, at one process:
whoever overhears one can't use it again, elsewhere, or for something else.

As text: `1.<hops>.<key id or ->.<for whom>.<milliseconds>.<once>.<digest>.<seal>`
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

MOST_HOPS = 2
GOOD_FOR_S = 60.0
MOST_REMEMBERED = 200_000  # passes seen; with more than that in their time, the rest is refused

PASS_HEADER = "x-fencepost-pass"  # noqa: S105 - the name of a header, no secret
# What a caller can ask for beside the body; they go along as they are, and nobody may change them on the way.
CARRIED = ("idempotency-key", "prefer")

_ONCE_BYTES = 16
_FORM = re.compile(
    r"1\.(?P<hops>[0-9]{1,3})\.(?P<caller>-|[0-9a-f]{1,64})\.(?P<to>[0-9a-f]{32})\.(?P<at_ms>[0-9]{1,15})"
    r"\.(?P<once>[0-9a-f]{32})\.(?P<digest>[0-9a-f]{64})\.(?P<seal>[0-9a-f]{64})"
)


@dataclass(frozen=True, slots=True)
class Asked:
    """A call as it goes over the wire. `target` is path and query, `headers` those of `CARRIED` that were given."""

    method: str
    target: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        told = hashlib.sha256()
        parts = [self.method, self.target]
        for name in CARRIED:
            given = self.headers.get(name)
            parts += [name, "absent"] if given is None else [name, "given", given]
        for part in (*(part.encode() for part in parts), self.body):
            told.update(len(part).to_bytes(8, "big"))  # no two lists of parts read the same
            told.update(part)
        return told.hexdigest()


@dataclass(frozen=True, slots=True)
class Pass:
    hops: int  # how often the call was handed on, this time included
    caller: str | None  # the id of the caller's key; None: a caller without one, where none are needed
    to: UUID  # the process that it is for, by its incarnation
    digest: str


class PassRefused(ValueError):
    """It is no pass of ours, or not any more."""


@dataclass(slots=True)
class Passes:
    """Makes passes for others, and reads those that come here."""

    secret: str = field(repr=False)
    now_s: Callable[[], float] = time.time
    most_remembered: int = MOST_REMEMBERED
    _seen: OrderedDict[str, float] = field(default_factory=OrderedDict)  # until when each matters

    def make(self, asked: Asked, *, to: UUID, caller: str | None, hops: int) -> str:
        at_ms = int(self.now_s() * 1000)
        once = secrets.token_hex(_ONCE_BYTES)
        text = f"1.{hops}.{caller or '-'}.{to.hex}.{at_ms}.{once}.{asked.digest}"
        return f"{text}.{self._seal(text)}"

    def read(self, text: str) -> Pass:
        """Raises `PassRefused`. What is read here once is refused from then on."""
        found = _FORM.fullmatch(text)
        if found is None:
            raise PassRefused("it has not the form of a pass")
        if not hmac.compare_digest(self._seal(text.rpartition(".")[0]), found["seal"]):
            raise PassRefused("its seal is not ours: routing.secret must be the same at every node")
        at_s = int(found["at_ms"]) / 1000
        if abs(self.now_s() - at_s) > GOOD_FOR_S:
            raise PassRefused(f"it was made more than {GOOD_FOR_S:g} s from now: compare the nodes' clocks")
        self._use_up(found["once"], at_s + GOOD_FOR_S)
        caller = None if found["caller"] == "-" else found["caller"]
        return Pass(int(found["hops"]), caller, UUID(hex=found["to"]), found["digest"])

    def _use_up(self, once: str, until_s: float) -> None:
        now_s = self.now_s()
        # They come nearly in the order of their ends: one that ends early behind a late one is kept a little longer.
        while self._seen and next(iter(self._seen.values())) < now_s:
            self._seen.popitem(last=False)
        if once in self._seen:
            raise PassRefused("it was used before")
        if len(self._seen) >= self.most_remembered:
            raise PassRefused("more passes came in their time than can be remembered")
        self._seen[once] = until_s

    def _seal(self, text: str) -> str:
        return hmac.new(self.secret.encode(), text.encode(), hashlib.sha256).hexdigest()


@dataclass(frozen=True, slots=True)
class Answered:
    """What the owner says; `headers` are those that a caller needs, by their lower-case names."""

    status: int
    body: bytes
    media_type: str
    headers: Mapping[str, str]


class NoAnswer(Enum):
    NOT_TAKEN = auto()  # it is certain that the owner did nothing
    UNKNOWN = auto()  # the owner may have taken it


class Forward(Protocol):
    async def __call__(
        self, owner: str, asked: Asked, *, caller: str | None, hops: int, wait_s: float
    ) -> Answered | NoAnswer:
        """Hands a call on to the node of that name. `hops` counts this time; `wait_s` is what the call itself waits."""
        ...
