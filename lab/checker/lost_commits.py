"""Check a history after a fail-over that lost commits.

What was acknowledged or stored while commits were not synced may be gone. Everything else must hold: the fourteen
invariants for what is left, and no lost transaction may happen twice. A transaction that was sent and that no row has is
called forgotten. A signer with forgotten transactions on the chain must be in PROTECT, and no other signer may be; that
includes a signer whose first use was lost and that looks new.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from lab.checker.history import ChainTx, History, JournalLine, TermRow
from lab.checker.index import HistoryIndex
from lab.checker.invariants import Violation, check


@dataclass(frozen=True, slots=True)
class FailOver:
    """The times of a fail-over, and what was known just before it. Kept outside the database."""

    unsynced_s: float  # commits were not synced from here on
    crashed_s: float
    back_s: float  # as a promoted server, whose commits are synced
    issued: tuple[TermRow, ...]
    late_s: float  # sends and writes in progress at the crash may be this late
    before: FailOver | None = (
        None  # an earlier one without a visible loss: its last commits may be gone all the same
    )

    @property
    def last_token(self) -> int:
        return max((term.token for term in self.issued), default=0)

    def may_have_lost(self, at_s: float) -> bool:
        """Return whether a commit of this time may be lost."""
        is_within = self.unsynced_s <= at_s <= self.back_s + self.late_s
        return is_within or (self.before is not None and self.before.may_have_lost(at_s))


@dataclass(frozen=True, slots=True)
class Found:
    """The violations, and the size of the loss."""

    violations: list[Violation]
    requests_lost: int  # acknowledged, and gone
    forgotten: int  # transactions that were sent and that no row has
    protected: int  # signers in PROTECT because of those


def check_lost_commits(history: History, fail_over: FailOver) -> Found:
    """Check the history of the system when it is quiet again, with everything ever sent and acknowledged."""
    left = _LeftOver(HistoryIndex(history), fail_over)
    warranted = left.protected & {tx.signer for tx in left.forgotten.values()}
    kept = replace(
        history,
        sent=tuple(sent for sent in history.sent if not fail_over.may_have_lost(sent.at_s)),
        acknowledged=tuple(ack for ack in history.acknowledged if not fail_over.may_have_lost(ack.at_s)),
        foreign=history.foreign | left.forgotten.keys(),
        victims=history.victims | warranted,
    )
    rules = {4: left.tokens, 7: left.intents, 8: left.effects, 12: left.protection}
    own = [Violation(number, what, where) for number, rule in rules.items() for what, where in rule()]
    gone = [ack for ack in history.acknowledged if ack.tx_id not in left.index.tx]
    return Found(
        violations=check(kept) + own,
        requests_lost=sum(fail_over.may_have_lost(ack.at_s) for ack in gone),
        forgotten=len(left.forgotten),
        protected=len(warranted - history.victims),
    )


class _LeftOver:
    def __init__(self, index: HistoryIndex, fail_over: FailOver) -> None:
        self.index = index
        self.fail_over = fail_over
        self.protected = {cursor.signer for cursor in index.history.cursors if cursor.state == "PROTECT"}
        self.forgotten = _forgotten(index, fail_over)

    def tokens(self) -> Iterator[tuple[str, str]]:
        began_s = {(term.signer, term.token): term.began_s for term in self.fail_over.issued}
        for term in self.index.history.terms:
            is_new = term.began_s > self.fail_over.crashed_s
            if is_new and (term.signer, term.token) in began_s:
                yield f"token {term.token} was issued before the fail-over and after it", term.signer
            elif is_new and term.token <= self.fail_over.last_token:
                before = self.fail_over.last_token
                yield f"token {term.token} was issued after the fail-over, {before} before it", term.signer

    def intents(self) -> Iterator[tuple[str, str]]:
        wanted = {(tx.signer, tx.nonce): tx.effect for tx in self.index.history.txs if tx.nonce is not None}
        seen = [(tx, f"block {block.number}") for block, tx in self.index.mined]
        seen += [(tx, "pool") for tx in self.index.history.pool]
        for tx, where in seen:
            effect = wanted.get((tx.signer, tx.nonce), tx.effect)
            if tx.effect in (effect, _filler(tx.signer)) or self._is_excused(tx):
                continue
            yield (
                f"nonce {tx.nonce} is {effect!r} in the database and {tx.effect!r} outside",
                f"{tx.signer}, {where}",
            )

    def effects(self) -> Iterator[tuple[str, str]]:
        history = self.index.history
        mined = Counter(
            (tx.signer, tx.effect)
            for _, tx in self.index.mined
            if tx.hash not in history.foreign and tx.effect != _filler(tx.signer)
        )
        requested = Counter((tx.signer, tx.effect) for tx in history.txs)
        for (signer, effect), count in mined.items():
            if count > requested.get((signer, effect), 1):
                yield f"{effect!r} was mined {count} times", signer

    def protection(self) -> Iterator[tuple[str, str]]:
        history = self.index.history
        on_chain: dict[str, int] = {}
        for _, tx in self.index.mined:
            on_chain[tx.signer] = max(on_chain.get(tx.signer, 0), tx.nonce + 1)
        for cursor in history.cursors:
            above = on_chain.get(cursor.signer, 0)
            if above > cursor.next_nonce and cursor.signer not in self.protected:
                yield (
                    f"the chain's nonce is {above}, ours is {cursor.next_nonce}, and it is {cursor.state}",
                    cursor.signer,
                )
        for _, tx in self.index.mined:
            if tx.hash in self.forgotten and not self._is_excused(tx):
                yield f"{tx.hash} at nonce {tx.nonce} was forgotten and mined, without PROTECT", tx.signer
        since = _protected_since(history)
        for sent in history.sent:
            alarm = since.get(sent.tx.signer)
            if alarm is None or sent.at_s < self.fail_over.unsynced_s or sent.tx.hash in history.foreign:
                continue
            if sent.at_s > alarm.committed_s + self.fail_over.late_s:
                yield f"{sent.tx.hash} was sent under PROTECT", sent.tx.signer

    def _is_excused(self, tx: ChainTx) -> bool:
        return tx.hash in self.index.history.foreign or tx.signer in self.protected


def _forgotten(index: HistoryIndex, fail_over: FailOver) -> dict[str, ChainTx]:
    """Return by hash what was first sent when commits could be lost and is in no row."""
    history = index.history
    first_s: dict[str, float] = {}
    for sent in history.sent:  # by time
        first_s.setdefault(sent.tx.hash, sent.at_s)
    return {
        sent.tx.hash: sent.tx
        for sent in history.sent
        if fail_over.may_have_lost(first_s[sent.tx.hash])
        and sent.tx.hash not in index.by_hash
        and sent.tx.hash not in history.foreign
    }


def _protected_since(history: History) -> dict[str, JournalLine]:
    since: dict[str, JournalLine] = {}
    for line in history.lines:
        if line.event == "Protect":
            since.setdefault(line.signer, line)
        elif line.event == "Unprotect":
            since.pop(line.signer, None)
    return since


def _filler(signer: str) -> str:
    return f"{signer} 0 0x"
