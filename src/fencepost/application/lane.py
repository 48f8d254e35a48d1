"""Hold the state of a lane: all work for one signer on the node that holds its lease, in order.

`Lane` is the lane's memory and its only way to write. Memory is a copy of the ledger: it changes only after a commit that
the ledger applied, and it is discarded whenever there is doubt. The use cases (`reconcile`, `allocate`, `broadcast`, `track`,
`resubmit`, `operator_commands`) are functions that take a lane; one caller at a time runs them.

What a crash leaves behind:
- before a commit: nothing; the next lease holder does the step again.
- after a commit, before the send: signed bytes that the next lease holder sends.
- after the send, before the result is written: bytes that may have been sent; sending them again is harmless.

So the result "accepted" need not be written immediately: the lane keeps it in memory as a deferred write and writes it with
the next change of the transaction, or a little later (`defer`). Memory is ahead of the ledger by deferred writes only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal
from uuid import UUID

from fencepost.application.chain_view import HeadChange
from fencepost.application.lane_parts import (
    UNLIMITED_WEI,
    BlockWatch,
    DeferredWrites,
    LanePorts,
    OpenCommands,
    SendState,
    Suspicion,
)
from fencepost.application.ports import (
    Cursor,
    DoneCommand,
    LaneState,
    LaneWrite,
    TxChange,
    UnreadableRow,
    Written,
)
from fencepost.application.queue import Queue
from fencepost.application.tx_events import TxsChanged
from fencepost.domain.fees import FeeTier
from fencepost.domain.ids import Signer, TxHash
from fencepost.domain.lease import Term
from fencepost.domain.states import CursorState, State, SubState
from fencepost.domain.struct import changed
from fencepost.domain.transaction import Fees
from fencepost.domain.transaction_state import JournalEntry, ManagedTx, Transition
from fencepost.errors import ChainReplaced, Fenced, FencepostError

# Looked up once: in Python 3.11 access to an enumeration member is a function call.
_SUPERSEDED = SubState.SUPERSEDED


# Another first block counts once every endpoint has returned it for this long.
REPLACED_AFTER_S = 4.0


class StateMoved(FencepostError):
    """The lease is valid, but a row differs from the lane's memory: load the lane again."""

    code = "state_moved"


class LeaseUntrusted(FencepostError):
    """The lease was not renewed for too long, so no new work may start."""

    code = "lease_untrusted"


class HandlerOnOtherNode(FencepostError):
    """Another process has the handler of the next request: release the lease, so that its node can acquire it."""

    code = "handler_elsewhere"


_TRANSFER_GAS = 21_000


@dataclass(frozen=True, slots=True)
class LaneSettings:
    """The settings of a lane."""

    strict: bool = True
    start_from: int | Literal["chain"] = 0
    max_in_flight: int = 16
    chain_query: Literal["off", "pending", "latest"] = "pending"
    failover_loses_commits: bool = True
    shared_key: bool = False  # other programs use the key, too: their transactions raise no alarm
    search_blocks: int = 10_000  # how many blocks to search for the transaction that consumed a nonce
    state_timeout_s: float = 30.0
    resubmit_enabled: bool = True
    resubmit_interval_s: float = 60.0
    resubmit_max_attempts: int = 0
    stuck_after_resubmits: int = 0  # then it is marked STUCK and still resubmitted; 0 never
    required: int | Literal["safe", "finalized"] = 20
    stale_receipt_timeout_s: float = 60.0
    fetch_receipt_upon_entry: bool = False
    fixed_fees: Fees | None = None
    min_bump_percent: int = 10  # what pools require of a replacement
    filler_reserve_percent: int = 0  # how far above the chain's cap a filler may pay
    fee_tier: FeeTier = FeeTier.NORMAL
    price_required: bool = False  # fees.source is disabled: a request without a price is rejected
    fee_cap_wei: int = 500_000_000_000
    bump_enabled: bool = False
    bump_percent: int = 10
    bump_after_resubmits: int = 3
    low_balance_wei: int = 0
    low_balance_transactions: int = 0
    gas_factor: float = 1.2
    tx_gas_max: int | None = 2**24  # EIP-7825; None: the chain has no such limit
    refuse_reverting: bool = True
    history_max_entries: int = 200
    read_ahead: int = 512  # how many queued requests are kept in memory
    record_within_s: float = 1.0  # how long the write of an accepted send may be deferred

    @property
    def window(self) -> int:
        return 1 if self.strict else self.max_in_flight

    @property
    def required_blocks(self) -> int | None:
        return self.required if isinstance(self.required, int) else None


@dataclass(slots=True)
class Lane:
    """Hold a copy of the signer's state in the ledger, the term that allows writes, and the lane's other parts."""

    term: Term
    settings: LaneSettings
    ports: LanePorts
    cursor: Cursor | None = None
    in_flight: dict[int, ManagedTx] = field(default_factory=dict)  # by nonce, lowest first
    queue: Queue = field(default_factory=Queue)
    unreadable: dict[UUID, UnreadableRow] = field(default_factory=dict)  # rows that can't be read, by tx
    is_loaded: bool = False  # the ledger's state was read in this term
    reconciled: bool = False  # and compared with the chain
    commands: OpenCommands = field(default_factory=OpenCommands)
    blocks: BlockWatch = field(default_factory=BlockWatch)
    suspicion: Suspicion = field(default_factory=Suspicion)
    sending: SendState = field(default_factory=SendState)
    deferred: DeferredWrites = field(default_factory=DeferredWrites)

    @property
    def signer(self) -> Signer:
        return self.term.signer

    @property
    def is_protected(self) -> bool:
        return self.cursor is not None and self.cursor.state is CursorState.PROTECT

    @property
    def has_queue(self) -> bool:
        """Whether a request waits, or may wait, for its nonce."""
        return bool(self.queue or self.queue.arrived or self.queue.may_be_longer)

    @property
    def is_idle(self) -> bool:
        return not (self.in_flight or self.has_queue or self.finality_unknown or self.commands.may_wait)

    @property
    def finality_unknown(self) -> bool:
        """Whether a fork may have undone finished transactions. Until that is known, no other transaction finishes.

        So undone transactions are always the newest finished ones, where the next lease holder checks after a crash.
        """
        return not (self.blocks.forked_at is self.blocks.unseen_from is self.blocks.checking_down_to is None)

    @property
    def must_check_finished(self) -> bool:
        """Whether finished transactions can be checked now."""
        is_seen = (
            self.blocks.unseen_from is not None and self.blocks.unseen_from <= self.ports.chain_view.view.head
        )
        return self.blocks.forked_at is not None or is_seen

    @property
    def unmined(self) -> list[ManagedTx]:
        """The transactions that wait for a block, by nonce."""
        return [tx for tx in self.in_flight.values() if tx.mined is None and tx.sub_state is not _SUPERSEDED]

    @property
    def superseded(self) -> list[ManagedTx]:
        """Return the transactions whose nonce a foreign transaction has, by nonce: see `supersession.py`."""
        return [tx for tx in self.in_flight.values() if tx.sub_state is _SUPERSEDED]

    @property
    def wants_blocks(self) -> bool:
        """Whether any new block is relevant: for confirmations, or for a receipt that was missing."""
        if (
            self.blocks.receipt_ready_hashes
            or self.blocks.must_fetch_receipts
            or self.blocks.unseen_from is not None
        ):
            return True
        return self.has_mined

    @property
    def has_mined(self) -> bool:
        """Whether a transaction waits for its required depth."""
        for tx in self.in_flight.values():  # noqa: SIM110 - runs for every lane of a batch, and a generator is slower
            if tx.mined is not None or tx.sub_state is _SUPERSEDED:
                return True
        return False

    def adopt(self, state: LaneState, *, queue_limit: int) -> None:
        """Replace memory by the loaded state. Keep hints received during the load: the snapshot may predate them."""
        self.cursor = state.cursor
        self.unreadable = {row.tx.tx_id: row for row in state.unreadable}
        self.is_loaded = self.suspicion.has_stall_marks = True
        self.stop_awaiting_blocks()
        self.blocks.mined_hashes.clear()
        self.suspicion.superseded.clear()
        self.in_flight = {tx.held_nonce(): tx for tx in state.in_flight}
        for tx in state.in_flight:
            self._await_block_of(tx)
        self.queue.load(state.queue)
        self.queue.may_be_longer |= len(state.queue) >= queue_limit
        self.deferred.clear()

    def holds(self, tx_id: UUID) -> bool:
        return any(tx.tx_id == tx_id for tx in chain(self.queue, self.in_flight.values()))

    @property
    def is_trusted(self) -> bool:
        return self.term.is_trusted(self.now_s())

    def require_trust(self) -> None:
        if not self.is_trusted:
            raise LeaseUntrusted(f"the lease of signer {self.signer} was not renewed in time")

    # ---- what the runtime reports to the lane; a step of the lane acts on it

    def on_request(self, arrived: Sequence[ManagedTx], behind: Collection[int] = ()) -> None:
        """Take requests that were just stored, without a load if they are next in the queue.

        They are next if all requests that waited before them (`behind`, by seq) are in memory or have a nonce by now.
        Otherwise, or if `arrived` is empty, the lane loads the queue later. Memory is a copy: nothing is lost with it.
        """
        held = len(self.queue) + len(self.queue.arrived) + len(arrived)
        if (
            arrived
            and not self.queue.may_be_longer
            and held <= self.settings.read_ahead
            and (not behind or self.queue.holds_all(behind, arrived, reversed(self.in_flight.values())))
        ):
            self.queue.arrive(arrived)
        else:
            self.queue.may_be_longer = True

    def on_hint(self) -> None:
        """Read the queue and the operator commands in the next step: the ledger may hold new ones."""
        self.queue.may_be_longer = True
        self.commands.may_wait = True

    def on_head(self, change: HeadChange) -> bool:
        """Take a change of the chain view; return whether the lane needs a step because of it.

        A fork is reported by `on_fork`, too: it concerns finished transactions.
        """
        if change.restarted and any(tx.attempts for tx in self.unmined):
            self.blocks.must_fetch_receipts = True
        if change.restarted or change.forked_at is not None:
            self.blocks.mined_hashes.clear()  # they may have left the canonical chain
        return self.wants_blocks

    def on_fork(self, block: int) -> None:
        """Check in the next step whether a fork undid transactions that finished in this block or above."""
        at = self.blocks.forked_at
        self.blocks.forked_at = block if at is None else min(block, at)

    def on_mined(self, tx_hash: TxHash) -> None:
        """Record that a block holds an own hash: its transaction leaves room in the window."""
        self.blocks.mined_hashes.add(tx_hash)

    def on_receipt_ready(self, tx_hash: TxHash) -> None:
        """Fetch the receipt of an own hash in the next step."""
        self.blocks.receipt_ready_hashes.add(tx_hash)

    def on_renewed(self, term: Term) -> None:
        """Continue under the renewed term."""
        self.term = term

    def on_state_moved(self) -> None:
        """Load and compare everything again in the next step: memory differs from the ledger."""
        self.reconciled = False

    def on_alarm(self, reason: str) -> None:
        """Enter PROTECT in the next step, before anything else."""
        self.suspicion.alarm = reason

    def on_chain_replaced(self, error: ChainReplaced) -> bool:
        """Raise the alarm if the signer must be protected from another chain; return whether that is so."""
        if (reason := self.reason_if_replaced(error)) is None:
            return False
        self.on_alarm(reason)
        return True

    def on_failing(self, since_s: float) -> None:
        """Record since when every step of this signer has failed on this node."""
        self.suspicion.failing_since_s = since_s

    def on_success(self) -> None:
        """Record that a step has succeeded."""
        self.suspicion.failing_since_s = None

    # ---- what the runtime reads, besides `signer`, `term`, `settings` and `reconciled`

    @property
    def failing_since_s(self) -> float | None:
        return self.suspicion.failing_since_s

    @property
    def holds_requests(self) -> bool:
        """Whether memory holds requests without a nonce, so that the lane needs no hint to continue with them."""
        return bool(self.queue)

    def count_deferred(self) -> int:
        """Return how many results of sends are not stored yet."""
        return len(self.deferred)

    def known_balance_wei(self) -> int | None:
        """Return the balance of the last reading; None if there is none."""
        funds = self.sending.funds
        return None if funds is None or funds.balance_wei >= UNLIMITED_WEI else funds.balance_wei

    def transfers_left(self) -> float:
        """Return how many plain transfers the balance pays at the last quoted price; infinite if one of them is unknown."""
        funds, quoted = self.sending.funds, self.sending.quoted
        if funds is None or quoted is None or not quoted[1].normal.fee_cap_wei:
            return math.inf
        return max(0, funds.left_wei) // (_TRANSFER_GAS * quoted[1].normal.fee_cap_wei)

    def now_s(self) -> float:
        return self.ports.clock.now_s()

    def reason_if_replaced(self, error: ChainReplaced) -> str | None:
        """Return the reason to protect the signer; None if there is none, or it is protected already.

        Every endpoint must have served another chain for a while: one check may be wrong.
        """
        if not self.is_loaded or self.is_protected or error.seen_for_s < REPLACED_AFTER_S:
            return None
        return f"{error}; then unprotect this signer"

    # ---- writes

    async def commit(
        self,
        changes: Sequence[TxChange] = (),
        *,
        cursor: Cursor | None = None,
        entries: Sequence[JournalEntry] = (),
        done_commands: Sequence[tuple[int, str] | tuple[int, str, bool]] = (),
        fillers: Sequence[TxChange] = (),
        op: str,
    ) -> list[ManagedTx]:
        """Write all or nothing, then update memory; return the transactions after the change."""
        write = self.build_write(
            changes, cursor=cursor, entries=entries, done_commands=done_commands, fillers=fillers
        )
        self.apply_result(write, await self.ports.ledger.commit(write), op=op)
        return [change.after for change in (*changes, *fillers)]

    def build_write(
        self,
        changes: Sequence[TxChange] = (),
        *,
        cursor: Cursor | None = None,
        entries: Sequence[JournalEntry] = (),
        done_commands: Sequence[tuple[int, str] | tuple[int, str, bool]] = (),
        fillers: Sequence[TxChange] = (),
    ) -> LaneWrite:
        """Build a write that includes the deferred writes that are due."""
        if late := self.due_deferred():
            included = {change.before.tx_id for change in changes}
            changes = (*(change for change in late if change.before.tx_id not in included), *changes)
        signer_rows = tuple(entries), tuple(DoneCommand(*done) for done in done_commands)
        return LaneWrite(self.term, tuple(changes), self.cursor, cursor, *signer_rows, tuple(fillers))

    def apply_result(self, write: LaneWrite, written: Written, *, op: str) -> None:
        """Update memory after the ledger applied a write. If the ledger rejected it, memory stays unchanged."""
        if not written.lease_ok:
            self.ports.observer.note("fenced", signer=self.signer, token=self.term.token, op=op)
            raise Fenced(f"the lease of signer {self.signer} has a newer term than {self.term.token} ({op})")
        if not written.applied:
            raise StateMoved(f"signer {self.signer} changed in the database since it was loaded ({op})")
        if write.cursor_after is not None:
            self.cursor = write.cursor_after
        changes = (*write.changes, *write.fillers) if write.fillers else write.changes
        if left_queue := [change.before for change in changes if _leaves_queue(change)]:
            self.queue.leave(left_queue)
            if self.ports.handlers:
                self._forget_handlers(changes)
        for change in changes:
            held = self.deferred.pop(change.before.tx_id, None) if self.deferred else None
            if held is None or held.change is not change:  # else `defer` has already updated memory
                self._remember(change.after)
        txs = [change.before.tx_id for change in changes]
        self.ports.observer.note("wrote", op=op, signer=self.signer, token=self.term.token, txs=txs)
        if moved := [change for change in changes if change.before.state is not change.after.state]:
            self.ports.observer.note("moved", signer=self.signer, changes=moved, at_s=self.now_s())
        if changes:
            self.ports.events.publish(TxsChanged(self.signer, self.term.token, changes))

    def _forget_handlers(self, changes: Sequence[TxChange]) -> None:
        """Drop the handlers of requests that ended without a nonce: no lane will call them."""
        for change in changes:
            if change.after.is_terminal:
                self.ports.handlers.pop(change.before.tx_id, None)

    # ---- deferred writes

    def defer(self, changes: Sequence[TxChange], *, for_s: float) -> None:
        """Update memory now and write within `for_s`.

        Only for changes that the next lease holder finds out by itself if they are never written.
        """
        write_by_s = self.now_s() + for_s
        for change in changes:
            self.deferred.add(change, write_by_s=write_by_s)
            self._remember(change.after)

    @property
    def write_by_s(self) -> float | None:
        """When the first deferred write is due."""
        return self.deferred.write_by_s

    def due_deferred(self) -> list[TxChange]:
        return self.deferred.due(self.now_s()) if self.deferred else []

    async def flush_due(self) -> None:
        if self.due_deferred():
            await self.commit(op="held")

    async def flush_deferred(self) -> None:
        """Write all deferred writes, due or not."""
        if self.deferred:
            await self.commit(self.deferred.changes(), op="held")

    def _await_block_of(self, tx: ManagedTx) -> None:
        """Watch blocks for its hashes until it is mined, and again after a fork removed its block."""
        awaited = self.ports.chain_view.awaited
        if tx.mined is None and not tx.is_terminal:
            for attempt in tx.attempts:
                awaited[attempt.signed.hash] = self.signer
        else:
            for attempt in tx.attempts:
                awaited.pop(attempt.signed.hash, None)

    def stop_awaiting_blocks(self) -> None:
        """Stop watching blocks for the hashes of this lane."""
        for tx in self.in_flight.values():
            for attempt in tx.attempts:
                self.ports.chain_view.awaited.pop(attempt.signed.hash, None)

    def _remember(self, tx: ManagedTx) -> None:
        self._await_block_of(tx)
        if tx.nonce is None:
            if tx.state is State.QUEUED:
                self.queue.update(tx)
        elif tx.is_terminal:
            self.in_flight.pop(tx.nonce, None)
            self.suspicion.consumed_counts.pop(tx.nonce, None)
            self.sending.refusals.pop(tx.tx_id, None)
            self.blocks.reason_tries.pop(tx.tx_id, None)
        elif tx.nonce in self.in_flight or not self.in_flight or tx.nonce > next(reversed(self.in_flight)):
            self.in_flight[tx.nonce] = tx
        else:  # a reopened transaction may have a lower nonce than those in flight
            self.in_flight = dict(sorted([*self.in_flight.items(), (tx.nonce, tx)]))

    def change(self, tx: ManagedTx, *steps: Callable[[ManagedTx], Transition]) -> TxChange:
        """Combine several transitions of one transaction into one change, which has one version.

        A deferred write of the transaction comes first and becomes part of the change.
        """
        stored, after = tx, tx
        entries: tuple[JournalEntry, ...] = ()
        held = self.deferred.get(tx.tx_id) if self.deferred else None
        if held is not None:
            if tx.version != held.change.after.version:
                raise StateMoved(f"transaction {tx.tx_id} of {self.signer} changed since it was read")
            stored, entries = held.change.before, held.change.entries
        for step in steps:
            transition = step(after)
            after = transition.tx
            entries += transition.entries
        kept = self._bounded(stored, entries)
        if held is not None or len(steps) > 1:
            after = changed(
                after, journal_count=stored.journal_count + len(entries), version=stored.version + 1
            )
        return TxChange(stored, after, kept)

    def _bounded(self, tx: ManagedTx, entries: tuple[JournalEntry, ...]) -> tuple[JournalEntry, ...]:
        """Drop repeated entries beyond the bound, so that days of resubmits do not fill the journal.

        They are still counted: `journal_count` and the send counters stay exact, and `tx_history.fold` adds the entries that
        the journal does not repeat.
        """
        if tx.journal_count < self.settings.history_max_entries:
            return entries
        return tuple(entry for entry in entries if entry.event not in REPEATED_EVENTS)


def _leaves_queue(change: TxChange) -> bool:
    return change.before.nonce is None and State.QUEUED is change.before.state is not change.after.state


REPEATED_EVENTS = frozenset({"Resubmit", "SendResult", "Confirm"})


async def protect(lane: Lane, reason: str) -> None:
    """Put the signer into PROTECT: nothing more is sent for it until an operator decides."""
    if lane.is_protected:
        return
    await lane.flush_deferred()  # sends before the alarm are recorded before it
    start = lane.settings.start_from if isinstance(lane.settings.start_from, int) else 0
    base = lane.cursor or Cursor(start, start, is_doubted=lane.suspicion.doubts_history)
    cursor = changed(base, state=CursorState.PROTECT, reason=reason[:2000])
    await lane.commit(cursor=cursor, entries=[JournalEntry("Protect", {"reason": reason})], op="protect")
    lane.ports.observer.note("protect", signer=lane.signer, token=lane.term.token, reason=reason)


async def protect_if_replaced(lane: Lane, error: ChainReplaced) -> None:
    """Protect the signer if every endpoint serves another chain."""
    if (reason := lane.reason_if_replaced(error)) is not None:
        await protect(lane, reason)
