"""Define the queries of the API and the command line: transactions, signers, completions and commands.

No query holds a lease or changes anything. Pages use keys, never offsets: a page's cursor names the last row of the page
before, so rows that are added meanwhile neither repeat nor hide one. Completions are ordered by when their commits
became visible, which is the only order in which nothing appears late.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal, Protocol
from uuid import UUID

from fencepost.application.tx_history import JournalRow, Totals
from fencepost.domain.confirmations import BlockRef
from fencepost.domain.ids import Address, Signer, TxHash
from fencepost.domain.states import CursorState, State, SubState
from fencepost.domain.transaction import Fees, TxType
from fencepost.domain.transaction_state import Kind, Purpose

MAX_PAGE_SIZE = 500
MAX_JOURNAL_ROWS = 10_000
WITHDRAWN_BY = "withdrawn by "  # the outcome of a withdrawn command begins like this


class Part(StrEnum):
    """Name the parts of a transaction that are read only on request."""

    ATTEMPTS = "attempts"
    RECEIPT = "receipt"
    CONFIRMATIONS = "confirmations"
    HISTORY = "history"
    PAYLOAD = "payload"


@dataclass(frozen=True, slots=True)
class AttemptView:
    """Describe one attempt of a transaction."""

    number: int
    purpose: Purpose
    type: TxType
    gas: int
    fees: Fees
    tx_hash: TxHash
    sent_count: int
    last_result: str | None
    last_message: str | None
    created_at: datetime
    fee_source: str = ""


@dataclass(frozen=True, slots=True)
class ForkView:
    """Describe a fork that replaced all confirmations of a transaction."""

    at: datetime
    replaced: tuple[BlockRef, ...]


@dataclass(frozen=True, slots=True)
class TxView:
    """Describe a transaction. Parts that were not requested are None."""

    tx_id: UUID
    signer: Signer
    request_id: str | None
    kind: Kind
    state: State
    sub_state: SubState | None
    nonce: int | None
    ending: State | None
    error: str | None
    tx_hash: TxHash | None
    block: BlockRef | None
    submit_count: int
    tags: tuple[str, ...]
    valid_until: datetime | None
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None
    payload: Mapping[str, Any]
    receipt: Mapping[str, Any] | None
    confirmations: tuple[BlockRef, ...]
    attempts: tuple[AttemptView, ...] | None = None  # None: not requested
    journal: tuple[JournalRow, ...] | None = None
    journal_totals: Totals | None = None  # with `journal`
    fork: ForkView | None = None  # the last one, if confirmations were requested
    protect_reason: str | None = None  # why its signer is in PROTECT, if it is


@dataclass(frozen=True, slots=True)
class TxFilter:
    """Select transactions that match all given fields; None matches everything."""

    chain_id: int | None = None
    addresses: tuple[Address, ...] | None = None
    states: tuple[State, ...] | None = None
    sub_states: tuple[SubState, ...] | None = None
    created_from: datetime | None = None
    created_before: datetime | None = None
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CompletionCursor:
    """Mark a place in the order of completions: the epoch of the database first, then the commit, then the row.

    A restored or copied database begins a new epoch, which is above all earlier ones. A cursor that was kept from before
    stays valid: everything that ends in the new epoch comes after it.
    """

    epoch: int
    xid: int
    id: int


BEGINNING = CompletionCursor(0, 0, 0)


@dataclass(frozen=True, slots=True)
class Completion:
    """Describe one end of a transaction. After a deep reorg it may end a second time, with a second completion."""

    cursor: CompletionCursor
    at: datetime
    event: str
    state: State
    tx_id: UUID
    signer: Signer
    request_id: str | None
    nonce: int | None
    tx_hash: TxHash | None
    block_number: int | None
    error: str | None
    state_now: State


@dataclass(frozen=True, slots=True)
class LeaseView:
    """Describe the last lease of a signer."""

    owner: str
    token: int
    acquired_at: datetime
    held_until: datetime | None  # None: it is free


@dataclass(frozen=True, slots=True)
class SignerView:
    """Describe a signer: its state, lease and counts."""

    signer: Signer
    state: CursorState
    reason: str | None
    is_paused: bool  # also under PROTECT, which it outlasts
    next_nonce: int | None  # None: its sequence has not begun
    start_nonce: int | None
    lease: LeaseView | None
    in_flight: int
    queued: int
    suspended: int
    used_by: Literal["core", "nonce"] | None = None  # what allocates its nonces; None: it was never used
    changed_at: datetime | None = None  # when its nonce or state last changed


@dataclass(frozen=True, slots=True)
class PauseView:
    """Describe the command that paused a signer."""

    author: str
    paused_at: datetime
    reason: str | None
    is_drain: bool


@dataclass(frozen=True, slots=True)
class LanePlace:
    """Describe the lane of a signer, and the place of one transaction in it.

    `unmined`, `mined` and `queued` are the first live transactions of each kind: with a nonce and in no block, by nonce; in
    a block, by nonce; without a nonce, by arrival.
    """

    unmined: UUID | None = None
    mined: UUID | None = None
    queued: UUID | None = None
    unmined_before: int = 0
    mined_count: int = 0
    queued_before: int = 0
    pause: PauseView | None = None  # the last pause of the signer, even if it is over


@dataclass(frozen=True, slots=True)
class CommandView:
    """Describe an operator command and its outcome."""

    id: int
    signer: Signer
    tx_id: UUID | None
    command: str
    author: str
    reason: str | None
    created_at: datetime
    done_at: datetime | None
    outcome: str | None
    applied: bool | None = None  # whether it changed anything; None until it is done

    @property
    def is_withdrawn(self) -> bool:
        return self.applied is False and (self.outcome or "").startswith(WITHDRAWN_BY)


class Reader(Protocol):
    """Read consistent snapshots, one per call. Database errors are raised unchanged."""

    async def get(self, tx_id: UUID, parts: frozenset[Part] = frozenset()) -> TxView | None:
        """Return the transaction, or None if there is none with this id."""
        ...

    async def get_many(self, tx_ids: Sequence[UUID]) -> Sequence[TxView]:
        """Return the transactions that exist, in no particular order."""
        ...

    async def by_request(
        self, signer: Signer, request_id: str, parts: frozenset[Part] = frozenset()
    ) -> TxView | None: ...

    async def by_hash(
        self, chain_ids: Sequence[int], tx_hash: TxHash, parts: frozenset[Part] = frozenset()
    ) -> TxView | None:
        """Return the transaction that has an attempt with this hash, mined or not."""
        ...

    async def page(
        self, wanted: TxFilter, *, below: UUID | None, limit: int, parts: frozenset[Part] = frozenset()
    ) -> Sequence[TxView]:
        """Return a page of matching transactions, newest first; `below` is the last one of the page before."""
        ...

    async def completions(
        self, after: CompletionCursor, *, limit: int, addresses: Sequence[Address] | None = None
    ) -> Sequence[Completion]: ...

    async def signers(
        self,
        known: Sequence[Signer],
        *,
        after: Signer | None,
        limit: int,
        addresses: Sequence[Address] | None = None,
    ) -> Sequence[SignerView]:
        """Return a page of signers. `known` are included even if they never had work; `addresses` limits the result."""
        ...

    async def signer(self, signer: Signer) -> SignerView:
        """Return a signer. One that never had work is ACTIVE, without a lease and without a sequence."""
        ...

    async def lane_place(self, signer: Signer, tx_id: UUID | None = None) -> LanePlace:
        """Return the heads of the signer's lane and how many transactions are before `tx_id`."""
        ...

    async def owner_of(self, signer: Signer) -> str | None:
        """Return the name of the node that holds the signer's lease, or None."""
        ...

    async def command(self, command_id: int) -> CommandView | None: ...

    async def ping(self) -> bool:
        """Return whether the database answers and accepts writes."""
        ...
