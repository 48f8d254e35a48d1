"""Declare the parts of a lane: what it uses, and what it knows besides the ledger's state.

`Lane` itself holds the copy of the ledger. Nothing here is stored: a new lease holder starts with empty parts and finds
out the rest from the ledger and the chain.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

from fencepost.application.chain_view import ChainView
from fencepost.application.fee_sources import FeeSources
from fencepost.application.hooks import Handler, StuckHook
from fencepost.application.ports import Chain, Clock, KeyPort, Ledger, Observer, TxChange
from fencepost.application.spending_policy import Limits, SpendingGuard
from fencepost.application.tx_events import TxEvents
from fencepost.domain.confirmations import BlockRef
from fencepost.domain.fees import FeeQuote
from fencepost.domain.ids import Address, TxHash
from fencepost.domain.struct import Struct
from fencepost.domain.transaction import SignedTx, UnsignedTx

# Raw bytes → sender, decoded transaction, hash. Raises ValueError.
Decode = Callable[[bytes], tuple[Address, UnsignedTx, TxHash]]


@dataclass(frozen=True, slots=True)
class LanePorts:
    """What a lane uses."""

    ledger: Ledger
    chain: Chain
    chain_view: ChainView
    keys: KeyPort
    clock: Clock
    observer: Observer
    stuck_hook: StuckHook
    handlers: dict[UUID, Handler]
    decode: Decode
    incarnation: UUID | None = None  # of the process that has these handlers
    events: TxEvents = field(default_factory=TxEvents)  # where the lane publishes what it committed
    spending: SpendingGuard | None = None  # the signer's spending policy; None: no limits
    fees: FeeSources | None = None  # the chain's price source; None: what endpoints suggest


@dataclass(slots=True)
class OpenCommands:
    """What the lane knows about operator commands that wait for it."""

    may_wait: bool = True  # the ledger may hold open commands
    not_before_s: float = 0.0  # when to retry a command that got no answer
    tries: dict[int, int] = field(default_factory=dict)  # of open commands, by id

    def are_due(self, now_s: float) -> bool:
        """Return whether the lane should read the open commands now."""
        return self.may_wait and now_s >= self.not_before_s


# ---- blocks


@dataclass(slots=True)
class BlockWatch:
    """What new blocks have shown about the lane's transactions, and which receipts to fetch."""

    mined_hashes: set[TxHash] = field(default_factory=set)  # own hashes that were seen in a block
    # Those of them whose receipts can be fetched now.
    receipt_ready_hashes: set[TxHash] = field(default_factory=set)
    must_fetch_receipts: bool = False  # blocks may have been missed: fetch every receipt
    receipt_checked_at_s: float | None = None  # when every receipt was last fetched
    mines_instantly: bool = True  # whether the last send had its receipt immediately
    forked_at: int | None = None  # a fork reached down to this block: finished transactions may be undone
    unseen_from: int | None = None  # a transaction finished in this block, which the view has not reached yet
    checking_down_to: int | None = None  # transactions that finished from this block on are being checked
    reason_tries: dict[UUID, int] = field(default_factory=dict)  # reverts whose reason could not be read yet
    reasons_due_s: float | None = None  # when they are read again


# ---- suspicion


@dataclass(slots=True)
class PoolCheck:
    """Since when the lowest transaction has been in the endpoint's pool, and when the lane checks that."""

    tx_id: UUID
    attempt: int
    blocks_with_room: int  # the value of `ChainView.blocks_with_room` at the start
    due_s: float
    begun_s: float
    resends: int = 0


@dataclass(slots=True)
class ChainAhead:
    """Checks that showed the chain's nonce above the cursor (`nonce_sync.py`)."""

    checked_at_s: float | None = None  # the last check; while it is set, no nonce is assigned
    for_s: float = 0.0  # for how long the checks have shown it
    nonce: int = 0  # the lowest chain nonce of these checks
    search_misses: int = 0  # searches in a row that did not find the consumers of the nonces above
    search_again_s: float = 0.0  # when the next search may start
    pool_since_s: float | None = None  # since when a pool has nonces above the cursor

    def clear(self) -> None:
        """End the checks: nonces may be assigned. `for_s` and `nonce` start anew with the next first check."""
        self.checked_at_s = self.pool_since_s = None
        self.search_misses, self.search_again_s = 0, 0.0


@dataclass(slots=True)
class SupersededCheck:
    """Checks of the transactions whose nonce a foreign transaction has (`supersession.py`)."""

    consumed_at: BlockRef | None = None  # the head at which their nonces were consumed
    seen_at: BlockRef | None = None  # the head of the last check
    unconsumed_since_s: float | None = None  # since when one of the nonces is free again

    def clear(self) -> None:
        """Forget the checks."""
        self.consumed_at = self.seen_at = self.unconsumed_since_s = None


@dataclass(slots=True)
class Suspicion:
    """What the lane suspects: of the chain, of the database's history, and of its own steps."""

    alarm: str | None = None  # why the next step must enter PROTECT first
    failing_since_s: float | None = None  # since when every step of this signer has failed on this node
    has_stall_marks: bool = True  # transactions may say that the lane can't continue (`stall.py`)
    cursor_checked_at_s: float | None = None  # when the cursor was last compared with the chain
    ahead: ChainAhead = field(default_factory=ChainAhead)
    doubts_history: bool = False  # bytes that the database lost may still be mined: assign no nonces
    has_doubted: bool = False  # until that is resolved, a chain ahead of the cursor is an alarm
    refused_fillers: int = 0  # how often the key port rejected the fillers for a doubted cursor
    gap_since_s: float | None = None  # since when nonces below the cursor are missing
    # Nonce → how often it seemed consumed by a foreign transaction.
    consumed_counts: dict[int, int] = field(default_factory=dict)
    consumed_checked_at_s: float | None = None  # the last check that counted for that
    superseded: SupersededCheck = field(default_factory=SupersededCheck)
    pool_check: PoolCheck | None = None  # about the lowest transaction while it waits for a block


# ---- nonces and sends


# An unknown balance covers everything.
UNLIMITED_WEI = 2**512


class Funds(Struct, frozen=True):
    """A reading of the balance, and what is left of it for new requests."""

    read_at_s: float
    balance_wei: int
    in_flight_wei: int  # the maximum cost of all transactions that wait for a block
    left_wei: int


@dataclass(slots=True)
class SendState:
    """What the lane knows for its next nonces and sends: limits, fees, funds and rejections."""

    limits: Limits | None = None  # last read by `signing.refresh_limits`
    window_limit: int | None = None  # reduced when an endpoint requires it
    delegated_next: UUID | None = None  # for a delegated account: the transaction to send next
    allocation_paused_until_s: float = 0.0
    quoted: tuple[float, FeeQuote] | None = None
    signed_ahead: tuple[UnsignedTx, SignedTx] | None = None  # the next transaction, if nothing changes before
    funds: Funds | None = None  # the last reading of the balance: `funds.py`
    is_balance_low: bool = False  # and recorded, by this lease holder
    short_of_funds: UUID | None = None  # the request that the balance did not cover
    # The request whose gas estimate endpoints reject, and how often.
    refused_estimates: tuple[UUID | None, int] = (None, 0)
    # The request that the key port rejects, and how often.
    refused_signatures: tuple[UUID | None, int] = (None, 0)
    # Of rejected sends: the last error text, and how often in a row.
    refusals: dict[UUID, tuple[str, int]] = field(default_factory=dict)
    # Calls of the stuck hook that may still run, by transaction.
    hook_calls: dict[UUID, asyncio.Task[object]] = field(default_factory=dict)


# ---- deferred writes


class _DeferredChange(Struct, frozen=True):
    """A change that is in memory and not yet in the ledger."""

    change: TxChange
    write_by_s: float


class DeferredWrites(dict[UUID, _DeferredChange]):
    """Hold the deferred writes of a lane, by transaction; one transaction has at most one."""

    __slots__ = ()

    def add(self, change: TxChange, *, write_by_s: float) -> None:
        """Hold a change in place of the transaction's earlier one, which it includes."""
        self[change.before.tx_id] = _DeferredChange(change, write_by_s)

    @property
    def write_by_s(self) -> float | None:
        """When the first deferred write is due."""
        return min([held.write_by_s for held in self.values()]) if self else None

    def changes(self) -> list[TxChange]:
        """Return all changes, due or not."""
        return [held.change for held in self.values()]

    def due(self, now_s: float) -> list[TxChange]:
        """Return the changes that must be written now."""
        return [held.change for held in self.values() if held.write_by_s <= now_s]
