"""The ledger in memory: a `FakeLedger` a node, all talking to one `FakeDatabase`.

It keeps what PostgreSQL keeps: unique request ids, nonces and hashes, the table of transitions, the rows' checks, the
token in every write, all or nothing. The database has a clock of its own; a node may have another, and what it says
about times is stored as distances from its own now. `tests/contract` holds all this to what the real one does.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID, uuid4

from fencepost.application.intents import canonical, digest
from fencepost.application.ports import (
    MOST_BEHIND,
    YOUNG_HISTORY_S,
    Accepted,
    AcceptOutcome,
    Command,
    LaneState,
    LaneWrite,
    NewRequest,
    TxChange,
    Written,
)
from fencepost.domain.confirmations import BlockRef
from fencepost.domain.ids import Signer, TxHash
from fencepost.domain.lease import Term
from fencepost.domain.managed import Entry, ManagedTx
from fencepost.domain.states import LIVE, TERMINAL, CursorState, State, is_legal
from fencepost.lab.sim.database import Asked, FakeDatabase, JournalRow, Lease, Now
from fencepost.lab.sim.stored import MOST_TEXT, Refused, merged, shifted

__all__ = ["FakeDatabase", "FakeLedger"]

MOST_COMMANDS = 100


class FakeLedger:
    def __init__(
        self,
        database: FakeDatabase,
        *,
        node: str = "node",
        incarnation: UUID | None = None,
        lease_duration_s: float = 10.0,
        skew_allowance_s: float = 1.0,
        clock: Now | None = None,
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

    async def accept_one(self, request: NewRequest) -> Accepted:
        return (await self.accept([request]))[0]

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
        stored = self._told(self._store_new(request))
        if len(behind) > MOST_BEHIND:
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
            JournalRow(request.signer, request.tx_id, "Receive", State.QUEUED, {}, self._node, None)
        )
        return stored

    async def ask(
        self,
        signer: Signer,
        command: str,
        *,
        tx_id: UUID | None,
        asked_by: str,
        reason: str | None,
        detail: Mapping[str, Any],
    ) -> int:
        await asyncio.sleep(0)
        number = len(self.database.asked) + 1
        asked = Command(number, command, tx_id, dict(detail), asked_by, reason)
        self.database.asked[number] = Asked(signer, asked)
        return number

    # ---- leases

    async def acquire(self, signers: Sequence[Signer]) -> Sequence[Term]:
        await asyncio.sleep(0)
        now_s = self.database.clock.now_s()
        said_s = self._clock.now_s()
        terms = []
        for signer in dict.fromkeys(signers):
            lease = self.database.leases.setdefault(signer, Lease())
            if lease.incarnation == self._incarnation or self._is_free(lease):
                lease.node, lease.incarnation = self._node, self._incarnation
                lease.token = self.database.next_token(lease)
                lease.expires_at_s = now_s + self._lease_duration_s
                terms.append(Term(signer, lease.token, said_s, self._lease_duration_s))
        return terms

    def _is_free(self, lease: Lease) -> bool:
        return lease.expires_at_s + self._skew_allowance_s < self.database.clock.now_s()

    async def renew(self, terms: Sequence[Term]) -> Sequence[Term]:
        await asyncio.sleep(0)
        now_s = self.database.clock.now_s()
        standing = [term for term in terms if self._stands(term)]
        for term in standing:
            self.database.leases[term.signer].expires_at_s = now_s + self._lease_duration_s
        said_s = self._clock.now_s()
        return [Term(term.signer, term.token, said_s, self._lease_duration_s) for term in standing]

    async def release(self, terms: Sequence[Term]) -> None:
        await asyncio.sleep(0)
        for term in terms:
            if self._stands(term):
                self.database.leases[term.signer].expires_at_s = float("-inf")

    def _stands(self, term: Term) -> bool:
        lease = self.database.leases.get(term.signer)
        return lease is not None and lease.token == term.token

    async def signers_with_work(
        self, chain_ids: Sequence[int], *, limit: int, after: Signer | None = None
    ) -> Sequence[Signer]:
        await asyncio.sleep(0)
        busy = {tx.signer for tx in self.database.txs.values() if tx.state in LIVE}
        busy |= {asked.signer for asked in self.database.asked.values() if asked.outcome is None}
        free = [
            signer
            for signer in sorted(busy)
            if signer.chain_id in chain_ids
            and (after is None or signer > after)
            and self._is_free(self.database.leases.get(signer, Lease()))
        ]
        return free[:limit]

    async def signers_finished_since(self, chain_id: int, block_number: int) -> Sequence[Signer]:
        await asyncio.sleep(0)
        return sorted(
            {
                tx.signer
                for tx in self.database.txs.values()
                if tx.signer.chain_id == chain_id
                and tx.state in TERMINAL
                and tx.mined is not None
                and tx.mined.block.number >= block_number
            }
        )

    async def newest_ended_blocks(self, chain_id: int, *, limit: int) -> Sequence[BlockRef]:
        await asyncio.sleep(0)
        ended = [
            tx
            for tx in self.database.txs.values()
            if tx.signer.chain_id == chain_id and tx.state in TERMINAL and tx.mined is not None
        ]
        newest = sorted(ended, key=lambda tx: tx.seq, reverse=True)[:limit]
        blocks = {tx.mined.block for tx in newest if tx.mined is not None}
        return sorted(blocks, key=lambda block: (block.number, block.hash), reverse=True)

    # ---- reading

    async def load(self, signer: Signer, *, queue_limit: int) -> LaneState:
        live = [tx for tx in self.database.of_signer(signer) if tx.state in LIVE and tx.nonce is not None]
        return LaneState(
            cursor=self.database.cursors.get(signer),
            in_flight=tuple(sorted(map(self._told, live), key=ManagedTx.held_nonce)),
            queue=tuple(await self.load_queue(signer, limit=queue_limit)),
            cursor_token=self.database.cursor_tokens.get(signer),
            may_be_forgotten=signer not in self.database.cursors and self._is_history_young(),
        )

    def _is_history_young(self) -> bool:
        return self.database.clock.now_s() < self.database.history_began_s + YOUNG_HISTORY_S

    async def load_queue(self, signer: Signer, *, limit: int) -> Sequence[ManagedTx]:
        await asyncio.sleep(0)
        queued = [tx for tx in self.database.of_signer(signer) if tx.state is State.QUEUED]
        queued.sort(key=lambda tx: tx.seq)
        return [self._told(tx).changed(last_submit_s=None, resubmit_due_s=None) for tx in queued[:limit]]

    async def load_commands(self, signer: Signer) -> Sequence[Command]:
        await asyncio.sleep(0)
        open_ = [a.command for a in self.database.asked.values() if a.signer == signer and a.outcome is None]
        return open_[:MOST_COMMANDS]

    async def load_finished(self, signer: Signer, *, from_nonce: int, limit: int) -> Sequence[ManagedTx]:
        await asyncio.sleep(0)
        ended = [
            self._told(tx).changed(resubmit_due_s=None, valid_until_s=None)
            for tx in self.database.of_signer(signer)
            if tx.state in TERMINAL and tx.nonce is not None and tx.nonce >= from_nonce
        ]
        return sorted(ended, key=ManagedTx.held_nonce)[:limit]

    async def get(self, tx_id: UUID) -> ManagedTx | None:
        await asyncio.sleep(0)
        tx = self.database.txs.get(tx_id)
        return None if tx is None else self._told(tx)

    async def find_by_request(self, signer: Signer, request_id: str) -> ManagedTx | None:
        await asyncio.sleep(0)
        tx_id = self.database.requests.get((signer, request_id))
        return None if tx_id is None else self._told(self.database.txs[tx_id])

    def _told(self, tx: ManagedTx) -> ManagedTx:
        """As the node's own clock says it."""
        ahead_s = self._clock.now_s() - self.database.clock.now_s()
        if ahead_s == 0.0:
            return tx
        return tx.changed(
            last_submit_s=shifted(tx.last_submit_s, ahead_s),
            resubmit_due_s=shifted(tx.resubmit_due_s, ahead_s),
            valid_until_s=shifted(tx.valid_until_s, ahead_s),
        )

    # ---- the fenced write

    async def commit(self, write: LaneWrite) -> Written:
        await asyncio.sleep(0)
        if not self._stands(write.term):
            return Written(lease_ok=False, applied=False)
        try:
            self._check_cursor(write)
            stored = [self._stored(change, self._row(change)) for change in write.changes]
            stored += [self._stored(change, self._new_row(change)) for change in write.fillers]
            nonces, hashes = self._claims(stored)
        except Refused:
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
        for number, outcome in write.done_commands:
            asked = data.asked.get(number)
            if asked is not None and asked.signer == signer:
                asked.outcome = outcome

    def _journal(self, write: LaneWrite, tx: ManagedTx | None, entry: Entry) -> None:
        tx_id, state = (tx.tx_id, entry.state or tx.state) if tx is not None else (None, None)
        self.database.journal.append(
            JournalRow(
                write.term.signer, tx_id, entry.event, state, entry.detail, self._node, write.term.token
            )
        )

    def _check_cursor(self, write: LaneWrite) -> None:
        before, after = write.cursor_before, write.cursor_after
        if after is None:
            return
        stored = self.database.cursors.get(write.term.signer)
        expected = None if before is None else (before.next_nonce, before.state)
        if expected != (None if stored is None else (stored.next_nonce, stored.state)):
            raise Refused
        if not 0 <= after.start_nonce <= after.next_nonce:
            raise Refused
        if after.state is CursorState.PROTECT and after.reason is None:
            raise Refused

    def _row(self, change: TxChange) -> ManagedTx:
        row = self.database.txs.get(change.before.tx_id)
        if row is None or row.version != change.before.version:
            raise Refused
        return row

    def _new_row(self, change: TxChange) -> ManagedTx:
        if change.before.tx_id in self.database.txs:
            raise Refused
        return change.before.changed(seq=len(self.database.txs) + 1)

    def _stored(self, change: TxChange, row: ManagedTx) -> ManagedTx:
        """The row after the change: only what the real statement writes is taken over."""
        after = change.after
        if not is_legal(row.state, after.state):
            raise Refused
        if after.nonce is None and after.state in (State.ALLOCATED, State.SUBMITTED):
            raise Refused
        if after.state is State.QUEUED and after.nonce is not None:
            raise Refused
        if after.state in (State.TRACKING, State.CONFIRMED) and (after.mined is None or after.nonce is None):
            raise Refused
        behind_s = self.database.clock.now_s() - self._clock.now_s()
        return row.changed(
            version=row.version + 1,
            state=after.state,
            sub_state=after.sub_state,
            nonce=after.nonce,
            ending=after.ending,
            error=after.error[:MOST_TEXT] if after.error else None,
            attempts=merged(row, change),
            mined=after.mined,
            confirmations=after.confirmations,
            submit_count=after.submit_count,
            journal_count=after.journal_count,
            last_submit_s=shifted(after.last_submit_s, behind_s),
            resubmit_due_s=shifted(after.resubmit_due_s, behind_s),
        )

    def _claims(
        self, stored: Sequence[ManagedTx]
    ) -> tuple[dict[tuple[Signer, int], UUID], dict[tuple[int, TxHash], UUID]]:
        """What the write takes for ever; refused when somebody else has it, in the table or in the same write."""
        nonces: dict[tuple[Signer, int], UUID] = {}
        hashes: dict[tuple[int, TxHash], UUID] = {}
        for tx in stored:
            if tx.nonce is not None:
                key = (tx.signer, tx.nonce)
                if self.database.nonces.get(key, nonces.get(key, tx.tx_id)) != tx.tx_id:
                    raise Refused
                nonces[key] = tx.tx_id
            row = self.database.txs.get(tx.tx_id)
            known = {attempt.number for attempt in row.attempts} if row is not None else set()
            for attempt in tx.attempts:
                name = (tx.signer.chain_id, attempt.signed.hash)
                if attempt.number not in known and (name in self.database.hashes or name in hashes):
                    raise Refused
                hashes[name] = tx.tx_id
        return nonces, hashes
