"""What the doors read: transactions with everything that is known about them, signers, nodes, and what ended.

Nothing here holds a lease or changes anything. Pages go by keys, never by offsets: a page's cursor names the last row
that was seen, so rows that are added meanwhile neither repeat nor hide one. What ended comes in the order in which
commits became visible, which is the only one in which nothing appears late.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol
from uuid import UUID

from fencepost.application.history import JournalRow
from fencepost.domain.confirmations import BlockRef
from fencepost.domain.ids import Address, Signer, TxHash
from fencepost.domain.managed import Kind, Purpose
from fencepost.domain.states import CursorState, State, SubState
from fencepost.domain.transaction import Fees, TxType

MOST_A_PAGE = 500
MOST_JOURNAL_ROWS = 10_000


class Part(StrEnum):
    """What is read with a transaction only when asked for."""

    ATTEMPTS = "attempts"
    RECEIPT = "receipt"
    CONFIRMATIONS = "confirmations"
    HISTORY = "history"
    PAYLOAD = "payload"


@dataclass(frozen=True, slots=True)
class AttemptView:
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


@dataclass(frozen=True, slots=True)
class TxView:
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
    attempts: tuple[AttemptView, ...] | None = None  # None: not asked for
    journal: tuple[JournalRow, ...] | None = None


@dataclass(frozen=True, slots=True)
class TxFilter:
    """What is None does not matter; all that is given must hold."""

    chain_id: int | None = None
    addresses: tuple[Address, ...] | None = None
    states: tuple[State, ...] | None = None
    sub_states: tuple[SubState, ...] | None = None
    created_from: datetime | None = None
    created_before: datetime | None = None
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Place:
    """A place in the order of completions: commit first, then the row."""

    xid: int
    id: int


BEGINNING = Place(0, 0)


@dataclass(frozen=True, slots=True)
class Completion:
    """One end of a transaction. A deep reorg may open it again: then it ends a second time, and is told again."""

    place: Place
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
    owner: str
    token: int
    acquired_at: datetime
    held_until: datetime | None  # None: it is free


@dataclass(frozen=True, slots=True)
class SignerView:
    signer: Signer
    state: CursorState
    reason: str | None
    next_nonce: int | None  # None: its sequence has not begun
    start_nonce: int | None
    lease: LeaseView | None
    in_flight: int
    queued: int
    suspended: int


@dataclass(frozen=True, slots=True)
class CommandView:
    id: int
    signer: Signer
    tx_id: UUID | None
    command: str
    asked_by: str
    reason: str | None
    asked_at: datetime
    done_at: datetime | None
    outcome: str | None


class Reader(Protocol):
    """Reads of one moment each. Errors of the database surface as they are."""

    async def get(self, tx_id: UUID, parts: frozenset[Part] = frozenset()) -> TxView | None: ...

    async def get_many(self, tx_ids: Sequence[UUID]) -> Sequence[TxView]:
        """Those that there are, in no order."""
        ...

    async def by_request(
        self, signer: Signer, request_id: str, parts: frozenset[Part] = frozenset()
    ) -> TxView | None: ...

    async def by_hash(
        self, chain_ids: Sequence[int], tx_hash: TxHash, parts: frozenset[Part] = frozenset()
    ) -> TxView | None:
        """By the hash of any attempt, mined or not."""
        ...

    async def page(
        self, wanted: TxFilter, *, below: UUID | None, limit: int, parts: frozenset[Part] = frozenset()
    ) -> Sequence[TxView]:
        """The newest first; `below` is the last one of the page before."""
        ...

    async def completions(
        self, after: Place, *, limit: int, addresses: Sequence[Address] | None = None
    ) -> Sequence[Completion]: ...

    async def signers(
        self,
        known: Sequence[Signer],
        *,
        after: Signer | None,
        limit: int,
        addresses: Sequence[Address] | None = None,
    ) -> Sequence[SignerView]:
        """`known` are there even if they never had work; `addresses` are the only ones to tell of."""
        ...

    async def signer(self, signer: Signer) -> SignerView:
        """A signer that never had work is ACTIVE, without a lease and without a sequence."""
        ...

    async def owner_of(self, signer: Signer) -> str | None:
        """The node that holds the signer's lease now."""
        ...

    async def command(self, command_id: int) -> CommandView | None: ...

    async def ping(self) -> bool:
        """Whether the database answers and takes writes."""
        ...
