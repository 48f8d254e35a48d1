"""Call any of the nodes, and repeat the call while that is safe and time remains.

Safe to repeat: a call that reads, a call that carries its request id or the token of a held nonce, a call that never
arrived, and a call that the node rejected before processing it (rate limit, or another node holds the lease). An operator
command and an allocation of nonces are not safe once they were sent: the error then has `outcome_unknown`. After a
failure the next node is tried immediately; after a round over all nodes there is a pause, as long as Retry-After says or
growing with each round.
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
from fencepost.client.errors import BadResponse, ClientError, Unreachable, error_from_problem, parse_problem
from fencepost.client.protocol import (
    HttpRequest,
    NodeAddress,
    NodeResponse,
    NoResponse,
    Pause,
    Steps,
    parse_node_url,
)
from fencepost.errors import InvalidRequest

T = TypeVar("T", bound=msgspec.Struct)

PREFIX = "/api/v1"
DEFAULT_URL = "http://127.0.0.1:8420"
MAX_NODES = 32
MAX_TRIES = 10_000
FIRST_PAUSE_S, MAX_PAUSE_S = 0.1, 2.0

_OK, _REDIRECTS_FROM, _PROBLEMS_FROM, _SERVER_FAULTS_FROM = 200, 300, 400, 500
_TOO_MANY = 429
_UNAVAILABLE = frozenset({502, 503, 504})
_API_KEY = re.compile(r"[!-~]{1,200}")


@dataclass(frozen=True, slots=True)
class ClientCall:
    """One API call, before a node is selected."""

    method: str
    path: str
    query: Sequence[tuple[str, str]] = ()
    body: bytes | None = None
    is_repeatable: bool = True
    wait_s: float = 0.0  # how long the node may wait before it responds


@dataclass(slots=True)
class RetryPolicy:
    """Select a node per try, and decide which failures are repeated."""

    nodes: tuple[NodeAddress, ...]
    headers: dict[str, str]
    retry_for_s: float
    response_timeout_s: float
    clock: Callable[[], float] = time.monotonic
    _preferred: int = field(default=0)  # the node that served last

    @classmethod
    def with_nodes(
        cls, url: str | Sequence[str], *, api_key: str | None, retry_for_s: float, response_timeout_s: float
    ) -> RetryPolicy:
        """Build the policy from one or several node URLs; raise `InvalidRequest` if one is invalid."""
        urls = [url] if isinstance(url, str) else list(url)
        if not 0 < len(urls) <= MAX_NODES:
            raise InvalidRequest(f"give 1 to {MAX_NODES} URLs of nodes", field="url")
        headers = {"Accept": "application/json", "User-Agent": "fencepost-client"}
        if api_key:
            if not _API_KEY.fullmatch(api_key):
                raise InvalidRequest(
                    "the API key contains characters that are not allowed in a key", field="api_key"
                )
            headers["Authorization"] = f"Bearer {api_key}"
        return cls(tuple(parse_node_url(one) for one in urls), headers, retry_for_s, response_timeout_s)

    def call(self, call: ClientCall, *, until_s: float | None = None) -> Steps[NodeResponse]:
        """Return the response, or raise the last failure; no try starts after `until_s`."""
        until_s = self.clock() + self.retry_for_s if until_s is None else until_s
        at, rounds, may_be_accepted = self._preferred, 0, False
        for number in range(1, MAX_TRIES + 1):
            outcome = yield self._http_request(self.nodes[at % len(self.nodes)], call)
            if isinstance(outcome, NodeResponse) and _OK <= outcome.status < _REDIRECTS_FROM:
                self._preferred = at % len(self.nodes)
                return outcome
            failure = self._failure(outcome, self.nodes[at % len(self.nodes)])
            # Keep this over all tries: an unreachable node says nothing about whether an earlier one accepted the call.
            may_be_accepted = may_be_accepted or _may_be_accepted(outcome)
            failure.outcome_unknown = may_be_accepted and failure.code != "request_conflict"
            if not _may_repeat(outcome, failure, call):
                raise failure
            if not _is_rate_limited(outcome):
                at += 1
                if number % len(self.nodes):
                    continue
            rounds += 1
            pause_s = max(_backoff_s(rounds), getattr(failure, "retry_after_s", 0.0))
            if self.clock() + pause_s >= until_s:
                raise failure
            yield Pause(pause_s)
        raise failure

    def prefer_next_node(self) -> None:
        """Start the next call at the next node."""
        self._preferred = (self._preferred + 1) % len(self.nodes)

    def _http_request(self, node: NodeAddress, call: ClientCall) -> HttpRequest:
        query = f"?{urlencode(call.query)}" if call.query else ""
        body_headers = {} if call.body is None else {"Content-Type": "application/json"}
        return HttpRequest(
            node=node,
            method=call.method,
            target=f"{node.prefix}{PREFIX}{call.path}{query}",
            headers={**self.headers, **body_headers},
            body=call.body,
            timeout_s=self.response_timeout_s + call.wait_s,
            is_repeatable=call.is_repeatable,
        )

    def _failure(self, outcome: NodeResponse | NoResponse | None, node: NodeAddress) -> ClientError:
        assert outcome is not None  # noqa: S101 - only a pause has the outcome None
        if isinstance(outcome, NoResponse):
            return Unreachable(f"{node.origin} does not answer: {outcome.reason}", sent=outcome.sent)
        if outcome.status < _PROBLEMS_FROM:
            return BadResponse(
                f"{node.origin} answered HTTP {outcome.status}, which a Fencepost node never sends: check the URL"
            )
        return error_from_problem(
            parse_problem(outcome.status, outcome.body), retry_after_s=_seconds(outcome.retry_after)
        )


def _may_repeat(outcome: NodeResponse | NoResponse | None, failure: ClientError, call: ClientCall) -> bool:
    if isinstance(outcome, NoResponse):
        return call.is_repeatable or not outcome.sent
    if isinstance(outcome, NodeResponse):
        unprocessed = _is_rate_limited(outcome) or failure.code == "not_leader"
        return unprocessed or (call.is_repeatable and outcome.status in _UNAVAILABLE)
    return False


def _may_be_accepted(outcome: NodeResponse | NoResponse | None) -> bool:
    """Return whether a node may have carried out a call that did not succeed."""
    if isinstance(outcome, NoResponse):
        return outcome.sent
    return outcome is not None and (outcome.status < _PROBLEMS_FROM or outcome.status >= _SERVER_FAULTS_FROM)


def _is_rate_limited(outcome: NodeResponse | NoResponse | None) -> bool:
    """Return whether the node rejected the call because of too many calls.

    Each node counts its own rate, so another node would respond; but the limit asks for a slower client, so wait instead.
    """
    return isinstance(outcome, NodeResponse) and outcome.status == _TOO_MANY


def _seconds(retry_after: str | None) -> float:
    return float(retry_after) if retry_after is not None and re.fullmatch(r"[0-9]{1,6}", retry_after) else 0.0


def _backoff_s(rounds: int) -> float:
    # Jitter: many clients lose the same node at the same moment and must not all return at the same moment.
    return min(MAX_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(rounds - 1, 10)) * random.uniform(0.5, 1.0)


def decode(response: NodeResponse, response_type: type[T]) -> T:
    """Decode a response body; raise `BadResponse` if it has another type."""
    try:
        return bounded_json.decode(response.body, lambda body: msgspec.json.decode(body, type=response_type))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadResponse(
            f"the response has a form that this client version does not know: {str(error)[:200]}"
        ) from None
