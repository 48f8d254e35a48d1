"""A lane: all work for one signer on the node that holds its lease, in order.

`Lane` is the lane's memory and its one way to write. Memory is a copy of the ledger: it changes only after a commit
that the ledger applied, and it is thrown away whenever there is doubt. The use cases (`reconcile`, `allocate`,
`broadcast`, `track`, `escalate`, `intervene`) are functions that take a lane; one caller at a time runs them.

What a death leaves behind:
- before a commit: nothing; the next owner does the step again.
- after a commit, before the send: signed bytes that the next owner sends.
- after the send, before the result is written: bytes that may be out; sending them again is harmless.

So the plain "a node took it" need not be written at once: it is held in memory, and written with whatever happens to
the transaction next, or a little later (`hold`). Memory is ahead of the ledger by what is held, and by nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal
from uuid import UUID

from fencepost.application.heads import ChainWatch
from fencepost.application.hooks import Handler, StuckHook
from fencepost.application.ports import (
    Chain,
    Clock,
    Cursor,
    KeyPort,
    LaneState,
    LaneWrite,
    Ledger,
    Observer,
    TxChange,
    Written,
)
from fencepost.application.queue import Queue
from fencepost.domain.ids import Address, Signer, TxHash
from fencepost.domain.lease import Term
from fencepost.domain.managed import Entry, ManagedTx, Step
from fencepost.domain.states import CursorState, State
from fencepost.domain.transaction import Fees, SignedTx, UnsignedTx
from fencepost.domain.value import Value, changed
from fencepost.errors import Fenced, FencepostError


class StateMoved(FencepostError):
    """The lease is ours, but a row isn't as remembered: read the lane again."""

    code = "state_moved"


class Untrusted(FencepostError):
    """The lease has not been renewed for too long to start anything new."""

    code = "lease_untrusted"


class HandlerElsewhere(FencepostError):
    """The next request is for a function of another process: let go, so that its node can have the lane."""

    code = "handler_elsewhere"


# Raw bytes → who signed them, what they say, their hash. Raises ValueError.
Decode = Callable[[bytes], tuple[Address, UnsignedTx, TxHash]]


@dataclass(frozen=True, slots=True)
class Policy:
    """The settings that a lane obeys, as values."""

    strict: bool = True
    start_from: int | Literal["chain"] = 0
    max_in_flight: int = 16
    chain_query: Literal["off", "pending", "latest"] = "pending"
    failover_loses_commits: bool = True
    state_timeout_s: float = 30.0
    resubmit_enabled: bool = True
    resubmit_interval_s: float = 60.0
    resubmit_max_attempts: int = 0
    required: int | Literal["safe", "finalized"] = 20
    stale_receipt_timeout_s: float = 60.0
    fetch_receipt_upon_entry: bool = False
    fixed_fees: Fees | None = None
    fee_cap_wei: int = 500_000_000_000
    bump_enabled: bool = False
    bump_percent: int = 10
    bump_after_resubmits: int = 3
    gas_factor: float = 1.2
    refuse_reverting: bool = True
    history_max_entries: int = 200
    read_ahead: int = 512  # requests of the queue that are held in memory
    record_within_s: float = 1.0  # how long a send that went well may wait for something to be written with

    @property
    def window(self) -> int:
        return 1 if self.strict else self.max_in_flight

    @property
    def required_blocks(self) -> int | None:
        return self.required if isinstance(self.required, int) else None


class _Held(Value, frozen=True):
    """What happened to a transaction, known here and not yet in the ledger."""

    change: TxChange
    write_by_s: float


@dataclass(slots=True)
class Lane:
    term: Term
    policy: Policy
    ledger: Ledger
    chain: Chain
    watch: ChainWatch
    keys: KeyPort
    clock: Clock
    observer: Observer
    stuck_hook: StuckHook
    handlers: dict[UUID, Handler]
    decode: Decode
    incarnation: UUID | None = None  # of the process that these handlers live in
    cursor: Cursor | None = None
    in_flight: dict[int, ManagedTx] = field(default_factory=dict)  # by nonce, lowest first
    queue: Queue = field(default_factory=Queue)
    queue_may_have_more: bool = True  # the ledger may hold requests that are not loaded
    commands_may_wait: bool = True

    reconciled: bool = False
    window_limit: int | None = None  # shrunk when a node says so
    hold_allocation_until_s: float = 0.0
    ahead_looked_s: float | None = None  # the last look showed the chain's nonce above ours: no new ones
    ahead_for_s: float = 0.0  # how long that has been so
    ahead_nonce: int = 0  # the least that was seen meanwhile
    doubts_history: bool = False  # bytes that the database lost may still be mined: no new nonces either
    has_doubted: bool = False  # in this term, now or before: a chain that is ahead of us is an alarm
    chain_checked_at_s: float | None = None
    receipt_checked_at_s: float | None = None
    suspicions: dict[int, int] = field(default_factory=dict)  # nonce → how often it looked a stranger's
    judged_at_s: float | None = None  # the last look that counted for that
    quoted: tuple[float, Fees] | None = None
    in_block: set[TxHash] = field(default_factory=set)  # hashes of ours that a block was seen to contain
    seen: set[TxHash] = field(default_factory=set)  # those of them whose receipts can be looked up now
    forked_at: int | None = None  # a fork reached down to this block: ended transactions may be undone
    unseen_from: int | None = None  # something ended in this block, which the view has not reached yet
    looks_down_to: int | None = None  # what ended in this block or above is being compared with the chain
    must_look_up: bool = False  # blocks may have been missed: ask for every receipt
    mines_at_once: bool = True  # the chain, as far as the last look right after a send showed
    signed_ahead: tuple[UnsignedTx, SignedTx] | None = None  # what is next, if nothing changes before
    signer: Signer = field(init=False)  # the same in all terms
    _held: dict[UUID, _Held] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.signer = self.term.signer

    @property
    def is_protected(self) -> bool:
        return self.cursor is not None and self.cursor.state is CursorState.PROTECT

    @property
    def has_queue(self) -> bool:
        """Something waits for its nonce, or may."""
        return bool(self.queue or self.queue.arrived or self.queue_may_have_more)

    @property
    def is_idle(self) -> bool:
        return not (self.in_flight or self.has_queue or self.is_unsure or self.commands_may_wait)

    @property
    def is_unsure(self) -> bool:
        """Whether all that has ended stands is not known. Until it is, nothing else ends.

        So what is undone are always the newest that have ended: there the next owner looks, should we die before.
        """
        return not (self.forked_at is self.unseen_from is self.looks_down_to is None)

    @property
    def must_look_back(self) -> bool:
        """It can be known now."""
        is_seen = self.unseen_from is not None and self.unseen_from <= self.watch.view.head
        return self.forked_at is not None or is_seen

    @property
    def unmined(self) -> list[ManagedTx]:
        """What waits for a block, by nonce."""
        return [tx for tx in self.in_flight.values() if tx.mined is None]

    @property
    def wants_blocks(self) -> bool:
        """Any block may tell it something: how deep lies what is mined, or a receipt that was not there yet."""
        if self.seen or self.must_look_up or self.unseen_from is not None:
            return True
        return self.has_mined

    @property
    def has_mined(self) -> bool:
        """Something of it waits for depth."""
        for tx in self.in_flight.values():  # noqa: SIM110 - looked at for every lane of a crowd: a generator costs more
            if tx.mined is not None:
                return True
        return False

    def adopt(self, state: LaneState, *, queue_limit: int) -> None:
        """What was read. A hint that came while it was read stands: what it is about may not be in there."""
        self.cursor = state.cursor
        self.await_nothing()
        self.in_block.clear()
        self.in_flight = {tx.held_nonce(): tx for tx in state.in_flight}
        for tx in state.in_flight:
            self._await_block_of(tx)
        self.queue.load(state.queue)
        self.queue_may_have_more |= len(state.queue) >= queue_limit
        self._held.clear()

    def receive(self, arrived: Sequence[ManagedTx], behind: Collection[int] = ()) -> None:
        """Requests were stored just now. Those that are next in line need not be read; none: the ledger is asked.

        They are next in line if all that waited before them (`behind`, by seq) is held here, or has its nonce by now.
        What is kept here is a copy: who dies with it, or drops it, leaves what the next load finds.
        """
        held = len(self.queue) + len(self.queue.arrived) + len(arrived)
        if (
            arrived
            and not self.queue_may_have_more
            and held <= self.policy.read_ahead
            and (not behind or self.queue.holds_all(behind, arrived, reversed(self.in_flight.values())))
        ):
            self.queue.arrive(arrived)
        else:
            self.queue_may_have_more = True

    def holds(self, tx_id: UUID) -> bool:
        return any(tx.tx_id == tx_id for tx in chain(self.queue, self.in_flight.values()))

    @property
    def is_trusted(self) -> bool:
        return self.term.is_trusted(self.clock.now_s())

    def require_trust(self) -> None:
        if not self.is_trusted:
            raise Untrusted(f"the lease of {self.signer} was not renewed in time")

    async def commit(
        self,
        changes: Sequence[TxChange] = (),
        *,
        cursor: Cursor | None = None,
        entries: Sequence[Entry] = (),
        done_commands: Sequence[tuple[int, str]] = (),
        fillers: Sequence[TxChange] = (),
        op: str,
    ) -> list[ManagedTx]:
        """Write, all or nothing; then remember. Gives the transactions as they are now."""
        write = self.write(
            changes, cursor=cursor, entries=entries, done_commands=done_commands, fillers=fillers
        )
        self.wrote(write, await self.ledger.commit(write), op=op)
        return [change.after for change in (*changes, *fillers)]

    def write(
        self,
        changes: Sequence[TxChange] = (),
        *,
        cursor: Cursor | None = None,
        entries: Sequence[Entry] = (),
        done_commands: Sequence[tuple[int, str]] = (),
        fillers: Sequence[TxChange] = (),
    ) -> LaneWrite:
        """What is held and due is written along."""
        if late := self.due():
            told = {change.before.tx_id for change in changes}
            changes = (*(change for change in late if change.before.tx_id not in told), *changes)
        told_of_signer = tuple(entries), tuple(done_commands)
        return LaneWrite(self.term, tuple(changes), self.cursor, cursor, *told_of_signer, tuple(fillers))

    def wrote(self, write: LaneWrite, written: Written, *, op: str) -> None:
        """The ledger has answered: remember what was written. What the lane holds is as before if it was refused."""
        if not written.lease_ok:
            self.observer.note("fenced", signer=self.signer, token=self.term.token, op=op)
            raise Fenced(f"the lease of {self.signer} has a newer term than {self.term.token} ({op})")
        if not written.applied:
            raise StateMoved(f"{self.signer} is not as remembered ({op})")
        if write.cursor_after is not None:
            self.cursor = write.cursor_after
        made = (*write.changes, *write.fillers) if write.fillers else write.changes
        if gone := [change.before for change in made if _leaves_queue(change)]:
            self.queue.leave(gone)
        for change in made:
            held = self._held.pop(change.before.tx_id, None) if self._held else None
            if held is None or held.change is not change:  # else it was remembered when it happened
                self._remember(change.after)
        txs = [change.before.tx_id for change in made]
        self.observer.note("wrote", op=op, signer=self.signer, token=self.term.token, txs=txs)
        if moved := [change for change in made if change.before.state is not change.after.state]:
            self.observer.note("moved", signer=self.signer, changes=moved, at_s=self.clock.now_s())

    # ---- what may be written later

    def hold(self, changes: Sequence[TxChange], *, for_s: float) -> None:
        """Remember now, write within `for_s`: only what the next owner finds out by itself if it is never written."""
        write_by_s = self.clock.now_s() + for_s
        for change in changes:
            self._held[change.before.tx_id] = _Held(change, write_by_s)
            self._remember(change.after)

    @property
    def write_by_s(self) -> float | None:
        """When the first of what is held has to be written."""
        return min([held.write_by_s for held in self._held.values()]) if self._held else None

    def due(self) -> list[TxChange]:
        if not self._held:
            return []
        now_s = self.clock.now_s()
        return [held.change for held in self._held.values() if held.write_by_s <= now_s]

    async def write_due(self) -> None:
        if self.due():
            await self.commit(op="held")

    async def write_held(self) -> None:
        """All of it, due or not."""
        if self._held:
            await self.commit([held.change for held in self._held.values()], op="held")

    def _await_block_of(self, tx: ManagedTx) -> None:
        """Its hashes are looked for in every block until it is in one, and again when that block is gone."""
        awaited = self.watch.awaited
        if tx.mined is None and not tx.is_terminal:
            for attempt in tx.attempts:
                awaited[attempt.signed.hash] = self.signer
        else:
            for attempt in tx.attempts:
                awaited.pop(attempt.signed.hash, None)

    def await_nothing(self) -> None:
        """The lane is over, or what it held is."""
        for tx in self.in_flight.values():
            for attempt in tx.attempts:
                self.watch.awaited.pop(attempt.signed.hash, None)

    def _remember(self, tx: ManagedTx) -> None:
        self._await_block_of(tx)
        if tx.nonce is None:
            if tx.state is State.QUEUED:
                self.queue.update(tx)
        elif tx.is_terminal:
            self.in_flight.pop(tx.nonce, None)
            self.suspicions.pop(tx.nonce, None)
        elif tx.nonce in self.in_flight or not self.in_flight or tx.nonce > next(reversed(self.in_flight)):
            self.in_flight[tx.nonce] = tx
        else:  # a reopened transaction may lie below what is in flight
            self.in_flight = dict(sorted([*self.in_flight.items(), (tx.nonce, tx)]))

    def change(self, tx: ManagedTx, *steps: Callable[[ManagedTx], Step]) -> TxChange:
        """Several things that happen to one transaction in one commit, which makes one version of them.

        What is held of it happened before, and is one of these things.
        """
        stored, after = tx, tx
        entries: tuple[Entry, ...] = ()
        held = self._held.get(tx.tx_id) if self._held else None
        if held is not None:
            if tx.version != held.change.after.version:
                raise StateMoved(f"transaction {tx.tx_id} of {self.signer} is not as remembered")
            stored, entries = held.change.before, held.change.entries
        for step in steps:
            taken = step(after)
            after = taken.tx
            entries += taken.entries
        kept = self._bounded(stored, entries)
        if held is not None or len(steps) > 1 or len(kept) < len(entries):
            after = changed(after, journal_count=stored.journal_count + len(kept), version=stored.version + 1)
        return TxChange(stored, after, kept)

    def _bounded(self, tx: ManagedTx, entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
        """A transaction that is sent again for days must not fill the journal: repeats stop being written down."""
        if tx.journal_count < self.policy.history_max_entries:
            return entries
        return tuple(entry for entry in entries if entry.event not in REPEATED_EVENTS)


def _leaves_queue(change: TxChange) -> bool:
    return change.before.nonce is None and State.QUEUED is change.before.state is not change.after.state


REPEATED_EVENTS = frozenset({"Resubmit", "SendResult", "Stale", "Confirm"})
