"""Record what happens in a run from outside the program, and report violations as soon as they are visible.

The recorder keeps its own account of tokens, leases, bytes and blocks, and never asks the program. Facts that can only
be checked at the end are kept as rows for the history checker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from fencepost.application.ports import LaneWrite, Written
from fencepost.domain.ids import BlockHash, Signer, TxHash
from fencepost.domain.lease import Term
from fencepost.domain.states import CursorState
from fencepost.domain.transaction_state import ManagedTx
from fencepost.testing import InMemoryDatabase
from fencepost.testing.database import Lease
from lab.checker.history import Acknowledged, ChainTx, FencedNote, Sent, Snapshot, TermRow, effect_of
from lab.checker.invariants import Violation
from lab.sim.keys import decode
from lab.sim.loop import SimLoop
from lab.sim.plan import TTL_S

# Rules without a number among the invariants: about the lease and the order of requests.
UNNUMBERED = 0

MAX_VIOLATIONS = 50


@dataclass(slots=True)
class _Held:
    incarnation: UUID
    token: int
    until_s: float


@dataclass(slots=True)
class Recorder:
    """The account of one run: faults, terms, writes, sends, acknowledgements, violations."""

    loop: SimLoop
    database: InMemoryDatabase
    depth_required: int
    violations: list[Violation] = field(default_factory=list)
    trace: list[tuple[Any, ...]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)  # faults by kind that had an effect
    xid: int = 0
    marks: list[tuple[int, float]] = field(default_factory=list)  # write and time of each journal line
    terms: list[TermRow] = field(default_factory=list)
    sent: list[Sent] = field(default_factory=list)
    acknowledged: list[Acknowledged] = field(default_factory=list)
    fenced: list[FencedNote] = field(default_factory=list)
    written_by: dict[object, tuple[int, int]] = field(default_factory=dict)  # row → token and write
    deepest: dict[BlockHash, int] = field(default_factory=dict)  # the greatest depth of each block so far
    foreign_txs: set[TxHash] = field(default_factory=set)
    lost: dict[TxHash, str] = field(
        default_factory=dict
    )  # effects of transactions that were stored and lost with their commit
    may_fail: set[UUID] = field(default_factory=set)  # transactions with a cause to fail outside the program
    _issued: dict[Signer, int] = field(default_factory=dict)  # the largest token ever issued, lost or not
    _held: dict[Signer, _Held] = field(default_factory=dict)
    _protected_by: dict[Signer, int] = field(default_factory=dict)
    _over: set[tuple[Signer, int]] = field(default_factory=set)  # terms that the ledger reported as fenced
    _read_again: set[int] = field(
        default_factory=set
    )  # terms whose write was rejected, so that they read their state again
    _sends: Counter[tuple[int, TxHash]] = field(default_factory=Counter)  # per term
    _claims: Counter[tuple[int, UUID]] = field(default_factory=Counter)  # per term

    def log(self, who: str, what: str, *more: object) -> None:
        self.trace.append((self.loop.time(), who, what, *more))

    def add_violation(self, invariant: int, what: str, where: object) -> None:
        if len(self.violations) < MAX_VIOLATIONS:
            self.violations.append(Violation(invariant, what, str(where)))
        self.log("!", f"violation of {invariant}", what)

    def count_fault(self, kind: str, where: str, *more: object) -> None:
        self.counts[kind] += 1
        self.log(where, f"* {kind}", *more)

    def check_not_undone(self, write: LaneWrite) -> None:
        """Report a mined transaction that was undone because an endpoint serves another chain."""
        if self.counts["reorg"] or self.counts["fork_unwatched"]:
            return
        for change in write.changes:
            if change.before.mined is not None and change.after.mined is None:
                self.add_violation(
                    9, f"{change.before.tx_id} was undone by another chain", change.before.signer
                )

    # ---- leases

    def acquired(self, incarnation: UUID, node: str, terms: Sequence[Term]) -> None:
        now_s = self.loop.time()
        for term in terms:
            before = self._held.get(term.signer)
            if term.token <= (issued := self._issued.get(term.signer, 0)):
                self.add_violation(4, f"token {term.token} came after {issued}", term.signer)
            self._issued[term.signer] = max(issued, term.token)
            if before is not None and before.incarnation != incarnation and now_s < before.until_s:
                left_s = before.until_s - now_s
                self.add_violation(
                    UNNUMBERED, f"a lease was taken {left_s:.1f} s before it had ended", term.signer
                )
            self._held[term.signer] = _Held(incarnation, term.token, now_s + TTL_S)
            sealed = Snapshot(xmin=self.xid + 1, xmax=self.xid + 1)
            self.terms.append(TermRow(_name(term.signer), term.token, node, now_s, sealed))

    def renewed(self, incarnation: UUID, terms: Sequence[Term]) -> None:
        for term in terms:
            held = self._held[term.signer]
            if held.token != term.token or held.incarnation != incarnation:
                self.add_violation(
                    13, f"the lease of token {term.token} was renewed after its end", term.signer
                )
            else:
                held.until_s = self.loop.time() + TTL_S

    def released(self, terms: Sequence[Term]) -> None:
        for term in terms:
            held = self._held.get(term.signer)
            if held is not None and held.token == term.token:
                held.until_s = self.loop.time()

    # ---- writes

    def before_write(self, write: LaneWrite, *, is_trusted: bool) -> None:
        if (write.term.signer, write.term.token) in self._over:
            self.add_violation(13, f"token {write.term.token} goes on after it was fenced", write.term.signer)
        changes = (*write.changes, *write.fillers)
        gives_nonces = any(c.before.nonce is None and c.after.nonce is not None for c in changes)
        if gives_nonces and not is_trusted:
            self.add_violation(
                UNNUMBERED, "nonces were allocated under a lease that is not trusted any more", write.term
            )

    def after_write(self, incarnation: UUID, write: LaneWrite, written: Written) -> None:
        signer, token = write.term.signer, write.term.token
        if not written.lease_ok:
            self._over.add((signer, token))
            return
        if not written.applied:
            self._read_again.add(token)
            return
        self.xid += 1
        self.mark_lines()
        held = self._held[signer]
        if (held.token, held.incarnation) != (token, incarnation):
            self.add_violation(13, f"token {token} wrote under token {held.token}", signer)
        for change in (*write.changes, *write.fillers):
            self.written_by[change.after.tx_id] = (token, self.xid)
            self._claims[token, change.after.tx_id] += any(e.event == "Resubmit" for e in change.entries)
            for attempt in change.after.attempts:
                self.written_by.setdefault(attempt.signed.hash, (token, self.xid))
            if change.after.is_terminal and change.after.mined is not None and not change.before.is_terminal:
                self._ended(change.after.mined.block.hash, change.after.tx_id)
        after = write.cursor_after
        if after is not None:
            self.written_by[signer] = (token, self.xid)
            if after.state is CursorState.PROTECT:
                self._protected_by.setdefault(signer, token)
            else:
                self._protected_by.pop(signer, None)

    def _ended(self, block: BlockHash, tx_id: UUID) -> None:
        deepest = self.deepest.get(block, -1)
        if deepest < self.depth_required:
            self.add_violation(9, f"it ended in a block that never lay deeper than {deepest}", tx_id)

    def mark_lines(self) -> None:
        """Assign the new journal lines to the write that was just made."""
        new = len(self.database.journal) - len(self.marks)
        self.marks += [(self.xid, self.loop.time())] * new

    # ---- a fail-over

    def foreign_hashes(self) -> set[TxHash]:
        """Return the hashes that the ledger can't know: foreign ones, and those whose commit was lost."""
        if not self.lost:
            return self.foreign_txs
        stored = {tx_hash for _, tx_hash in self.database.hashes}
        return self.foreign_txs | (self.lost.keys() - stored)

    def after_failover(self, before: InMemoryDatabase, written_by: Mapping[object, tuple[int, int]]) -> None:
        """Adapt the account to the rows that are left; `written_by` is from the time of the copy."""
        data, now_s = self.database, self.loop.time()
        gone = {
            attempt.signed.hash: tx
            for tx in before.txs.values()
            for attempt in tx.attempts
            if (tx.signer.chain_id, attempt.signed.hash) not in data.hashes
        }
        self.may_fail |= {tx.tx_id for tx in gone.values()}
        self.lost |= {tx_hash: _effect(tx, tx_hash) for tx_hash, tx in gone.items()}
        self.sent = [sent for sent in self.sent if sent.tx.hash not in gone]
        del self.marks[len(data.journal) :]
        self.written_by = dict(written_by)
        self.acknowledged = [ack for ack in self.acknowledged if UUID(ack.tx_id) in data.txs]
        tokens = {signer: lease.token for signer, lease in data.leases.items()}
        kept = {_name(signer): token for signer, token in tokens.items()}
        self.terms = [term for term in self.terms if term.token <= kept.get(term.signer, 0)]
        self.fenced = [note for note in self.fenced if note.token < kept.get(note.signer, 0)]
        self._held = {
            signer: _Held(lease.incarnation, lease.token, now_s) for signer, lease in data.leases.items()
        }
        first = data.next_token(Lease())  # sends of older terms were allowed when they began
        self._protected_by = {
            signer: first for signer, cursor in data.cursors.items() if cursor.state is CursorState.PROTECT
        }

    def forget_stopped_terms(self) -> None:
        """Forget the terms of stopped processes: the restored database may issue their tokens again."""
        self._issued = {signer: lease.token for signer, lease in self.database.leases.items()}
        self._over.clear()
        self._read_again.clear()
        self._sends.clear()
        self._claims.clear()

    # ---- the chain

    def before_send(self, node: str, token: int, raws: Sequence[bytes]) -> None:
        for raw in raws:
            sender, tx, tx_hash = decode(raw)
            signer = Signer(tx.chain_id, sender)
            if tx_hash in self.foreign_hashes():
                continue  # it was stored when its term committed it
            effect = effect_of(to=tx.call.to, value_wei=tx.call.value_wei, data="")
            self.sent.append(
                Sent(self.loop.time(), ChainTx(tx_hash, _name(signer), tx.nonce, effect), via=node)
            )
            owner = self.database.hashes.get((tx.chain_id, tx_hash))
            if owner is None:
                self.add_violation(6, f"nonce {tx.nonce} went out before it was stored", signer)
            if token >= self._protected_by.get(signer, token + 1):
                self.add_violation(12, f"nonce {tx.nonce} went out under PROTECT", signer)
            self._sends[token, tx_hash] += 1
            claims = 0 if owner is None else self._claims[token, owner]
            if self._sends[token, tx_hash] > 1 + claims and token not in self._read_again:
                self.add_violation(UNNUMBERED, f"nonce {tx.nonce} went out again without a claim", signer)

    # ---- callers and notes

    def acknowledge(self, signer: Signer, request_id: str, tx_id: UUID, effect: str) -> None:
        self.acknowledged.append(
            Acknowledged(self.loop.time(), _name(signer), request_id, str(tx_id), effect)
        )

    def noted(self, event: str, fields: Mapping[str, Any]) -> None:
        if event == "fenced":
            self.fenced.append(FencedNote(self.loop.time(), _name(fields["signer"]), fields["token"]))


def _effect(tx: ManagedTx, tx_hash: TxHash) -> str:
    raw = next(attempt.signed.raw for attempt in tx.attempts if attempt.signed.hash == tx_hash)
    call = decode(raw)[1].call
    return effect_of(to=call.to, value_wei=call.value_wei, data="")


def _name(signer: Signer) -> str:
    return signer.address
