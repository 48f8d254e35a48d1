"""The ports: what the use cases need from the world, and nothing more.

`Ledger` is the database, `Chain` the nodes of one chain, `KeyPort` who signs, `Clock` the time, `Observer` what gets
counted and logged. Each has a real adapter and a fake, and one contract suite runs over both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, Protocol
from uuid import UUID

from fencepost.domain.confirmations import BlockRef
from fencepost.domain.ids import Address, BlockHash, Signer, TxHash
from fencepost.domain.lease import Term
from fencepost.domain.managed import Entry, Intent, Kind, ManagedTx, Receipt
from fencepost.domain.send import SendResult
from fencepost.domain.states import CursorState
from fencepost.domain.transaction import Call, Fees, SignedTx, UnsignedTx
from fencepost.domain.value import Value

BlockTag = Literal["latest", "pending", "safe", "finalized"]


class Header(Value, frozen=True):
    number: int
    hash: BlockHash
    parent_hash: BlockHash
    base_fee_wei: int | None
    timestamp_s: int


class Block(Value, frozen=True):
    header: Header
    tx_hashes: tuple[TxHash, ...]


class Chain(Protocol):
    """One chain, through whichever nodes are configured for it.

    Reads raise `RpcUnavailable` when there was no answer and `RpcRefused` when a node answered with an error. `send`
    never raises for what a node says or fails to say: a result is a value, and no answer is `UNKNOWN`. Nothing here
    retries a send.
    """

    @property
    def chain_id(self) -> int: ...

    async def send(self, txs: Sequence[SignedTx]) -> Sequence[SendResult]: ...

    async def nonce(self, address: Address, tag: Literal["latest", "pending"]) -> int: ...

    async def balance_wei(self, address: Address) -> int: ...

    async def receipts(self, hashes: Sequence[TxHash]) -> Sequence[Receipt | None]: ...

    async def block_receipts(self, number: int) -> Sequence[Receipt] | None:
        """All of a block, in one question. None where that can't be had, or the block isn't there: ask by hash."""
        ...

    async def receipts_and_head(self, hashes: Sequence[TxHash]) -> tuple[Sequence[Receipt | None], Header]:
        """Both in the time of one question. None is no more than "not seen"; a receipt's block may be above the head."""
        ...

    async def knows(self, hashes: Sequence[TxHash]) -> Sequence[bool]:
        """Whether the node has the transaction at all, pending or mined."""
        ...

    async def head(self, tag: BlockTag = "latest") -> Header: ...

    async def block(self, number: int) -> Block | None: ...

    async def estimate_gas(self, sender: Address, call: Call) -> int:
        """Raises `WouldRevert` with the decoded reason."""
        ...

    async def quote_fees(self) -> Fees:
        """What the node suggests for the next blocks; the fee cap leaves room for the base fee to double."""
        ...

    async def revert_reason(self, tx_hash: TxHash) -> str | None:
        """Why a mined transaction reverted, decoded, if the node still can tell."""
        ...


ToSign = tuple[Address, Sequence[UnsignedTx]]


class KeyPort(Protocol):
    """Who signs. Signatures are deterministic: the same transaction gives the same bytes."""

    def addresses(self) -> Sequence[Address]: ...

    def signs_at_once(self, address: Address) -> bool:  # noqa: ARG002 - unless somebody says otherwise
        """The key is in this process: nobody else is waited for."""
        return False

    async def sign(self, address: Address, txs: Sequence[UnsignedTx]) -> Sequence[SignedTx]:
        """All or nothing; raises `SigningError`, or `UnknownSigner` when the key isn't held here."""
        ...

    async def sign_each(self, wanted: Sequence[ToSign]) -> Sequence[Sequence[SignedTx] | BaseException]:
        """The same for several addresses: what one of them would have raised stands in its place."""
        return await asyncio.gather(*(self.sign(*batch) for batch in wanted), return_exceptions=True)


class Clock(Protocol):
    def now_s(self) -> float:
        """Monotonic seconds: for deadlines and trust in a lease, never for what is written down."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class Observer(Protocol):
    """What is counted and logged: `event` with signer, node, token and whatever else tells the story.

    Fields are values, not texts: most events are only counted, and nobody reads them.
    """

    def note(self, event: str, /, **fields: object) -> None: ...


# ---- the ledger


class NewRequest(Value, frozen=True):
    tx_id: UUID
    signer: Signer
    request_id: str | None
    kind: Kind
    intent: Intent
    origin: UUID | None = None
    valid_for_s: float | None = None
    tags: tuple[str, ...] = ()


# Of so many that wait before a request, its answer tells: a burst for one signer needs no reading then, nor does a crowd
# that comes one by one, whose lanes are always a few requests behind.
MOST_BEHIND = 16


class AcceptOutcome(StrEnum):
    CREATED = "created"
    KNOWN = "known"  # the same request, the same payload: nothing new was written
    CONFLICT = "conflict"  # the same request id with another payload
    PROTECTED = "protected"  # the signer takes nothing new until a person decides


class Accepted(Value, frozen=True):
    """`queued` is there when little of its signer waited before it, and `behind` names that, by `seq`.

    A lane that holds all of those may take it as it is, in its order: whatever was acknowledged before it was asked for
    is among them, or has left the queue by then. What is stored side by side with it has no order of its own.
    """

    outcome: AcceptOutcome
    tx_id: UUID
    detail: str = ""
    queued: ManagedTx | None = None
    behind: tuple[int, ...] = ()


# Tells of requests of a signer that were stored just now: those that its lane may take, and what they are behind.
Requested = Callable[[Signer, Sequence[ManagedTx], Collection[int]], object]


class Cursor(Value, frozen=True):
    """The next nonce of a signer; every nonce of `start_nonce … next_nonce - 1` belongs to one transaction of ours."""

    next_nonce: int
    start_nonce: int
    state: CursorState = CursorState.ACTIVE
    reason: str | None = None
    is_doubted: bool = False  # bytes that the database lost may be out at the next nonces: `sequence.py`

    def past(self, count: int) -> Cursor:
        """After so many nonces more."""
        return Cursor(self.next_nonce + count, self.start_nonce, self.state, self.reason, self.is_doubted)


@dataclass(frozen=True, slots=True)
class Command:
    """What a person asked of a lane."""

    id: int
    command: str
    tx_id: UUID | None
    detail: Mapping[str, Any]
    asked_by: str
    reason: str | None


# For so long after a fail-over a signer without a cursor may have had one: a pool keeps bytes above a gap for three hours.
YOUNG_HISTORY_S = 3 * 3600.0


@dataclass(frozen=True, slots=True)
class LaneState:
    """A signer as the ledger has it: nothing that a lane needs lives in memory alone."""

    cursor: Cursor | None
    in_flight: tuple[ManagedTx, ...]  # live, with a nonce, by nonce
    queue: tuple[ManagedTx, ...]  # live, without one, by arrival; cut at the limit asked for
    cursor_token: int | None = None  # of the term that moved the cursor last
    may_be_forgotten: bool = False  # it has no cursor, and the history is so young that it may have lost one


class TxChange(Value, frozen=True):
    """`before` names the version that must still stand; everything that differs in `after` is written."""

    before: ManagedTx
    after: ManagedTx
    entries: tuple[Entry, ...]


class LaneWrite(Value, frozen=True):
    """All that one step of a lane changes: it is applied whole, by the holder of the token, or not at all."""

    term: Term
    changes: tuple[TxChange, ...] = ()
    cursor_before: Cursor | None = None
    cursor_after: Cursor | None = None  # None: the cursor stays as it is
    entries: tuple[Entry, ...] = ()  # of the signer itself
    done_commands: tuple[tuple[int, str], ...] = ()  # id and outcome
    fillers: tuple[TxChange, ...] = ()  # new rows, made and allocated in one: `before` was never stored


class Written(Value, frozen=True):
    """Not `lease_ok` is FENCED: the term is over. `lease_ok` but not `applied`: a row moved, read again."""

    lease_ok: bool
    applied: bool


class Ledger(Protocol):
    """The database as the judge of who may write. Every method is one round trip, or one short transaction.

    `accept` and `ask` are open to any node. Everything else that writes names a term, and is refused when a newer
    term exists. Errors of the database surface as they are: after one, the outcome of the call is unknown.
    """

    async def accept(self, requests: Sequence[NewRequest]) -> Sequence[Accepted]: ...

    def accept_one(self, request: NewRequest) -> Awaitable[Accepted]:
        """The same for one, which may be on its way before anybody waits for it."""
        ...

    async def ask(
        self,
        signer: Signer,
        command: str,
        *,
        tx_id: UUID | None,
        asked_by: str,
        reason: str | None,
        detail: Mapping[str, Any],
    ) -> int: ...

    async def acquire(self, signers: Sequence[Signer]) -> Sequence[Term]:
        """Terms for those that were free, expired or ours already; each is a new term with a larger token."""
        ...

    async def renew(self, terms: Sequence[Term]) -> Sequence[Term]:
        """Those that still stand, renewed. What is missing from the answer is over."""
        ...

    async def release(self, terms: Sequence[Term]) -> None: ...

    async def load(self, signer: Signer, *, queue_limit: int) -> LaneState: ...

    async def load_queue(self, signer: Signer, *, limit: int) -> Sequence[ManagedTx]:
        """The oldest requests without a nonce, by arrival. Arrival is not commit order, so there is no "after"."""
        ...

    async def load_commands(self, signer: Signer) -> Sequence[Command]: ...

    async def load_finished(self, signer: Signer, *, from_nonce: int, limit: int) -> Sequence[ManagedTx]:
        """Ended transactions at `from_nonce` and above, by nonce: what a deep reorg may have undone."""
        ...

    async def commit(self, write: LaneWrite) -> Written: ...

    async def commit_each(self, writes: Sequence[LaneWrite]) -> Sequence[Written]:
        """Those of several lanes: each whole or nothing, by itself. After an error the outcome of all is unknown."""
        ...

    async def signers_with_work(
        self, chain_ids: Sequence[int], *, limit: int, after: Signer | None = None
    ) -> Sequence[Signer]:
        """Signers with live transactions or open commands whose lease is free for the taking, in an order of their own."""
        ...

    async def signers_finished_since(self, chain_id: int, block_number: int) -> Sequence[Signer]:
        """Signers with ended transactions in this block or a later one."""
        ...

    async def newest_ended_blocks(self, chain_id: int, *, limit: int) -> Sequence[BlockRef]:
        """Of the last requests that have ended in a block: those blocks, the highest first."""
        ...

    async def get(self, tx_id: UUID) -> ManagedTx | None: ...

    async def find_by_request(self, signer: Signer, request_id: str) -> ManagedTx | None: ...
