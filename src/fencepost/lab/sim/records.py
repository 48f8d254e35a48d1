"""What really happened in a run, written down from outside the program, and judged on the spot where that is possible.

Nothing here asks the program or its ledger whether something was right: tokens, leases, bytes and blocks are followed
by our own book. What can only be judged at the end is kept as rows for the history checker.
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
from fencepost.domain.managed import ManagedTx
from fencepost.domain.states import CursorState
from fencepost.lab.checker import Violation
from fencepost.lab.history import Acknowledged, ChainTx, FencedNote, Sent, Snapshot, TermRow, effect_of
from fencepost.lab.sim.database import FakeDatabase, Lease
from fencepost.lab.sim.keys import decode
from fencepost.lab.sim.loop import SimLoop
from fencepost.lab.sim.plan import TTL_S

# Rules that have no number among the invariants: of the lease, and of the order of requests. No money hangs on them.
UNNUMBERED = 0

MOST_VIOLATIONS = 50


@dataclass(slots=True)
class _Held:
    incarnation: UUID
    token: int
    until_s: float


@dataclass(slots=True)
class Records:
    loop: SimLoop
    database: FakeDatabase
    depth_required: int
    violations: list[Violation] = field(default_factory=list)
    trace: list[tuple[Any, ...]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)  # faults by kind, as they really struck
    xid: int = 0
    marks: list[tuple[int, float]] = field(
        default_factory=list
    )  # of each journal line: its write and its time
    terms: list[TermRow] = field(default_factory=list)
    sent: list[Sent] = field(default_factory=list)
    acknowledged: list[Acknowledged] = field(default_factory=list)
    fenced: list[FencedNote] = field(default_factory=list)
    written_by: dict[object, tuple[int, int]] = field(default_factory=dict)  # row → token and write
    deepest: dict[BlockHash, int] = field(default_factory=dict)  # how deep a block ever lay
    strangers: set[TxHash] = field(default_factory=set)
    lost: dict[TxHash, str] = field(default_factory=dict)  # stored once, and lost with its commit: its effect
    may_fail: set[UUID] = field(default_factory=set)  # somebody gave a reason
    _issued: dict[Signer, int] = field(default_factory=dict)  # the largest token ever, lost or not
    _held: dict[Signer, _Held] = field(default_factory=dict)
    _protected_by: dict[Signer, int] = field(default_factory=dict)
    _over: set[tuple[Signer, int]] = field(default_factory=set)  # terms that were told so
    _read_again: set[int] = field(default_factory=set)  # terms that have lost count of what they sent
    _sends: Counter[tuple[int, TxHash]] = field(default_factory=Counter)  # by a term
    _claims: Counter[tuple[int, UUID]] = field(default_factory=Counter)  # by a term

    def say(self, who: str, what: str, *more: object) -> None:
        self.trace.append((self.loop.time(), who, what, *more))

    def violated(self, invariant: int, what: str, where: object) -> None:
        if len(self.violations) < MOST_VIOLATIONS:
            self.violations.append(Violation(invariant, what, str(where)))
        self.say("!", f"violation of {invariant}", what)

    def struck(self, kind: str, where: str, *more: object) -> None:
        self.counts[kind] += 1
        self.say(where, f"* {kind}", *more)

    # ---- leases

    def acquired(self, incarnation: UUID, node: str, terms: Sequence[Term]) -> None:
        now_s = self.loop.time()
        for term in terms:
            before = self._held.get(term.signer)
            if term.token <= (issued := self._issued.get(term.signer, 0)):
                self.violated(4, f"token {term.token} came after {issued}", term.signer)
            self._issued[term.signer] = max(issued, term.token)
            if before is not None and before.incarnation != incarnation and now_s < before.until_s:
                left_s = before.until_s - now_s
                self.violated(
                    UNNUMBERED, f"a lease was taken {left_s:.1f} s before it had ended", term.signer
                )
            self._held[term.signer] = _Held(incarnation, term.token, now_s + TTL_S)
            sealed = Snapshot(xmin=self.xid + 1, xmax=self.xid + 1)
            self.terms.append(TermRow(_name(term.signer), term.token, node, now_s, sealed))

    def renewed(self, incarnation: UUID, terms: Sequence[Term]) -> None:
        for term in terms:
            held = self._held[term.signer]
            if held.token != term.token or held.incarnation != incarnation:
                self.violated(13, f"the lease of token {term.token} was renewed after its end", term.signer)
            else:
                held.until_s = self.loop.time() + TTL_S

    def released(self, terms: Sequence[Term]) -> None:
        for term in terms:
            held = self._held.get(term.signer)
            if held is not None and held.token == term.token:
                held.until_s = self.loop.time()

    # ---- writes

    def about_to_write(self, write: LaneWrite, *, is_trusted: bool) -> None:
        if (write.term.signer, write.term.token) in self._over:
            self.violated(13, f"token {write.term.token} goes on after it was fenced", write.term.signer)
        changes = (*write.changes, *write.fillers)
        gives_nonces = any(c.before.nonce is None and c.after.nonce is not None for c in changes)
        if gives_nonces and not is_trusted:
            self.violated(UNNUMBERED, "nonces were given under a lease that nobody trusts", write.term)

    def wrote(self, incarnation: UUID, write: LaneWrite, written: Written) -> None:
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
            self.violated(13, f"token {token} wrote under token {held.token}", signer)
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
            self.violated(9, f"it ended in a block that never lay deeper than {deepest}", tx_id)

    def mark_lines(self) -> None:
        """Journal lines that were added just now belong to the write that was made just now."""
        new = len(self.database.journal) - len(self.marks)
        self.marks += [(self.xid, self.loop.time())] * new

    # ---- a fail-over

    def foreign(self) -> set[TxHash]:
        """What the ledger can't know: a stranger's, or our own whose commit is lost."""
        if not self.lost:
            return self.strangers
        stored = {tx_hash for _, tx_hash in self.database.hashes}
        return self.strangers | (self.lost.keys() - stored)

    def failed_over(self, before: FakeDatabase, written_by: Mapping[object, tuple[int, int]]) -> None:
        """The database has other rows than a moment ago: so has our book. `written_by` is as old as they are."""
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
        self.acknowledged = [told for told in self.acknowledged if UUID(told.tx_id) in data.txs]
        tokens = {signer: lease.token for signer, lease in data.leases.items()}
        kept = {_name(signer): token for signer, token in tokens.items()}
        self.terms = [term for term in self.terms if term.token <= kept.get(term.signer, 0)]
        self.fenced = [note for note in self.fenced if note.token < kept.get(note.signer, 0)]
        self._held = {
            signer: _Held(lease.incarnation, lease.token, now_s) for signer, lease in data.leases.items()
        }
        first = data.next_token(Lease())  # what older terms still send was allowed when they began
        self._protected_by = {
            signer: first for signer, cursor in data.cursors.items() if cursor.state is CursorState.PROTECT
        }

    # ---- the chain

    def about_to_send(self, node: str, token: int, raws: Sequence[bytes]) -> None:
        for raw in raws:
            sender, tx, tx_hash = decode(raw)
            signer = Signer(tx.chain_id, sender)
            if tx_hash in self.foreign():
                continue  # it was stored when its sender committed it
            effect = effect_of(to=tx.call.to, value_wei=tx.call.value_wei, data="")
            self.sent.append(
                Sent(self.loop.time(), ChainTx(tx_hash, _name(signer), tx.nonce, effect), via=node)
            )
            owner = self.database.hashes.get((tx.chain_id, tx_hash))
            if owner is None:
                self.violated(6, f"nonce {tx.nonce} went out before it was stored", signer)
            if token >= self._protected_by.get(signer, token + 1):
                self.violated(12, f"nonce {tx.nonce} went out under PROTECT", signer)
            self._sends[token, tx_hash] += 1
            claims = 0 if owner is None else self._claims[token, owner]
            if self._sends[token, tx_hash] > 1 + claims and token not in self._read_again:
                self.violated(UNNUMBERED, f"nonce {tx.nonce} went out again without a claim", signer)

    # ---- callers and notes

    def told(self, signer: Signer, request_id: str, tx_id: UUID, effect: str) -> None:
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
