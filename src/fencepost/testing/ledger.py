"""Implement the `Ledger` port in memory: one `InMemoryLedger` per node, all over one `InMemoryDatabase`.

It enforces what PostgreSQL enforces: unique request ids, nonces and hashes, legal state transitions, row constraints, the
fencing token in every write, and atomic writes. The database has its own clock; a node may have another, so times are
stored relative to now. `tests/contract` runs the same tests against it and the real ledger.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID, uuid4

from fencepost.application.canonical_payload import canonical, digest
from fencepost.application.ports import (
    MAX_BEHIND,
    YOUNG_HISTORY_S,
    Accepted,
    AcceptOutcome,
    Command,
    LaneState,
    LaneWrite,
    NewRequest,
    TxChange,
    UnreadableRow,
    Written,
)
from fencepost.domain.confirmations import BlockRef
from fencepost.domain.ids import Signer, TxHash
from fencepost.domain.lease import Term, history_of
from fencepost.domain.states import LIVE, TERMINAL, CursorState, State, is_legal
from fencepost.domain.transaction_state import Attempt, JournalEntry, ManagedTx
from fencepost.testing.database import InMemoryDatabase, JournalRow, Lease, StoredCommand, TimeSource

MAX_TEXT = 2_000
MAX_COMMANDS = 100


class ConstraintViolation(Exception):
    """A constraint rejects the write, which changes nothing."""


def shifted(at_s: float | None, by_s: float) -> float | None:
    """Return a time on another clock; None stays None."""
    return None if at_s is None else at_s + by_s


def merged(row: ManagedTx, change: TxChange) -> tuple[Attempt, ...]:
    """Merge the attempts of a change into those of the row.

    New attempts are stored unsent; only a later write changes their counters, because bytes are stored before they are sent.
    """
    before = {attempt.number: attempt for attempt in change.before.attempts}
    stored = {attempt.number: attempt for attempt in row.attempts}
    for attempt in change.after.attempts:
        known = before.get(attempt.number)
        if known is None:
            if attempt.number in stored:
                raise ConstraintViolation
            if not 0 <= attempt.fees.tip_wei <= attempt.fees.fee_cap_wei or attempt.gas <= 0:
                raise ConstraintViolation
            stored[attempt.number] = attempt.changed(sent_count=0, last_result=None, last_message="")
        elif attempt.sent_count != known.sent_count:
            stored[attempt.number] = stored[attempt.number].changed(
                sent_count=attempt.sent_count,
                last_result=attempt.last_result,
                last_message=attempt.last_message[:MAX_TEXT],
            )
    return tuple(stored[number] for number in sorted(stored))


class InMemoryLedger:
    """The `Ledger` port of one node."""

    def __init__(
        self,
        database: InMemoryDatabase,
        *,
        node: str = "node",
        incarnation: UUID | None = None,
        lease_duration_s: float = 10.0,
        skew_allowance_s: float = 1.0,
        clock: TimeSource | None = None,
    ) -> None:
        self.database = database
        self._clock = clock or database.clock
        self._node = node
        self._incarnation = incarnation or uuid4()
        self._lease_duration_s = lease_duration_s
        self._skew_allowance_s = skew_allowance_s

    # ---- accepting

    async def accept(self, requests: Sequence[NewRequest]) -> Sequence[Accepted]:
        await asyncio.sleep(0)
        waiting: dict[Signer, list[int]] = defaultdict(list)
        for tx in self.database.txs.values():
            if tx.state is State.QUEUED:
                waiting[tx.signer].append(tx.seq)
        return [self._accept_one(request, tuple(waiting[request.signer])) for request in requests]

    def _accept_one(self, request: NewRequest, behind: tuple[int, ...]) -> Accepted:
        data = self.database
        if request.request_id is not None:
            known = data.requests.get((request.signer, request.request_id))
            if known is not None:
                same = data.digests[known] == digest(canonical(request.intent))
                return Accepted(AcceptOutcome.KNOWN if same else AcceptOutcome.CONFLICT, known)
        cursor = data.cursors.get(request.signer)
        if cursor is not None and cursor.state is CursorState.PROTECT:
            return Accepted(AcceptOutcome.PROTECTED, request.tx_id, cursor.reason or "")
        stored = self._in_node_time(self._store_new(request))
        if len(behind) > MAX_BEHIND:
            return Accepted(AcceptOutcome.CREATED, request.tx_id)
        return Accepted(AcceptOutcome.CREATED, request.tx_id, queued=stored, behind=behind)

    def _store_new(self, request: NewRequest) -> ManagedTx:
        data, now_s = self.database, self.database.clock.now_s()
        valid_until_s = None if request.valid_for_s is None else now_s + request.valid_for_s
        data.txs[request.tx_id] = stored = ManagedTx(
            tx_id=request.tx_id,
            signer=request.signer,
            seq=len(data.txs) + 1,
            kind=request.kind,
            intent=request.intent,
            request_id=request.request_id,
            origin=request.origin,
            journal_count=1,
            valid_until_s=valid_until_s,
        )
        data.digests[request.tx_id] = digest(canonical(request.intent))
        if request.request_id is not None:
            data.requests[request.signer, request.request_id] = request.tx_id
        data.journal.append(
            JournalRow(
                request.signer,
                request.tx_id,
                "Receive",
                State.QUEUED,
                {},
                self._node,
                None,
                data.timeline,
            )
        )
        return stored

    async def add_command(
        self,
        signer: Signer,
        command: str,
        *,
        tx_id: UUID | None,
        author: str,
        reason: str | None,
        detail: Mapping[str, Any],
    ) -> int:
        await asyncio.sleep(0)
        number = len(self.database.commands) + 1
        stored = Command(number, command, tx_id, dict(detail), author, reason)
        self.database.commands[number] = StoredCommand(signer, stored)
        return number

    # ---- leases

    async def acquire(self, signers: Sequence[Signer]) -> Sequence[Term]:
        await asyncio.sleep(0)
        now_s = self.database.clock.now_s()
        renewed_s = self._clock.now_s()
        terms = []
        for signer in dict.fromkeys(signers):
            lease = self.database.leases.setdefault(signer, Lease())
            if lease.incarnation == self._incarnation or self._is_free(lease):
                lease.node, lease.incarnation = self._node, self._incarnation
                lease.token = self.database.next_token(lease)
                lease.expires_at_s = now_s + self._lease_duration_s
                terms.append(Term(signer, lease.token, renewed_s, self._lease_duration_s))
        return terms

    def _is_free(self, lease: Lease) -> bool:
        return lease.expires_at_s + self._skew_allowance_s < self.database.clock.now_s()

    async def renew(self, terms: Sequence[Term]) -> Sequence[Term]:
        await asyncio.sleep(0)
        now_s = self.database.clock.now_s()
        current = [term for term in terms if self._is_current(term)]
        for term in current:
            self.database.leases[term.signer].expires_at_s = now_s + self._lease_duration_s
        renewed_s = self._clock.now_s()
        return [Term(term.signer, term.token, renewed_s, self._lease_duration_s) for term in current]

    async def release(self, terms: Sequence[Term]) -> None:
        await asyncio.sleep(0)
        for term in terms:
            if self._is_current(term):
                self.database.leases[term.signer].expires_at_s = float("-inf")

    def _is_current(self, term: Term) -> bool:
        lease = self.database.leases.get(term.signer)
        return lease is not None and lease.token == term.token

    async def signers_with_work(
        self, chain_ids: Sequence[int], *, limit: int, after: Signer | None = None
    ) -> Sequence[Signer]:
        await asyncio.sleep(0)
        busy = {tx.signer for tx in self.database.txs.values() if tx.state in LIVE}
        busy |= {stored.signer for stored in self.database.commands.values() if stored.outcome is None}
        free = [
            signer
            for signer in sorted(busy)
            if signer.chain_id in chain_ids
            and (after is None or signer > after)
            and self._is_free(self.database.leases.get(signer, Lease()))
        ]
        return free[:limit]

    async def signers_finished_since(
        self, chain_id: int, block_number: int, *, limit: int, after: Signer | None = None
    ) -> Sequence[Signer]:
        await asyncio.sleep(0)
        found = {
            tx.signer
            for tx in self.database.txs.values()
            if tx.signer.chain_id == chain_id
            and tx.state in TERMINAL
            and (ended := _ended_block(tx)) is not None
            and ended.number >= block_number
            and (after is None or tx.signer > after)
        }
        return sorted(found)[:limit]

    async def newest_ended_blocks(
        self, chain_id: int, *, limit: int, below: int | None = None
    ) -> Sequence[BlockRef]:
        await asyncio.sleep(0)
        blocks = {
            ended
            for tx in self.database.txs.values()
            if tx.signer.chain_id == chain_id
            and tx.state in TERMINAL
            and (ended := _ended_block(tx)) is not None
            and (below is None or ended.number < below)
        }
        numbers = sorted({block.number for block in blocks}, reverse=True)[:limit]
        return sorted((block for block in blocks if block.number in numbers), reverse=True)

    # ---- reading

    async def load(self, signer: Signer, *, queue_limit: int) -> LaneState:
        stored = [tx for tx in self.database.of_signer(signer) if tx.state in LIVE]
        live = [tx for tx in stored if tx.nonce is not None and tx.tx_id not in self.database.unreadable]
        return LaneState(
            cursor=self.database.cursors.get(signer),
            in_flight=tuple(sorted(map(self._in_node_time, live), key=ManagedTx.held_nonce)),
            queue=tuple(await self._queue(signer, queue_limit)),
            cursor_token=self.database.cursor_tokens.get(signer),
            may_be_forgotten=signer not in self.database.cursors and self._is_history_young(),
            unreadable=tuple(self._unreadable(tx) for tx in stored if tx.tx_id in self.database.unreadable),
            is_from_copy=self._is_from_copy(signer),
        )

    async def load_cursor(self, signer: Signer) -> LaneState:
        await asyncio.sleep(0)
        return LaneState(
            cursor=self.database.cursors.get(signer),
            in_flight=(),
            queue=(),
            cursor_token=self.database.cursor_tokens.get(signer),
            may_be_forgotten=signer not in self.database.cursors and self._is_history_young(),
            is_from_copy=self._is_from_copy(signer),
        )

    def _unreadable(self, tx: ManagedTx) -> UnreadableRow:
        return UnreadableRow(tx, self.database.unreadable[tx.tx_id])

    def _readable(self, tx: ManagedTx) -> ManagedTx:
        if tx.tx_id in self.database.unreadable:
            raise self._unreadable(tx)
        return self._in_node_time(tx)

    def _is_from_copy(self, signer: Signer) -> bool:
        token = self.database.cursor_tokens.get(signer)
        if token is None:
            return self.database.newest_copy == self.database.timeline
        return self.database.newest_copy > history_of(token)

    def _is_history_young(self) -> bool:
        return self.database.clock.now_s() < self.database.history_began_s + YOUNG_HISTORY_S

    async def load_queue(self, signer: Signer, *, limit: int) -> Sequence[ManagedTx]:
        for tx in self._queued(signer)[:limit]:
            self._readable(tx)
        return await self._queue(signer, limit)

    def _queued(self, signer: Signer) -> list[ManagedTx]:
        queued = [tx for tx in self.database.of_signer(signer) if tx.state is State.QUEUED]
        return sorted(queued, key=lambda tx: tx.seq)

    async def _queue(self, signer: Signer, limit: int) -> Sequence[ManagedTx]:
        await asyncio.sleep(0)
        readable = [tx for tx in self._queued(signer)[:limit] if tx.tx_id not in self.database.unreadable]
        return [self._in_node_time(tx).changed(last_submit_s=None, resubmit_due_s=None) for tx in readable]

    async def load_unsent(self, signer: Signer, *, after_seq: int, limit: int) -> Sequence[ManagedTx]:
        await asyncio.sleep(0)
        unsent = [
            tx
            for tx in self.database.of_signer(signer)
            if tx.state in LIVE and tx.nonce is None and tx.seq > after_seq
        ]
        return [self._in_node_time(tx) for tx in sorted(unsent, key=lambda tx: tx.seq)[:limit]]

    async def load_commands(self, signer: Signer) -> Sequence[Command]:
        await asyncio.sleep(0)
        open_ = [
            a.command for a in self.database.commands.values() if a.signer == signer and a.outcome is None
        ]
        return open_[:MAX_COMMANDS]

    async def load_finished(self, signer: Signer, *, from_nonce: int, limit: int) -> Sequence[ManagedTx]:
        await asyncio.sleep(0)
        ended = [
            self._in_node_time(tx).changed(resubmit_due_s=None, valid_until_s=None)
            for tx in self.database.of_signer(signer)
            if tx.state in TERMINAL and tx.nonce is not None and tx.nonce >= from_nonce
        ]
        return sorted(ended, key=ManagedTx.held_nonce)[:limit]

    async def get(self, tx_id: UUID) -> ManagedTx | None:
        await asyncio.sleep(0)
        tx = self.database.txs.get(tx_id)
        return None if tx is None else self._readable(tx)

    async def find_by_request(self, signer: Signer, request_id: str) -> ManagedTx | None:
        await asyncio.sleep(0)
        tx_id = self.database.requests.get((signer, request_id))
        return None if tx_id is None else self._readable(self.database.txs[tx_id])

    def _in_node_time(self, tx: ManagedTx) -> ManagedTx:
        """Return the transaction with its times on the node's clock."""
        ahead_s = self._ahead_s()
        if ahead_s == 0.0:
            return tx
        return tx.changed(
            last_submit_s=shifted(tx.last_submit_s, ahead_s),
            resubmit_due_s=shifted(tx.resubmit_due_s, ahead_s),
            valid_until_s=shifted(tx.valid_until_s, ahead_s),
        )

    def _ahead_s(self) -> float:
        """Return how far the node's clock is ahead of the database's; exactly 0 if they share one."""
        if self._clock is self.database.clock:
            return 0.0
        return self._clock.now_s() - self.database.clock.now_s()

    # ---- the fenced write

    async def commit(self, write: LaneWrite) -> Written:
        await asyncio.sleep(0)
        if not self._is_current(write.term):
            return Written(lease_ok=False, applied=False)
        try:
            self._check_cursor(write)
            stored = [self._stored(change, self._row(change)) for change in write.changes]
            stored += [self._stored(change, self._new_row(change)) for change in write.fillers]
            nonces, hashes = self._claims(stored)
        except ConstraintViolation:
            return Written(lease_ok=True, applied=False)
        self.database.nonces.update(nonces)
        self.database.hashes.update(hashes)
        self._apply(write, stored)
        return Written(lease_ok=True, applied=True)

    async def commit_each(self, writes: Sequence[LaneWrite]) -> Sequence[Written]:
        return [await self.commit(write) for write in writes]

    def _apply(self, write: LaneWrite, stored: Sequence[ManagedTx]) -> None:
        data, signer = self.database, write.term.signer
        data.txs.update({tx.tx_id: tx for tx in stored})
        data.digests.update({f.after.tx_id: digest(canonical(f.after.intent)) for f in write.fillers})
        if write.cursor_after is not None:
            data.cursors[signer] = write.cursor_after
            data.cursor_tokens[signer] = write.term.token
        for entry in write.entries:
            self._journal(write, None, entry)
        for change in (*write.changes, *write.fillers):
            for entry in change.entries:
                self._journal(write, change.after, entry)
        for number, outcome, applied in write.done_commands:
            command = data.commands.get(number)
            if command is not None and command.signer == signer:
                command.outcome, command.applied = outcome, applied

    def _journal(self, write: LaneWrite, tx: ManagedTx | None, entry: JournalEntry) -> None:
        tx_id, state = (tx.tx_id, entry.state or tx.state) if tx is not None else (None, None)
        self.database.journal.append(
            JournalRow(
                write.term.signer,
                tx_id,
                entry.event,
                state,
                entry.detail,
                self._node,
                write.term.token,
                self.database.timeline,
            )
        )

    def _check_cursor(self, write: LaneWrite) -> None:
        before, after = write.cursor_before, write.cursor_after
        if after is None:
            return
        stored = self.database.cursors.get(write.term.signer)
        expected = None if before is None else (before.next_nonce, before.state)
        if expected != (None if stored is None else (stored.next_nonce, stored.state)):
            raise ConstraintViolation
        if not 0 <= after.start_nonce <= after.next_nonce:
            raise ConstraintViolation
        if after.state is CursorState.PROTECT and after.reason is None:
            raise ConstraintViolation

    def _row(self, change: TxChange) -> ManagedTx:
        row = self.database.txs.get(change.before.tx_id)
        if row is None or row.version != change.before.version:
            raise ConstraintViolation
        return row

    def _new_row(self, change: TxChange) -> ManagedTx:
        if change.before.tx_id in self.database.txs:
            raise ConstraintViolation
        return change.before.changed(seq=len(self.database.txs) + 1)

    def _stored(self, change: TxChange, row: ManagedTx) -> ManagedTx:
        """Return the row after the change, with only the fields that the real statement writes."""
        after = change.after
        if not is_legal(row.state, after.state):
            raise ConstraintViolation
        if after.nonce is None and after.state in (State.ALLOCATED, State.SUBMITTED):
            raise ConstraintViolation
        if after.state is State.QUEUED and after.nonce is not None:
            raise ConstraintViolation
        if after.state in (State.TRACKING, State.CONFIRMED) and (after.mined is None or after.nonce is None):
            raise ConstraintViolation
        behind_s = -self._ahead_s()
        return row.changed(
            version=row.version + 1,
            state=after.state,
            sub_state=after.sub_state,
            nonce=after.nonce,
            ending=after.ending,
            error=after.error[:MAX_TEXT] if after.error else None,
            attempts=merged(row, change),
            mined=after.mined,
            lost_at=after.lost_at,
            confirmations=after.confirmations,
            submit_count=after.submit_count,
            journal_count=after.journal_count,
            last_submit_s=shifted(after.last_submit_s, behind_s),
            resubmit_due_s=shifted(after.resubmit_due_s, behind_s),
        )

    def _claims(
        self, stored: Sequence[ManagedTx]
    ) -> tuple[dict[tuple[Signer, int], UUID], dict[tuple[int, TxHash], UUID]]:
        """Return the nonces and hashes that the write claims; reject those that another transaction has."""
        nonces: dict[tuple[Signer, int], UUID] = {}
        hashes: dict[tuple[int, TxHash], UUID] = {}
        for tx in stored:
            if tx.nonce is not None:
                key = (tx.signer, tx.nonce)
                if self.database.nonces.get(key, nonces.get(key, tx.tx_id)) != tx.tx_id:
                    raise ConstraintViolation
                nonces[key] = tx.tx_id
            row = self.database.txs.get(tx.tx_id)
            known = {attempt.number for attempt in row.attempts} if row is not None else set()
            for attempt in tx.attempts:
                name = (tx.signer.chain_id, attempt.signed.hash)
                if attempt.number not in known and (name in self.database.hashes or name in hashes):
                    raise ConstraintViolation
                hashes[name] = tx.tx_id
        return nonces, hashes


def _ended_block(tx: ManagedTx) -> BlockRef | None:
    return tx.lost_at if tx.mined is None else tx.mined.block
