"""One call to any of the nodes, repeated as long as that is safe and the time lasts.

Safe is: a call that reads, a call that carries its request id or the token of a held nonce, a call that never arrived,
and a call that was turned away at the door (too many calls, another node has the signer). A wish of a person is none of
these once it was sent, and neither is an allocation of nonces: the outcome is then unknown, and the caller is told so. A
node that does not serve is left for the next one at once; when all were asked there is a pause, as long as the node
wanted it or growing from try to try.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar
from urllib.parse import urlencode

import msgspec

from fencepost import bounded_json
from fencepost.client.errors import BadAnswer, ClientError, Unreachable, problem_in, refusal
from fencepost.client.steps import Answer, Base, NoAnswer, Pause, Send, Steps, parse_base
from fencepost.errors import InvalidRequest

T = TypeVar("T", bound=msgspec.Struct)

PREFIX = "/api/v1"
DEFAULT_URL = "http://127.0.0.1:8420"
MOST_NODES = 32
MOST_TRIES = 10_000
FIRST_PAUSE_S, LAST_PAUSE_S = 0.1, 2.0

_OK, _REDIRECTS_FROM, _PROBLEMS_FROM = 200, 300, 400
_TOO_MANY = 429
_AWAY = frozenset({502, 503, 504})
_API_KEY = re.compile(r"[!-~]{1,200}")


@dataclass(frozen=True, slots=True)
class Call:
    method: str
    path: str
    query: Sequence[tuple[str, str]] = ()
    body: bytes | None = None
    is_repeatable: bool = True
    waits_s: float = 0.0  # how long the node itself may take its time


@dataclass(slots=True)
class Exchange:
    bases: tuple[Base, ...]
    headers: dict[str, str]
    retry_for_s: float
    answer_within_s: float
    clock: Callable[[], float] = time.monotonic
    _preferred: int = field(default=0)  # the node that served last

    @classmethod
    def with_nodes(
        cls, url: str | Sequence[str], *, api_key: str | None, retry_for_s: float, answer_within_s: float
    ) -> Exchange:
        urls = [url] if isinstance(url, str) else list(url)
        if not 0 < len(urls) <= MOST_NODES:
            raise InvalidRequest(f"give 1 to {MOST_NODES} URLs of nodes", field="url")
        headers = {"Accept": "application/json", "User-Agent": "fencepost-client"}
        if api_key:
            if not _API_KEY.fullmatch(api_key):
                raise InvalidRequest("the API key has characters that no key has", field="api_key")
            headers["Authorization"] = f"Bearer {api_key}"
        return cls(tuple(parse_base(one) for one in urls), headers, retry_for_s, answer_within_s)

    def ask(self, call: Call, *, until_s: float | None = None) -> Steps[Answer]:
        """The answer, or the last reason why there is none; no try begins after `until_s`."""
        until_s = self.clock() + self.retry_for_s if until_s is None else until_s
        at, rounds = self._preferred, 0
        for number in range(1, MOST_TRIES + 1):
            said = yield self._send(self.bases[at % len(self.bases)], call)
            if isinstance(said, Answer) and _OK <= said.status < _REDIRECTS_FROM:
                self._preferred = at % len(self.bases)
                return said
            failure = self._failure(said, self.bases[at % len(self.bases)])
            if not _may_repeat(said, failure, call):
                raise failure
            if not _is_too_many(said):
                at += 1
                if number % len(self.bases):
                    continue
            rounds += 1
            pause_s = max(_backoff_s(rounds), getattr(failure, "retry_after_s", 0.0))
            if self.clock() + pause_s >= until_s:
                raise failure
            yield Pause(pause_s)
        raise failure

    def move_on(self) -> None:
        """The next call goes to the next node first."""
        self._preferred = (self._preferred + 1) % len(self.bases)

    def _send(self, base: Base, call: Call) -> Send:
        query = f"?{urlencode(call.query)}" if call.query else ""
        body_headers = {} if call.body is None else {"Content-Type": "application/json"}
        return Send(
            base=base,
            method=call.method,
            target=f"{base.prefix}{PREFIX}{call.path}{query}",
            headers={**self.headers, **body_headers},
            body=call.body,
            timeout_s=self.answer_within_s + call.waits_s,
            is_repeatable=call.is_repeatable,
        )

    def _failure(self, said: Answer | NoAnswer | None, base: Base) -> ClientError:
        assert said is not None  # noqa: S101 - a request is answered with what came of it; only pauses with None
        if isinstance(said, NoAnswer):
            return Unreachable(f"{base.origin} does not answer: {said.reason}", sent=said.sent)
        if said.status < _PROBLEMS_FROM:
            return BadAnswer(f"{base.origin} answered HTTP {said.status}, which no node does")
        return refusal(problem_in(said.status, said.body), retry_after_s=_seconds(said.retry_after))


def _may_repeat(said: Answer | NoAnswer | None, failure: ClientError, call: Call) -> bool:
    if isinstance(said, NoAnswer):
        return call.is_repeatable or not said.sent
    if isinstance(said, Answer):
        turned_away = _is_too_many(said) or failure.code == "not_leader"
        return turned_away or (call.is_repeatable and said.status in _AWAY)
    return False


def _is_too_many(said: Answer | NoAnswer | None) -> bool:
    """The rate is counted at each node, so another node would answer; but slower was asked for, not elsewhere."""
    return isinstance(said, Answer) and said.status == _TOO_MANY


def _seconds(retry_after: str | None) -> float:
    return float(retry_after) if retry_after is not None and re.fullmatch(r"[0-9]{1,6}", retry_after) else 0.0


def _backoff_s(rounds: int) -> float:
    # Many clients lose the same node at the same moment; they must not all come back at the same moment.
    return min(LAST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(rounds - 1, 10)) * random.uniform(0.5, 1.0)


def decoded(answer: Answer, wanted: type[T]) -> T:
    try:
        return bounded_json.decode(answer.body, lambda body: msgspec.json.decode(body, type=wanted))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadAnswer(f"the answer is none that this version knows: {str(error)[:200]}") from None
