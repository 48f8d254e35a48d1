"""Explain why a transaction or a signer does not move: one cause, its evidence, and what to do.

`explain_tx` and `explain_signer` are pure: facts in, one `Explanation` out. The facts come from the database and from the
endpoints (`explain_facts.py`), never from a lane, so every node gives the same answer. The rules are in a list, and the first
one that applies decides: what stops a whole chain or signer comes before what stops one transaction, and a transaction that
waits behind another is explained by that one.

Texts name a nonce only in evidence that is marked so, and in reasons of the database, from which `without_nonces` removes it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any
from uuid import UUID

from fencepost.application.membership import NodeView
from fencepost.application.ports import EndpointReport, EndpointTrouble, Header
from fencepost.application.queries import AttemptView, PauseView, SignerView, TxView
from fencepost.domain.send_result import SendCategory
from fencepost.domain.states import TERMINAL, CursorState, State, SubState
from fencepost.domain.transaction import Fees
from fencepost.domain.transaction_state import Purpose

# Endpoints within this many blocks of the best one do not lag.
MAX_LAG_BLOCKS = 3

MAX_TEXT_CHARS = 1000
MAX_DATA_CHARS = 202  # calldata of up to 100 bytes is part of a proposed command


class Cause(StrEnum):
    """Name what a transaction or a signer waits for. Clients match on these codes: they never change."""

    BEHIND_OTHER = "behind_other"
    WINDOW_FULL = "window_full"
    SIGNER_PAUSED = "signer_paused"
    SIGNER_DRAINED = "signer_drained"
    SIGNER_PROTECTED = "signer_protected"
    NO_LEASE_HOLDER = "no_lease_holder"
    NO_KEY = "no_key"
    UNFUNDED = "unfunded"
    FEE_BELOW_MARKET = "fee_below_market"
    FEE_CAP_REACHED = "fee_cap_reached"
    NONCE_GAP = "nonce_gap"
    DROPPED_FROM_POOL = "dropped_from_pool"
    PENDING_IN_POOL = "pending_in_pool"
    CHAIN_STALLED = "chain_stalled"
    RPC_UNAVAILABLE = "rpc_unavailable"
    RPC_LAGGING = "rpc_lagging"
    RPC_RATE_LIMITED = "rpc_rate_limited"
    RPC_DISAGREE = "rpc_disagree"
    WRONG_CHAIN = "wrong_chain"
    REFUSED_BY_NODES = "refused_by_nodes"
    WAITING_CONFIRMATIONS = "waiting_confirmations"
    WOULD_REVERT = "would_revert"
    REVERTED = "reverted"
    OUT_OF_GAS = "out_of_gas"
    DATABASE_UNAVAILABLE = "database_unavailable"
    POLICY_REFUSED = "policy_refused"
    AWAITING_APPROVAL = "awaiting_approval"
    EXPIRED = "expired"
    DONE = "done"
    CANCELLED = "cancelled"
    CANCELLING = "cancelling"
    FAILED = "failed"
    SUSPENDED = "suspended"
    FOREIGN_NONCE = "foreign_nonce"
    KEY_UNAVAILABLE = "key_unavailable"
    IN_PROGRESS = "in_progress"
    IDLE = "idle"


# What each cause means; docs/explain.md shows this table.
MEANINGS: Mapping[Cause, str] = {
    Cause.BEHIND_OTHER: "It waits behind an earlier transaction of its signer; blockedBy names that one and its cause.",
    Cause.WINDOW_FULL: "It is next, and the signer has as many transactions in flight as max_in_flight allows.",
    Cause.SIGNER_PAUSED: "An operator paused the signer: requests get no nonce.",
    Cause.SIGNER_DRAINED: "An operator drained the signer: nothing is in flight, and requests get no nonce.",
    Cause.SIGNER_PROTECTED: "The signer is in PROTECT: nothing is sent until an operator decides.",
    Cause.NO_LEASE_HOLDER: "No live node holds the signer's lease.",
    Cause.NO_KEY: "No node that could send has the signer's key.",
    Cause.UNFUNDED: "The account's balance does not cover the maximum cost.",
    Cause.FEE_BELOW_MARKET: "Its price is below the base fee or below what the endpoints accept.",
    Cause.FEE_CAP_REACHED: "Its price is too low, and a limit allows no higher one.",
    Cause.NONCE_GAP: "A nonce below its own belongs to no transaction, so no block can include it.",
    Cause.DROPPED_FROM_POOL: "It was sent, and no endpoint knows it any more.",
    Cause.PENDING_IN_POOL: "An endpoint has it in its pool, and the chain moves without it.",
    Cause.CHAIN_STALLED: "The chain produces no blocks.",
    Cause.RPC_UNAVAILABLE: "No endpoint of the chain answers.",
    Cause.RPC_LAGGING: "Most endpoints are behind the best one.",
    Cause.RPC_RATE_LIMITED: "The endpoints answer that they are called too often.",
    Cause.RPC_DISAGREE: "Endpoints report different blocks for the same number.",
    Cause.WRONG_CHAIN: "The endpoints serve another chain than the settings name.",
    Cause.REFUSED_BY_NODES: "The endpoints reject the transaction.",
    Cause.WAITING_CONFIRMATIONS: "It is in a block that is not deep enough yet.",
    Cause.WOULD_REVERT: "The dry run reverted, so it was never sent.",
    Cause.REVERTED: "It was mined and reverted.",
    Cause.OUT_OF_GAS: "It was mined, used its whole gas limit and reverted.",
    Cause.DATABASE_UNAVAILABLE: "The database does not answer or accepts no writes.",
    Cause.POLICY_REFUSED: "A limit or the spending policy of the signer forbids it.",
    Cause.AWAITING_APPROVAL: "It waits for an approval.",
    Cause.EXPIRED: "Its validUntil passed before it got a nonce.",
    Cause.DONE: "It succeeded and is final.",
    Cause.CANCELLED: "It was cancelled.",
    Cause.CANCELLING: "It was cancelled, and a filler has to consume its nonce first.",
    Cause.FAILED: "It failed; the summary has the error.",
    Cause.SUSPENDED: "An operator suspended it.",
    Cause.FOREIGN_NONCE: "A transaction that is not in the database consumed its nonce.",
    Cause.KEY_UNAVAILABLE: "The key store does not sign.",
    Cause.IN_PROGRESS: "Nothing is wrong: the next step takes place by itself.",
    Cause.IDLE: "The signer has nothing to do.",
}

# Causes that need no operator: they end by themselves, or are the end.
HARMLESS = frozenset(
    {
        Cause.DONE,
        Cause.CANCELLED,
        Cause.IN_PROGRESS,
        Cause.IDLE,
        Cause.WAITING_CONFIRMATIONS,
        Cause.CANCELLING,
    }
)

DATABASE = "database"


@dataclass(frozen=True, slots=True)
class Evidence:
    """State one observation: what was seen, from where, and when."""

    text: str
    source: str = DATABASE
    at: datetime | None = None
    names_nonce: bool = False  # shown only to callers that may see nonces


@dataclass(frozen=True, slots=True)
class Action:
    """Propose a command that can be pasted, and say what it causes."""

    command: str
    consequence: str


@dataclass(frozen=True, slots=True)
class BlockedBy:
    """Name the transaction at the head of the lane, and why that one waits."""

    tx_id: UUID
    cause: Cause
    summary: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """Hold one cause, and what to do about it. `expected` says what takes place without any action."""

    cause: Cause
    summary: str
    evidence: tuple[Evidence, ...] = ()
    actions: tuple[Action, ...] = ()
    since: datetime | None = None
    blocked_by: BlockedBy | None = None
    expected: str = ""

    def without_nonces(self) -> Explanation:
        """Return it as a caller sees it that may not see nonces."""
        return replace(
            self,
            summary=without_nonces(self.summary),
            evidence=tuple(
                replace(one, text=without_nonces(one.text)) for one in self.evidence if not one.names_nonce
            ),
            actions=tuple(replace(one, consequence=without_nonces(one.consequence)) for one in self.actions),
            blocked_by=None
            if self.blocked_by is None
            else replace(self.blocked_by, summary=without_nonces(self.blocked_by.summary)),
            expected=without_nonces(self.expected),
        )


# A word that announces nonces, at most three words that are no number, and then the numbers.
_NONCES = re.compile(
    r"\b(nonces?|cursor|start_from|ours|latest|pending)((?:\s+[^\s\d]+){0,3}\s+)(\d+)((?:\s+(?:to|and)\s+)(\d+))?",
    re.IGNORECASE,
)


def without_nonces(text: str) -> str:
    """Remove the numbers that follow a word for a nonce."""
    return _NONCES.sub(lambda found: f"{found[1]}{found[2]}…{' to …' if found[5] else ''}", text)


@dataclass(frozen=True, slots=True)
class LaneRules:
    """Hold the settings that decide what a lane does next."""

    window: int = 1
    is_strict: bool = True
    required: int | str = 20
    fee_cap_wei: int = 0
    bumps: bool = False
    resubmit_interval_s: float = 60.0
    stalled_after_s: float = 60.0


@dataclass(frozen=True, slots=True)
class ChainFacts:
    """Hold what the endpoints of a chain reported just now, and what this node has seen of the head."""

    chain_id: int
    reports: tuple[EndpointReport, ...] = ()
    surveyed: tuple[str, ...] = ()  # the hashes that `EndpointReport.known` is about
    silent_for_s: float = 0.0
    head_still_for_s: float | None = None
    block_interval_s: float | None = None
    suggested: Fees | None = None

    @property
    def answering(self) -> tuple[EndpointReport, ...]:
        """Return the reports of the endpoints that answered."""
        return tuple(report for report in self.reports if report.trouble is None)

    @property
    def best(self) -> EndpointReport | None:
        """Return the report with the highest head."""
        return max(self.answering, key=lambda report: _height(report.head), default=None)

    @property
    def head(self) -> Header | None:
        """Return the highest head."""
        return None if self.best is None else self.best.head

    @property
    def latest_nonce(self) -> int | None:
        """Return the highest number of consumed nonces that an endpoint reports."""
        return max((one.latest_nonce for one in self.answering if one.latest_nonce is not None), default=None)

    @property
    def pending_nonce(self) -> int | None:
        """Return the highest next nonce that an endpoint reports, pool included."""
        return max(
            (one.pending_nonce for one in self.answering if one.pending_nonce is not None), default=None
        )

    @property
    def balance_wei(self) -> int | None:
        """Return the balance as the best endpoint reports it."""
        return None if self.best is None else self.best.balance_wei

    def knows(self, tx_hash: str | None) -> bool | None:
        """Return whether an endpoint has the transaction; None if no endpoint was asked about it."""
        if tx_hash is None or tx_hash not in self.surveyed or not self.answering:
            return None
        index = self.surveyed.index(tx_hash)
        return any(index < len(report.known) and report.known[index] for report in self.answering)


@dataclass(frozen=True, slots=True)
class Facts:
    """Hold all that the rules look at."""

    now: datetime
    signer: SignerView
    chain: ChainFacts
    rules: LaneRules = field(default_factory=LaneRules)
    tx: TxView | None = None  # with attempts
    head: TxView | None = (
        None  # of the lane, with attempts: the lowest live transaction, or the first request
    )
    ahead: int = 0  # live transactions of the signer before `tx`
    has_key: bool = True  # at this node
    node: str = ""  # this node
    nodes: tuple[NodeView, ...] = ()
    pause: PauseView | None = None
    approval: str | None = None  # what it waits for, if it needs an approval
    is_writable: bool = True  # the database accepts writes

    @property
    def address(self) -> str:
        return self.signer.signer.address

    def ago(self, seconds: float) -> datetime:
        return self.now - timedelta(seconds=seconds)


Rule = Callable[[Facts, TxView], Explanation | None]


def explain_tx(facts: Facts) -> Explanation:
    """Return the cause that the first rule finds for `facts.tx`."""
    if facts.tx is None:
        raise ValueError("the facts are about a signer, not about a transaction")
    for rule in RULES:
        found = rule(facts, facts.tx)
        if found is not None:
            return found
    return _in_progress(facts, facts.tx)


def explain_signer(facts: Facts) -> Explanation:
    """Return the cause of the signer itself, else that of the transaction at the head of its lane, else `idle`."""
    for rule in _SIGNER_RULES:
        if facts.head is not None or rule in _WITHOUT_WORK:
            found = rule(facts)
            if found is not None:
                return found
    if facts.head is None:
        return Explanation(Cause.IDLE, f"{facts.address} has no transaction in flight and no request waits.")
    inner = explain_tx(replace(facts, tx=facts.head, ahead=0))
    blocked_by = BlockedBy(facts.head.tx_id, inner.cause, inner.summary)
    return replace(inner, blocked_by=inner.blocked_by or blocked_by)


# ---- transactions that have ended


def _ended(_facts: Facts, tx: TxView) -> Explanation | None:
    if tx.state not in TERMINAL:
        return None
    since = tx.finished_at or tx.updated_at
    where = "" if tx.block is None else f" in block {tx.block.number}"
    evidence = (Evidence(f"state {tx.state}{where}", at=since),)
    if tx.state is State.CONFIRMED:
        return Explanation(Cause.DONE, f"It was mined{where} and is final.", evidence, since=since)
    if tx.state is State.CANCELLED:
        text = f"It was cancelled: {tx.error or 'no reason given'}."
        return Explanation(Cause.CANCELLED, text, evidence, since=since)
    cause, summary, actions = _failure(tx)
    return Explanation(cause, summary[:MAX_TEXT_CHARS], evidence, actions, since=since)


def _failure(tx: TxView) -> tuple[Cause, str, tuple[Action, ...]]:
    error = tx.error or "no reason given"
    again = Action(
        _send_again(tx), "Submits a new request with a new request id. The failed one stays as it is."
    )
    mined = _mined_attempt(tx)
    if error.startswith("reverted"):
        used = _quantity((tx.receipt or {}).get("gasUsed"))
        if mined is not None and used is not None and used >= mined.gas:
            text = f"It ran out of gas: it used {used} of its gas limit of {mined.gas}, and its effects were undone ({error})."
            more = Action(
                f"{_send_again(tx)} --gas {2 * mined.gas}",
                "Submits a new request with twice the gas limit. Without --gas the node estimates the limit.",
            )
            return Cause.OUT_OF_GAS, text, (more,)
        return Cause.REVERTED, f"It was mined and reverted: {error.removeprefix('reverted: ')}.", (again,)
    if error.startswith("would revert"):
        reason = error.removeprefix("would revert: ")
        return Cause.WOULD_REVERT, f"It was never sent, because its dry run reverts: {reason}.", (again,)
    if error.startswith("validUntil passed"):
        until = "" if tx.valid_until is None else f" ({_clock(tx.valid_until)})"
        return (
            Cause.EXPIRED,
            f"Its validUntil{until} passed before it got a nonce. Nothing was sent.",
            (again,),
        )
    if re.search(r"\bpolicy\b|above the cap of|daily|fees\.cap", error) and tx.nonce is None:
        change = Action(
            f"fencepost signer show {tx.signer.address}",
            "Shows the signer. An administrator changes its policy with PUT /api/v1/signers/ADDRESS/policy.",
        )
        return Cause.POLICY_REFUSED, f"It was never sent: {error}.", (change, again)
    if "consumed by a transaction that is not ours" in error:
        return Cause.FOREIGN_NONCE, f"It failed: {error}.", (again,)
    if mined is not None and mined.purpose is Purpose.FILLER:
        text = f"The endpoints rejected it ({error}), and a filler consumed its nonce."
        return Cause.REFUSED_BY_NODES, text, (again,)
    return Cause.FAILED, f"It failed: {error}.", (again,)


def _send_again(tx: TxView) -> str:
    receiver = tx.payload.get("to")
    to = f" --to {receiver}" if receiver else ""
    value = (
        f" --value {tx.payload['value']}" if str(tx.payload.get("value") or "0") not in ("0", "0x0") else ""
    )
    data = str(tx.payload.get("data") or "")
    shown = "" if data in ("", "0x") else f" --data {data if len(data) <= MAX_DATA_CHARS else 'DATA'}"
    return f"fencepost send --from {tx.signer.address}{to}{value}{shown}"


# ---- the signer


def _protected(facts: Facts) -> Explanation | None:
    if facts.signer.state is not CursorState.PROTECT:
        return None
    chain = facts.chain
    evidence = [Evidence(facts.signer.reason or "no reason is stored")]
    if chain.latest_nonce is not None and chain.best is not None:
        text = f"the chain's next nonce is {chain.latest_nonce}, pool included {chain.pending_nonce}"
        evidence.append(Evidence(text, chain.best.endpoint, facts.now, names_nonce=True))
    if facts.signer.next_nonce is not None:
        text = f"the next nonce of the database is {facts.signer.next_nonce}"
        evidence.append(Evidence(text, at=facts.now, names_nonce=True))
    waiting = facts.signer.in_flight + facts.signer.queued
    return Explanation(
        Cause.SIGNER_PROTECTED,
        _sentence(
            f"{facts.address} is in PROTECT, so its {waiting} transactions wait: {facts.signer.reason}"
        ),
        tuple(evidence),
        _decisions(facts),
        since=facts.signer.changed_at,
        expected="Nothing is sent for this signer until an operator decides.",
    )


def _decisions(facts: Facts) -> tuple[Action, ...]:
    """Return the three decisions with their consequence for this signer, the one that fits first."""
    signer, chain = facts.signer, facts.chain
    ours, theirs = signer.next_nonce, chain.latest_nonce
    lowest = facts.head.nonce if facts.head is not None and facts.head.block is None else None
    lowest = ours if lowest is None else lowest  # the nonce that the chain should be at
    is_ahead = lowest is not None and theirs is not None and theirs > lowest
    is_behind = lowest is not None and theirs is not None and theirs < lowest
    adopt_text = (
        "Continue from the chain's nonce. Consumed nonces are attributed first: requests that are on the chain already are"
        " attached and not sent again; transactions whose nonce a foreign one has fail. Use it if another program used this"
        " key, or the address was used before."
    )
    keep_text = (
        "Continue from the database's nonce. Use it if the alarm was wrong or its cause is gone, such as an endpoint that"
        " served another chain."
    )
    fill_text = (
        "Sign fillers (transfers of 0 to itself) for the nonces below the cursor that no transaction has, then continue. Use"
        " it for a nonce gap; each filler costs 21000 gas."
    )
    if is_ahead and theirs is not None and ours is not None:
        adopt_text += f" Here the chain is ahead: the next nonce would be {max(ours, theirs)}."
        keep_text += " Here the chain is ahead, so the signer would return to PROTECT."
    if is_behind and theirs is not None and ours is not None:
        fill_text += " Here the chain is behind."
    texts = {"adopt": adopt_text, "keep": keep_text, "fill": fill_text}
    order = (
        ("adopt", "keep", "fill")
        if is_ahead
        else ("fill", "keep", "adopt")
        if is_behind
        else ("keep", "adopt", "fill")
    )
    return tuple(
        Action(
            f'fencepost signer unprotect {facts.address}{_chain_option(facts)} --decision {decision} --reason "WHY"',
            texts[decision],
        )
        for decision in order
    )


def _read_only(facts: Facts) -> Explanation | None:
    if facts.is_writable:
        return None
    return database_unavailable("it is read-only, so no node can record what it does", facts.now)


def database_unavailable(what: str, now: datetime) -> Explanation:
    """Return the explanation for a database that does not answer or accepts no writes."""
    return Explanation(
        Cause.DATABASE_UNAVAILABLE,
        f"The database is not usable: {what}.",
        (Evidence(what, at=now),),
        (
            Action(
                "fencepost doctor",
                "Checks the database and the endpoints from this machine; changes nothing.",
            ),
        ),
        since=now,
        expected="Nothing is signed or sent without the database. Everything continues by itself when it is back.",
    )


def _paused(facts: Facts) -> Explanation | None:
    if not facts.signer.is_paused:
        return None
    is_drain = facts.pause is not None and facts.pause.is_drain
    by = f" by {facts.pause.author}" if facts.pause is not None else ""
    why = f": {facts.signer.reason}" if facts.signer.reason else ""
    verb = "drained" if is_drain else "paused"
    resume = Action(
        f"fencepost signer resume {facts.address}{_chain_option(facts)}",
        f"The {facts.signer.queued} waiting requests get nonces and are sent, in their order.",
    )
    return Explanation(
        Cause.SIGNER_DRAINED if is_drain else Cause.SIGNER_PAUSED,
        f"{facts.address} was {verb}{by}{why}. {facts.signer.queued} requests wait without a nonce;"
        f" {facts.signer.in_flight} transactions in flight continue.",
        (Evidence(f"the signer is {verb}{by}{why}", at=facts.pause.paused_at if facts.pause else None),),
        (resume,),
        since=facts.pause.paused_at if facts.pause else None,
        expected="Requests wait until the signer is resumed.",
    )


def _unreachable(facts: Facts) -> Explanation | None:
    chain = facts.chain
    if not chain.reports or chain.answering:
        return None
    evidence = tuple(
        Evidence(report.error or str(report.trouble), report.endpoint, facts.now) for report in chain.reports
    )
    troubles = {report.trouble for report in chain.reports}
    count = len(chain.reports)
    endpoints = "the only endpoint" if count == 1 else f"all {count} endpoints"
    since = facts.ago(chain.silent_for_s) if chain.silent_for_s else None
    retry = "It continues by itself as soon as an endpoint answers."
    doctor = Action(
        "fencepost doctor", "Checks every endpoint and the database from this machine; changes nothing."
    )
    if troubles == {EndpointTrouble.WRONG_CHAIN}:
        text = (
            f"{_capital(endpoints)} of chain {chain.chain_id} serves another chain: {chain.reports[0].error}."
        )
        return Explanation(
            Cause.WRONG_CHAIN, text, evidence, (_urls_action(), doctor), since=since, expected=retry
        )
    if EndpointTrouble.RATE_LIMITED in troubles and EndpointTrouble.SILENT not in troubles:
        text = f"{_capital(endpoints)} of chain {chain.chain_id} rejects calls because of a rate limit."
        return Explanation(
            Cause.RPC_RATE_LIMITED, text, evidence, (_urls_action(), doctor), since=since, expected=retry
        )
    age = f" for {_span(chain.silent_for_s)}" if chain.silent_for_s else ""
    text = f"{_capital(endpoints)} of chain {chain.chain_id} has given no usable answer{age}: {chain.reports[0].error}."
    return Explanation(
        Cause.RPC_UNAVAILABLE,
        text[:MAX_TEXT_CHARS],
        evidence,
        (_urls_action(), doctor),
        since=since,
        expected=retry,
    )


def _urls_action() -> Action:
    return Action(
        "fencepost config",
        "Shows chains.NAME.rpc_urls. Add a working endpoint there and restart the node; stored requests are kept.",
    )


def _no_holder(facts: Facts) -> Explanation | None:
    lease = facts.signer.lease
    live = {node.name for node in facts.nodes if node.is_live}
    is_held = lease is not None and lease.held_until is not None
    if is_held and (not facts.nodes or (lease is not None and lease.owner in live)):
        return None
    evidence = [
        Evidence(
            f"node {node.name}: {'live' if node.is_live else 'gone'}, last heartbeat {_clock(node.heartbeat_at)}",
            at=node.heartbeat_at,
        )
        for node in facts.nodes[:5]
    ]
    nodes = Action("fencepost nodes", "Lists the nodes and their heartbeats; changes nothing.")
    if lease is not None and lease.held_until is not None:
        return Explanation(
            Cause.NO_LEASE_HOLDER,
            f"The lease of {facts.address} is held by {lease.owner}, which sends no heartbeat.",
            tuple(evidence),
            (nodes, Action("fencepost up", "Starts a node; with the signer's key it takes the lease over.")),
            since=_last_heartbeat(facts, lease.owner),
            expected=f"Another node with the key takes over when the lease expires, at {_clock(lease.held_until)}.",
        )
    if lease is not None and lease.owner not in live and not facts.has_key:
        return Explanation(
            Cause.NO_LEASE_HOLDER,
            f"No node holds the lease of {facts.address}: its last holder {lease.owner} sends no heartbeat, and node"
            f" {facts.node} does not have the key.",
            tuple(evidence),
            (
                nodes,
                Action(
                    "fencepost up", f"Run it where {lease.owner} ran: a node with the key takes the lease."
                ),
            ),
            since=_last_heartbeat(facts, lease.owner) or lease.acquired_at,
            expected="It continues when a node with the key runs.",
        )
    if not facts.has_key:
        return Explanation(
            Cause.NO_KEY,
            f"No node holds the lease of {facts.address}, and node {facts.node} does not have its key.",
            tuple(evidence),
            (
                Action(
                    "fencepost signer add",
                    "Adds the key to the key file of this machine. Restart the node: it then serves the signer.",
                ),
                nodes,
            ),
            since=lease.acquired_at if lease is not None else None,
            expected="It is sent when a node with the key starts.",
        )
    if lease is None and facts.tx is None:
        return None
    return Explanation(
        Cause.NO_LEASE_HOLDER,
        f"No node holds the lease of {facts.address} at the moment.",
        tuple(evidence),
        (nodes,),
        expected=f"Node {facts.node} has the key and takes the lease within moments.",
    )


def _last_heartbeat(facts: Facts, name: str) -> datetime | None:
    return next((node.heartbeat_at for node in facts.nodes if node.name == name), None)


# ---- one transaction


def _suspended(facts: Facts, tx: TxView) -> Explanation | None:
    if tx.state is not State.SUSPENDED:
        return None
    behind = facts.signer.in_flight + facts.signer.queued - 1
    stops = f" {behind} other transactions of the signer may wait behind it." if tx.nonce is not None else ""
    return Explanation(
        Cause.SUSPENDED,
        f"An operator suspended it.{stops}",
        (Evidence("state SUSPENDED", at=tx.updated_at),),
        (
            Action(f"fencepost tx resume {tx.tx_id}", "It continues where it was."),
            Action(f"fencepost tx cancel {tx.tx_id}", _cancel_text(tx)),
        ),
        since=tx.updated_at,
        expected="Nothing is done with it until it is resumed or cancelled.",
    )


def _mined(facts: Facts, tx: TxView) -> Explanation | None:
    if tx.block is None:
        return None
    if (stalled := _chain_stalled(facts, tx)) is not None:
        return stalled
    required = facts.rules.required
    head = facts.chain.head
    count = len(tx.confirmations)
    if isinstance(required, int):
        if head is not None:
            count = max(count, min(required, head.number - tx.block.number))
        left = max(0, required - count)
        interval_s = facts.chain.block_interval_s
        eta = f", about {_span(left * interval_s)}" if interval_s else ""
        summary = f"It is in block {tx.block.number} with {count} of {required} confirmations."
        expected = f"It is final after {left} more blocks{eta}."
    else:
        summary = (
            f'It is in block {tx.block.number}, and the chain has not marked that block as "{required}" yet.'
        )
        expected = f'It is final when the block is "{required}".'
    return Explanation(
        Cause.WAITING_CONFIRMATIONS,
        summary,
        (
            Evidence(f"mined in block {tx.block.number} ({tx.block.hash})", at=tx.updated_at),
            *_head_evidence(facts),
        ),
        since=tx.updated_at,
        expected=expected,
    )


def _chain_stalled(facts: Facts, tx: TxView) -> Explanation | None:
    """Say so if the head has stood still for long while something waits for a block."""
    still_s, head = facts.chain.head_still_for_s, facts.chain.head
    if still_s is None or head is None or still_s < facts.rules.stalled_after_s:
        return None
    if tx.block is None and (not tx.submit_count or facts.chain.knows(tx.tx_hash) is False):
        return None
    return Explanation(
        Cause.CHAIN_STALLED,
        f"Chain {facts.chain.chain_id} has produced no block for {_span(still_s)}: its head is still block {head.number}.",
        _head_evidence(facts),
        (
            Action(
                "fencepost status",
                "Shows the head of every endpoint. If another source shows newer blocks, the endpoints are cut off: add another"
                " one to chains.NAME.rpc_urls.",
            ),
        ),
        since=facts.ago(still_s),
        expected="It continues by itself with the next block. Cancelling or bumping does not help.",
    )


def _head_evidence(facts: Facts) -> tuple[Evidence, ...]:
    return tuple(
        Evidence(
            f"head {report.head.number}, block time {_clock(datetime.fromtimestamp(report.head.timestamp_s, UTC))}",
            report.endpoint,
            facts.now,
        )
        for report in facts.chain.answering
        if report.head is not None
    )


def _approval(facts: Facts, tx: TxView) -> Explanation | None:
    if facts.approval is None or tx.nonce is not None:
        return None
    return Explanation(
        Cause.AWAITING_APPROVAL,
        f"It waits for an approval: {facts.approval}.",
        since=tx.created_at,
        actions=(Action(f"fencepost tx cancel {tx.tx_id}", _cancel_text(tx)),),
        expected="It is sent when it is approved.",
    )


def _behind(facts: Facts, tx: TxView) -> Explanation | None:
    head = facts.head
    if head is None or head.tx_id == tx.tx_id:
        return None
    inner = explain_tx(replace(facts, tx=head, ahead=0))
    blocked_by = BlockedBy(head.tx_id, inner.cause, inner.summary)
    evidence = (
        Evidence(f"{facts.ahead} live transactions of the signer are before it", at=facts.now),
        Evidence(f"{head.tx_id}: {inner.summary}", at=facts.now),
    )
    is_next = facts.ahead <= facts.signer.in_flight
    is_full = facts.signer.in_flight >= facts.rules.window
    look = Action(f"fencepost tx explain {head.tx_id}", "Explains the transaction that the others wait for.")
    if tx.nonce is None and is_next and is_full and not facts.rules.is_strict:
        return Explanation(
            Cause.WINDOW_FULL,
            f"It is next, but {facts.signer.in_flight} transactions are in flight and max_in_flight is {facts.rules.window}.",
            evidence,
            (look, *inner.actions),
            since=tx.created_at,
            blocked_by=blocked_by,
            expected="It gets a nonce when the lowest transaction in flight is mined.",
        )
    return Explanation(
        Cause.BEHIND_OTHER,
        f"It is number {facts.ahead + 1} in the lane of {facts.address}, behind {head.tx_id}, which waits because of"
        f" {inner.cause}.",
        evidence,
        (look, *inner.actions),
        since=tx.created_at,
        blocked_by=blocked_by,
        expected="It continues by itself when the transactions before it have been mined."
        if tx.nonce is not None
        else "It gets a nonce when those before it have made room.",
    )


def _given_up(facts: Facts, tx: TxView) -> Explanation | None:
    del facts
    if tx.sub_state is SubState.SUPERSEDED:
        return Explanation(
            Cause.FOREIGN_NONCE,
            f"{_capital(tx.error or 'its nonce was consumed by a transaction that is not ours')}.",
            (Evidence("sub-state SUPERSEDED", at=tx.updated_at),),
            since=tx.updated_at,
            expected="It fails when the foreign transaction is final. Submit a new request if it is still wanted.",
        )
    if tx.ending is State.CANCELLED:
        return Explanation(
            Cause.CANCELLING,
            f"It is being cancelled: {tx.error or 'no reason given'}. A filler at the same nonce was sent {tx.submit_count} times.",
            (Evidence("a filler replaces it", at=tx.updated_at),),
            since=tx.updated_at,
            expected="It ends as CANCELLED when the filler is mined, or as CONFIRMED if the original is mined first.",
        )
    if tx.ending is State.FAILED:
        return Explanation(
            Cause.REFUSED_BY_NODES,
            f"It is given up: {tx.error or 'the endpoints reject it'}. A filler has to consume its nonce.",
            _attempt_evidence(tx),
            since=tx.updated_at,
            expected="It ends as FAILED when the filler is mined.",
        )
    return None


_WANT = re.compile(r"have (\d{1,80}) want (\d{1,80})(?:, (\d{1,80}) wei of it for transactions in flight)?")


def _unfunded(facts: Facts, tx: TxView) -> Explanation | None:
    last = _last_attempt(tx)
    is_rejected = last is not None and last.last_result == SendCategory.INSUFFICIENT_FUNDS
    if tx.sub_state is not SubState.UNFUNDED and not is_rejected:
        return None
    balance, value = facts.chain.balance_wei, _quantity(tx.payload.get("value")) or 0
    stored = _WANT.search(tx.error or "")
    in_flight = int(stored[3] or 0) if stored else 0
    needed = int(stored[2]) if stored else 0
    if last is not None:
        needed = value + last.gas * last.fees.fee_cap_wei
    if balance is None and stored:
        balance = int(stored[1])
    gas = needed - value - in_flight
    split = (
        f"{_ether(value)} value, {_ether(gas)} gas at the maximum price" if needed else "an unknown amount"
    )
    split += f", {_ether(in_flight)} for transactions in flight" if in_flight else ""
    missing = None if balance is None or not needed else needed - balance
    if missing is not None and missing <= 0:
        short = "the balance suffices now, and it is tried again within seconds"
    else:
        short = f"short by {'an unknown amount' if missing is None else _ether(missing)}"
    has = "an unknown balance" if balance is None else _ether(balance)
    source = facts.chain.best.endpoint if facts.chain.best is not None else DATABASE
    amount = "AMOUNT" if missing is None or missing <= 0 else f"{missing}"
    return Explanation(
        Cause.UNFUNDED,
        f"{facts.address} needs {_ether(needed)} ({split}) and has {has}: {short}.",
        (
            Evidence(f"balance {has}", source, facts.now),
            Evidence(tx.error or "sub-state UNFUNDED", at=tx.updated_at),
        ),
        (
            Action(
                f"fencepost send --from TREASURY --to {facts.address} --value {amount}",
                "Funds the account from another signer; any wallet does as well. The request then continues by itself.",
            ),
            Action(f"fencepost tx cancel {tx.tx_id}", _cancel_text(tx)),
        ),
        since=tx.updated_at,
        expected="It is sent when the balance suffices; the balance is read every few seconds.",
    )


def _nonce_gap(facts: Facts, tx: TxView) -> Explanation | None:
    latest = facts.chain.latest_nonce
    if tx.nonce is None or latest is None or latest >= tx.nonce or not tx.submit_count:
        return None
    best = facts.chain.best
    return Explanation(
        Cause.NONCE_GAP,
        f"{tx.nonce - latest} nonces below it belong to no live transaction, so no block can include it.",
        (
            Evidence(
                f"the chain's next nonce is {latest}, the transaction has nonce {tx.nonce}",
                best.endpoint if best is not None else DATABASE,
                facts.now,
                names_nonce=True,
            ),
        ),
        (
            Action(
                f"fencepost signer protect {facts.address}{_chain_option(facts)}",
                "Stops the signer, so that the gap can be filled.",
            ),
            Action(
                f'fencepost signer unprotect {facts.address}{_chain_option(facts)} --decision fill --reason "nonce gap"',
                "Signs fillers for the missing nonces and continues.",
            ),
        ),
        since=tx.updated_at,
        expected="If the gap remains, the signer goes into PROTECT by itself and waits for the decision fill.",
    )


def _price(facts: Facts, tx: TxView) -> Explanation | None:
    last, head = _last_attempt(tx), facts.chain.head
    base = head.base_fee_wei if head is not None else None
    is_marked = tx.sub_state is SubState.BELOW_MARKET
    is_capped = "would exceed" in (tx.error or "") and tx.sub_state in (SubState.BELOW_MARKET, SubState.STUCK)
    is_rejected = last is not None and last.last_result == SendCategory.UNDERPRICED
    is_below_base = (
        last is not None and base is not None and last.fees.fee_cap_wei < base and bool(tx.submit_count)
    )
    if last is None or not (is_marked or is_capped or is_rejected or is_below_base):
        return None
    offered = last.fees.fee_cap_wei
    needed = max(base or 0, facts.chain.suggested.fee_cap_wei if facts.chain.suggested is not None else 0)
    market = f"the base fee is {_gwei(base)}" if base is not None else "the base fee is unknown"
    if facts.chain.suggested is not None:
        market += f", endpoints suggest {_gwei(facts.chain.suggested.fee_cap_wei)}"
    cap, source = _fee_limit(facts, tx)
    is_at_cap = is_capped or bool(cap and needed > cap)
    evidence = (
        Evidence(
            f"attempt {last.number} offers {_gwei(offered)} with a tip of {_gwei(last.fees.tip_wei)}",
            at=last.created_at,
        ),
        Evidence(market, facts.chain.best.endpoint if facts.chain.best is not None else DATABASE, facts.now),
        *((Evidence(tx.error, at=tx.updated_at),) if tx.error else ()),
    )
    bump = Action(
        f"fencepost tx bump {tx.tx_id}", "Signs the same transaction again at a higher price, same nonce."
    )
    cancel = Action(f"fencepost tx cancel {tx.tx_id}", _cancel_text(tx))
    limits = Action(
        "fencepost config",
        "Shows fees.cap, fees.bump.enabled and fees.source. Raise the limit that the evidence names and restart the node; the"
        " signer's policy (feeCapMax) is changed with PUT /api/v1/signers/ADDRESS/policy. A fee that the request itself"
        " named is never exceeded: cancel it and send it again.",
    )
    if is_at_cap:
        return Explanation(
            Cause.FEE_CAP_REACHED,
            f"It offers {_gwei(offered)} per gas, {market}, and a limit allows no higher price: {source} is {_gwei(cap)}.",
            evidence,
            (limits, cancel),
            since=tx.updated_at,
            expected="It is mined when the market falls to its price.",
        )
    expected = (
        "The lane raises its price by itself."
        if facts.rules.bumps
        else "It is mined when the market falls to its price."
    )
    return Explanation(
        Cause.FEE_BELOW_MARKET,
        f"It offers {_gwei(offered)} per gas, and {market}.",
        evidence,
        (bump, limits, cancel),
        since=tx.updated_at,
        expected=expected,
    )


def _fee_limit(facts: Facts, tx: TxView) -> tuple[int, str]:
    """Return the lowest known limit of the price, and what set it. The signer's policy is named by the lane's own text."""
    named = tx.payload.get("fees")
    own = _quantity(named.get("feeCap")) if isinstance(named, dict) else None
    if own is not None and (not facts.rules.fee_cap_wei or own <= facts.rules.fee_cap_wei):
        return own, "the request's own maximum fee"
    return facts.rules.fee_cap_wei, "fees.cap"


_STALLED = "the signer can't continue and is retried: "


def _lane_error(facts: Facts, tx: TxView) -> Explanation | None:
    """Explain what the lane recorded when all of its steps failed."""
    error = tx.error or ""
    if tx.sub_state is not SubState.STUCK or not (error.startswith(_STALLED) or "key store" in error):
        return None
    text = error.removeprefix(_STALLED)
    is_key = bool(re.search(r"key|sign", text, re.IGNORECASE))
    actions = (
        (
            Action(
                "fencepost doctor", "Checks the key stores, the endpoints and the database; changes nothing."
            ),
            Action(f"fencepost tx cancel {tx.tx_id}", _cancel_text(tx)),
        )
        if is_key
        else (Action("fencepost doctor", "Checks the endpoints and the database; changes nothing."),)
    )
    holder = facts.signer.lease.owner if facts.signer.lease is not None else "the lease holder"
    return Explanation(
        Cause.KEY_UNAVAILABLE if is_key else Cause.RPC_UNAVAILABLE,
        _sentence(f"Node {holder} can't continue: {text}"),
        (Evidence(error, f"node {holder}", tx.updated_at),),
        actions,
        since=tx.updated_at,
        expected="Every step is tried again with a growing pause, and it continues by itself after the first success.",
    )


def _disagreeing(facts: Facts, tx: TxView) -> Explanation | None:
    del tx
    heads: dict[int, set[str]] = {}
    for report in facts.chain.answering:
        if report.head is not None:
            heads.setdefault(report.head.number, set()).add(report.head.hash)
    number = next((number for number, hashes in sorted(heads.items()) if len(hashes) > 1), None)
    if number is None:
        return None
    return Explanation(
        Cause.RPC_DISAGREE,
        f"Endpoints report {len(heads[number])} different blocks for number {number}.",
        tuple(
            Evidence(f"block {report.head.number} is {report.head.hash}", report.endpoint, facts.now)
            for report in facts.chain.answering
            if report.head is not None
        ),
        (_urls_action(),),
        since=facts.now,
        expected="A fork ends within a few blocks. If it lasts, one endpoint serves another chain: remove it.",
    )


def _lagging(facts: Facts, tx: TxView) -> Explanation | None:
    del tx
    best = facts.chain.head
    if best is None or len(facts.chain.reports) <= 1:
        return None
    behind = [
        report
        for report in facts.chain.answering
        if report.head is not None and best.number - report.head.number > MAX_LAG_BLOCKS
    ]
    if 2 * len(behind) < len(facts.chain.reports):
        return None
    return Explanation(
        Cause.RPC_LAGGING,
        f"{len(behind)} of {len(facts.chain.reports)} endpoints are more than {MAX_LAG_BLOCKS} blocks behind head {best.number}.",
        _head_evidence(facts),
        (_urls_action(),),
        since=facts.now,
        expected="It continues when the endpoints have caught up.",
    )


_REJECTED = {
    SendCategory.NONCE_TOO_HIGH,
    SendCategory.POOL_FULL,
    SendCategory.DELEGATED_LIMIT,
    SendCategory.TYPE_CONFLICT,
    SendCategory.TYPE_NOT_SUPPORTED,
    SendCategory.FEE_CAP_EXCEEDED,
    SendCategory.REPLACEMENT_UNDERPRICED,
    SendCategory.FATAL,
    SendCategory.TERMINALLY_STUCK,
}


def _rejected(facts: Facts, tx: TxView) -> Explanation | None:
    last = _last_attempt(tx)
    if last is None or last.last_result not in _REJECTED or facts.chain.knows(tx.tx_hash):
        return None
    return Explanation(
        Cause.REFUSED_BY_NODES,
        f"The endpoints answered its last send with {last.last_result}: {last.last_message or 'no text'}.",
        _attempt_evidence(tx),
        (
            Action(f"fencepost tx resubmit {tx.tx_id}", "Sends the same bytes again now."),
            Action(f"fencepost tx cancel {tx.tx_id}", _cancel_text(tx)),
        ),
        since=tx.updated_at,
        expected="The same bytes are sent again with a growing pause.",
    )


def _dropped(facts: Facts, tx: TxView) -> Explanation | None:
    if not tx.submit_count or facts.chain.knows(tx.tx_hash) is not False or _is_consumed(facts, tx):
        return None
    return Explanation(
        Cause.DROPPED_FROM_POOL,
        f"It was sent {tx.submit_count} times, and none of {len(facts.chain.answering)} endpoints knows it any more.",
        tuple(
            Evidence(f"does not know {tx.tx_hash}", report.endpoint, facts.now)
            for report in facts.chain.answering
        ),
        (
            Action(
                f"fencepost tx resubmit {tx.tx_id}",
                "Sends the same bytes again now; they can be mined only once.",
            ),
            Action(
                f"fencepost tx bump {tx.tx_id}",
                "Signs it again at a higher price, if the pool dropped it for its price.",
            ),
        ),
        since=tx.updated_at,
        expected=f"It is sent again within {_span(facts.rules.resubmit_interval_s)}.",
    )


def _pending(facts: Facts, tx: TxView) -> Explanation | None:
    if not tx.submit_count or not facts.chain.knows(tx.tx_hash) or _is_consumed(facts, tx):
        return None
    is_old = (
        tx.sub_state is not None or (facts.now - tx.updated_at).total_seconds() >= facts.rules.stalled_after_s
    )
    if not is_old:
        return None
    head = facts.chain.head
    at = "" if head is None else f" The chain's head is block {head.number}."
    return Explanation(
        Cause.PENDING_IN_POOL,
        f"An endpoint has it in its pool, and no block has included it for {_span((facts.now - tx.updated_at).total_seconds())}.{at}",
        (
            *_attempt_evidence(tx),
            *_head_evidence(facts),
            *((Evidence(tx.error, at=tx.updated_at),) if tx.error else ()),
        ),
        (
            Action(
                f"fencepost tx bump {tx.tx_id}",
                "Signs the same transaction again at a higher price, same nonce.",
            ),
            Action(f"fencepost tx resubmit {tx.tx_id}", "Sends the same bytes to every endpoint now."),
        ),
        since=tx.updated_at,
        expected=f"The same bytes are sent again every {_span(facts.rules.resubmit_interval_s)}"
        + (", and its price is raised." if facts.rules.bumps else "."),
    )


def _in_progress(facts: Facts, tx: TxView) -> Explanation:
    holder = facts.signer.lease.owner if facts.signer.lease is not None else "no node yet"
    steps = {
        State.QUEUED: "It is next in its lane and gets a nonce with the lane's next step.",
        State.ALLOCATED: "It has its nonce and its signed bytes, and is sent with the lane's next step.",
        State.SUBMITTED: "It was sent and waits for a block.",
    }
    summary = steps.get(tx.state, "It waits for the lane's next step.")
    if _is_consumed(facts, tx):
        summary = "The chain has consumed its nonce, and its receipt is being fetched."
    return Explanation(
        Cause.IN_PROGRESS,
        summary,
        (Evidence(f"state {tx.state}, lease holder {holder}", at=tx.updated_at), *_attempt_evidence(tx)),
        since=tx.updated_at,
        expected="No action is needed.",
    )


# The order is the precedence: the first rule that applies decides. A reason a line.
RULES: Sequence[Rule] = (
    _ended,  # nothing else matters to it any more
    _suspended,  # an operator's decision about this one
    lambda facts, _tx: _read_only(facts),  # no node can do anything
    lambda facts, _tx: _unreachable(facts),  # nothing about the chain is known
    _mined,  # it needs blocks only; neither PROTECT nor a pause stops that
    lambda facts, _tx: _protected(facts),  # stops every send of the signer
    _approval,
    lambda facts, tx: _paused(facts) if tx.nonce is None else None,
    lambda facts, _tx: _no_holder(facts),
    _behind,  # from here on it is the head of its lane
    _given_up,
    _unfunded,
    _nonce_gap,
    _price,
    _lane_error,
    _chain_stalled,
    _disagreeing,
    _lagging,
    _rejected,
    _dropped,
    _pending,
)

_SIGNER_RULES: Sequence[Callable[[Facts], Explanation | None]] = (
    _read_only,
    _unreachable,
    _protected,
    _paused,
    _no_holder,
)
# These are reported although nothing waits.
_WITHOUT_WORK = frozenset({_read_only, _unreachable, _protected, _paused})


# ---- facts about a transaction, and texts


def _last_attempt(tx: TxView) -> AttemptView | None:
    return tx.attempts[-1] if tx.attempts else None


def _mined_attempt(tx: TxView) -> AttemptView | None:
    return next((one for one in tx.attempts or () if one.tx_hash == tx.tx_hash), None)


def _is_consumed(facts: Facts, tx: TxView) -> bool:
    latest = facts.chain.latest_nonce
    return tx.nonce is not None and latest is not None and latest > tx.nonce


def _attempt_evidence(tx: TxView) -> tuple[Evidence, ...]:
    last = _last_attempt(tx)
    if last is None:
        return ()
    result = f", last answer {last.last_result}" if last.last_result else ""
    message = f": {last.last_message}" if last.last_message else ""
    text = f"attempt {last.number} ({last.purpose}) {last.tx_hash} was sent {last.sent_count} times{result}{message}"
    return (Evidence(text, at=last.created_at),)


def _cancel_text(tx: TxView) -> str:
    if tx.nonce is None:
        return "Drops the request: nothing was sent."
    return "Sends a filler at the same nonce. If the original is mined first, it is confirmed as usual."


def _chain_option(facts: Facts) -> str:
    return f" --chain-id {facts.signer.signer.chain_id}"


def _height(head: Header | None) -> int:
    return -1 if head is None else head.number


def _quantity(value: Any) -> int | None:
    if isinstance(value, int):
        return value
    if not isinstance(value, str) or not re.fullmatch(r"0x[0-9a-fA-F]{1,64}|[0-9]{1,78}", value):
        return None
    return int(value, 16) if value.startswith("0x") else int(value)


def _clock(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


_MINUTE_S, _HOUR_S = 60, 3600


def _span(seconds: float) -> str:
    if seconds < _MINUTE_S:
        return f"{seconds:.0f} s"
    if seconds < _HOUR_S:
        return f"{seconds / _MINUTE_S:.0f} min"
    return f"{seconds / _HOUR_S:.1f} h"


_WEI_PER_GWEI, _WEI_PER_ETHER = 10**9, 10**18


def _decimal(wei: int, unit: int, digits: int) -> str:
    whole, part = divmod(abs(wei), unit)
    fraction = f"{part:0{digits}d}".rstrip("0")
    return f"{'-' if wei < 0 else ''}{whole}{'.' if fraction else ''}{fraction}"


def _ether(wei: int) -> str:
    return f"{_decimal(wei, _WEI_PER_ETHER, 18)} ether"


def _gwei(wei: int) -> str:
    return f"{_decimal(wei, _WEI_PER_GWEI, 9)} gwei"


def _sentence(text: str) -> str:
    return f"{text[:MAX_TEXT_CHARS].rstrip('. ')}."


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
