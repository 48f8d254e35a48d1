"""Define the ports: the interfaces through which the use cases reach the outside.

`Ledger` is the database, `Chain` the endpoints of one chain, `KeyPort` the signing keys, `Clock` the time, `Observer`
metrics and logs. Each has a real adapter and a fake, and one contract suite runs over both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, NamedTuple, Protocol
from uuid import UUID

from fencepost.domain.attribution import MinedTx
from fencepost.domain.confirmations import BlockRef
from fencepost.domain.fees import FeeQuote
from fencepost.domain.ids import Address, BlockHash, Signer, TxHash
from fencepost.domain.lease import Term
from fencepost.domain.send_result import SendResult
from fencepost.domain.states import CursorState
from fencepost.domain.struct import Struct
from fencepost.domain.transaction import Call, SignedTx, UnsignedTx
from fencepost.domain.transaction_state import Intent, JournalEntry, Kind, ManagedTx, Receipt
from fencepost.errors import FencepostError

BlockTag = Literal["latest", "pending", "safe", "finalized"]


class Header(Struct, frozen=True):
    """Hold the header of a block. Fields that a chain may not have are None."""

    number: int
    hash: BlockHash
    parent_hash: BlockHash
    base_fee_wei: int | None
    timestamp_s: int
    gas_limit: int | None = None
    gas_used: int | None = None


class Block(Struct, frozen=True):
    """Hold a header and the hashes of the block's transactions, in order."""

    header: Header
    tx_hashes: tuple[TxHash, ...]


class EndpointTrouble(StrEnum):
    """Say why an endpoint reports nothing."""

    SILENT = "silent"  # no answer in time, or no connection
    RATE_LIMITED = "rate_limited"  # it answers that it was called too often
    WRONG_CHAIN = "wrong_chain"  # it serves another chain
    REFUSED = "refused"  # it answers with an error, or is not ready


class EndpointReport(Struct, frozen=True):
    """Hold what one endpoint reports about its head, an account and some transactions.

    With `trouble` it reports nothing, and `error` has the text. `known` says per requested hash whether the endpoint has it.
    """

    endpoint: str
    trouble: EndpointTrouble | None = None
    error: str = ""
    head: Header | None = None
    latest_nonce: int | None = None
    pending_nonce: int | None = None
    balance_wei: int | None = None
    known: tuple[bool, ...] = ()


class Chain(Protocol):
    """Read one chain and send to it, through its configured endpoints.

    Reads raise `RpcUnavailable` if no endpoint answered and `RpcRefused` if an endpoint answered with an error. `send`
    never raises because of an endpoint: the result is a value, and no answer is `UNKNOWN`. An implementation never
    retries a send.

    An endpoint that serves another chain (another id, or the same id and another first block) counts as silent: reads
    raise `WrongChain`, and `ChainReplaced` if every endpoint has the same id and another first block.
    """

    @property
    def chain_id(self) -> int:
        """Return the id of the chain."""
        ...

    @property
    def silent_for_s(self) -> float:
        """Return for how many seconds no endpoint has given a usable answer; 0 while endpoints answer."""
        ...

    async def check_identity(self) -> None:
        """Verify that the endpoints serve this chain.

        Callers use it before they undo, end or stop anything because of data from the chain. Raises `RpcUnavailable`
        if no endpoint answers, and `WrongChain` if an endpoint in use serves another chain: then the caller discards
        the data. Even after a successful check the caller reads once more before it acts.
        """
        ...

    async def send(self, txs: Sequence[SignedTx]) -> Sequence[SendResult]:
        """Send each transaction once, and return one result per transaction, in order."""
        ...

    async def nonce(self, address: Address, tag: Literal["latest", "pending"]) -> int:
        """Return the next nonce of the account; `pending` includes the pool's transactions."""
        ...

    async def nonce_at(self, address: Address, number: int) -> int | None:
        """Return the nonce after this block; None if the endpoint lacks that state or that block."""
        ...

    async def transactions_of(self, address: Address, number: int) -> Sequence[MinedTx] | None:
        """Return the account's transactions in this block, in order; None if there is no such block."""
        ...

    async def balance_wei(self, address: Address) -> int:
        """Return the balance of the account at the latest block."""
        ...

    async def receipts(self, hashes: Sequence[TxHash]) -> Sequence[Receipt | None]:
        """Return one receipt per hash, in order; None where the endpoint has none."""
        ...

    async def block_receipts(self, number: int) -> Sequence[Receipt] | None:
        """Return all receipts of a block with one call; None if the call or the block is not available.

        After None the caller fetches receipts by hash.
        """
        ...

    async def receipts_and_head(self, hashes: Sequence[TxHash]) -> tuple[Sequence[Receipt | None], Header]:
        """Return receipts and head, fetched at the same time.

        None means only that no receipt was seen. The block of a receipt may be above the head.
        """
        ...

    async def knows(self, hashes: Sequence[TxHash]) -> Sequence[bool]:
        """Return per hash whether an endpoint has the transaction, pending or mined."""
        ...

    async def head(self, tag: BlockTag = "latest") -> Header:
        """Return the header of the newest block, or of the newest block with this tag."""
        ...

    async def block(self, number: int) -> Block | None:
        """Return the block of this number, or None if there is none."""
        ...

    async def estimate_gas(self, sender: Address, call: Call) -> int:
        """Return the gas that the call would use now.

        Raises `WouldRevert` with the decoded reason, `InsufficientFunds`, or `RpcRefused` for a temporary rejection.
        `WouldRevert` is only for what the EVM reports about this call: a revert, out of gas, an invalid opcode.
        """
        ...

    async def survey(
        self, address: Address | None, hashes: Sequence[TxHash], *, timeout_s: float
    ) -> Sequence[EndpointReport]:
        """Ask every endpoint for its head, the account and these transactions; return one report per endpoint.

        Never raises because of an endpoint, takes at most `timeout_s`, and does not affect which endpoint is used next.
        """
        ...

    async def quote_fees(self) -> FeeQuote:
        """Return the fees that endpoints suggest for the next blocks; the fee cap allows the base fee to double."""
        ...

    async def revert_reason(self, tx_hash: TxHash) -> str | None:
        """Return the decoded reason why a mined transaction reverted, or None if the endpoint has no reason."""
        ...


ToSign = tuple[Address, Sequence[UnsignedTx]]


class KeyPort(Protocol):
    """Sign transactions. Signatures are deterministic: the same transaction gives the same bytes."""

    def addresses(self) -> Sequence[Address]:
        """Return the addresses whose keys are held."""
        ...

    def signs_locally(self, address: Address) -> bool:  # noqa: ARG002 - a default that implementations override
        """Return whether the key is in this process, so that signing waits for no other system."""
        return False

    async def sign(self, address: Address, txs: Sequence[UnsignedTx]) -> Sequence[SignedTx]:
        """Sign all transactions or none, in order.

        Raises `SigningRefused` if the key refuses one of them, `SigningError` if nothing can be signed now, and
        `UnknownSigner` if the key is not held here.
        """
        ...

    async def sign_each(self, wanted: Sequence[ToSign]) -> Sequence[Sequence[SignedTx] | BaseException]:
        """Sign for several addresses; an address that fails has its exception in place of its signatures."""
        return await asyncio.gather(*(self.sign(*batch) for batch in wanted), return_exceptions=True)


class Clock(Protocol):
    """Tell the time, and sleep."""

    def now_s(self) -> float:
        """Return monotonic seconds: for deadlines and trust in a lease, never for stored times."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Suspend the task for at least this time."""
        ...


class Observer(Protocol):
    """Receive the events of a node, for metrics and logs."""

    def note(self, event: str, /, **fields: object) -> None:
        """Record an event with signer, node, token and other fields.

        Fields are values, not texts: most events are only counted, and formatting them would be wasted.
        """
        ...


# ---- the ledger


class NewRequest(Struct, frozen=True):
    """Hold a validated request that is about to be stored."""

    tx_id: UUID
    signer: Signer
    request_id: str | None
    kind: Kind
    intent: Intent
    origin: UUID | None = None
    valid_for_s: float | None = None
    tags: tuple[str, ...] = ()
    key_id: str | None = None  # of the API key that authenticated the request


# `Accepted.behind` names at most this many earlier requests. With it the lane needs no read for a burst for one signer,
# nor for requests that arrive one by one while the lane is a few requests behind.
MAX_BEHIND = 16


class AcceptOutcome(StrEnum):
    """Say what `Ledger.accept` did with a request."""

    CREATED = "created"
    KNOWN = "known"  # the same request, the same payload: nothing new was written
    CONFLICT = "conflict"  # the same request id with another payload
    PROTECTED = "protected"  # the signer accepts nothing new until an operator decides
    NONCE_ONLY = "nonce_only"  # the nonce service allocates the signer's nonces, never the core


class Accepted(Struct, frozen=True):
    """Hold the result of storing one request.

    If at most `MAX_BEHIND` requests of the signer waited before it, `queued` is the stored transaction and `behind`
    holds the `seq` of each of them. A lane that holds all of those may append `queued` without reading the ledger:
    every request that was acknowledged before this one was submitted is among them, or has left the queue. Requests
    that are stored concurrently have no defined order.
    """

    outcome: AcceptOutcome
    tx_id: UUID
    detail: str = ""
    queued: ManagedTx | None = None
    behind: tuple[int, ...] = ()


# Called with a signer, its newly stored requests that the lane may append, and the `seq` of the requests before them.
Requested = Callable[[Signer, Sequence[ManagedTx], Collection[int]], object]


class Cursor(Struct, frozen=True):
    """Hold the next nonce of a signer; each nonce of `start_nonce … next_nonce - 1` belongs to one managed transaction."""

    next_nonce: int
    start_nonce: int
    state: CursorState = CursorState.ACTIVE
    reason: str | None = None
    is_doubted: bool = False  # lost signed bytes may exist at the next nonces: `nonce_sync.py`
    pause: str | None = None  # why an operator paused it; None: it is not paused. `state` is never PAUSED

    @property
    def is_open(self) -> bool:
        """Return whether new nonces may be allocated."""
        return self.state is CursorState.ACTIVE and self.pause is None

    def past(self, count: int) -> Cursor:
        """Return the cursor after allocating `count` nonces."""
        return self.changed(next_nonce=self.next_nonce + count)


@dataclass(frozen=True, slots=True)
class Command:
    """Hold an operator command that a lane has to run."""

    id: int
    command: str
    tx_id: UUID | None
    detail: Mapping[str, Any]
    author: str
    reason: str | None


# For this time after a fail-over a signer without a cursor may have had one: pools keep bytes above a gap for three hours.
YOUNG_HISTORY_S = 3 * 3600.0


class UnreadableRow(FencepostError):
    """Report a stored request that this version cannot decode.

    The only command that applies to it is a cancel before it has a nonce. `tx` holds the row's plain columns; its intent
    is a placeholder and must never be signed.
    """

    code = "row_unreadable"

    def __init__(self, tx: ManagedTx, cause: str) -> None:
        """Describe the row and the cause in a bounded message."""
        super().__init__(f"the stored row of transaction {tx.tx_id} can't be read: {cause}"[:1000])
        self.tx = tx


@dataclass(frozen=True, slots=True)
class LaneState:
    """Hold everything that a lane needs of its signer, as the ledger has it."""

    cursor: Cursor | None
    in_flight: tuple[ManagedTx, ...]  # live, with a nonce, by nonce
    queue: tuple[ManagedTx, ...]  # live, without a nonce, by arrival; at most `queue_limit`
    cursor_token: int | None = None  # the fencing token of the term that last moved the cursor
    may_be_forgotten: bool = False  # it has no cursor, and a recent fail-over may have lost one
    unreadable: tuple[UnreadableRow, ...] = ()  # live rows that are neither in `in_flight` nor in `queue`
    is_from_copy: bool = False  # the database was copied or restored since the cursor last moved


class TxChange(Struct, frozen=True):
    """Hold a change of one transaction: `before` must be the stored version; what differs in `after` is written."""

    before: ManagedTx
    after: ManagedTx
    entries: tuple[JournalEntry, ...]


class DoneCommand(NamedTuple):
    """Hold the outcome of an operator command, and whether it changed anything."""

    id: int
    outcome: str
    applied: bool = True


class LaneWrite(Struct, frozen=True):
    """Hold all changes of one lane step; the ledger applies all of them if the term is current, or none."""

    term: Term
    changes: tuple[TxChange, ...] = ()
    cursor_before: Cursor | None = None
    cursor_after: Cursor | None = None  # None: the cursor stays as it is
    entries: tuple[JournalEntry, ...] = ()  # of the signer itself
    done_commands: tuple[DoneCommand, ...] = ()
    fillers: tuple[TxChange, ...] = ()  # new rows, created and allocated at once: `before` was never stored


class Written(Struct, frozen=True):
    """Hold the result of a `LaneWrite`.

    Without `lease_ok` the write was FENCED: the term is over. With `lease_ok` and without `applied` a row was changed by
    another writer: load the lane again.
    """

    lease_ok: bool
    applied: bool


class Ledger(Protocol):
    """Store requests, leases, cursors and transactions, and reject writes of a node that lost its lease.

    Each method is one round trip, or one short transaction. Any node may call `accept` and `add_command`. Every other write names
    a term, and is rejected if a newer term exists. Database errors are raised unchanged: after one, the outcome of the
    call is unknown.
    """

    async def accept(self, requests: Sequence[NewRequest]) -> Sequence[Accepted]:
        """Store requests, each at most once per signer and request id; return one result per request, in order."""
        ...

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
        """Store an operator command for the signer's lane, and return the id of the command."""
        ...

    async def acquire(self, signers: Sequence[Signer]) -> Sequence[Term]:
        """Acquire the leases that are free, expired or held by this process.

        Each returned term is new and has a larger fencing token. Signers that another process holds are left out.
        """
        ...

    async def renew(self, terms: Sequence[Term]) -> Sequence[Term]:
        """Renew the terms that are still current, and return them. A term that is missing from the result is over."""
        ...

    async def release(self, terms: Sequence[Term]) -> None:
        """Release the leases of these terms; terms that are over are ignored."""
        ...

    async def load(self, signer: Signer, *, queue_limit: int) -> LaneState:
        """Read everything that a lane needs, with at most `queue_limit` requests without a nonce."""
        ...

    async def load_cursor(self, signer: Signer) -> LaneState:
        """Read only the cursor, for a signer whose rows cannot be loaded."""
        ...

    async def load_queue(self, signer: Signer, *, limit: int) -> Sequence[ManagedTx]:
        """Return the oldest requests without a nonce, by arrival. Arrival is not commit order, so there is no "after".

        Raises `UnreadableRow` if one of them cannot be decoded.
        """
        ...

    async def load_unsent(self, signer: Signer, *, after_seq: int, limit: int) -> Sequence[ManagedTx]:
        """Return live requests without a nonce and with a `seq` above `after_seq`, by arrival; suspended ones too."""
        ...

    async def load_commands(self, signer: Signer) -> Sequence[Command]:
        """Return the signer's open operator commands, oldest first."""
        ...

    async def load_finished(self, signer: Signer, *, from_nonce: int, limit: int) -> Sequence[ManagedTx]:
        """Return ended transactions with nonce `from_nonce` or above, by nonce: a deep reorg may have undone them."""
        ...

    async def commit(self, write: LaneWrite) -> Written:
        """Apply all changes of one lane step, or none."""
        ...

    async def commit_each(self, writes: Sequence[LaneWrite]) -> Sequence[Written]:
        """Apply the writes of several lanes, each completely or not at all. After an error all outcomes are unknown."""
        ...

    async def signers_with_work(
        self, chain_ids: Sequence[int], *, limit: int, after: Signer | None = None
    ) -> Sequence[Signer]:
        """Return a page of the signers that have work and a free lease, in a stable order.

        Work is a live transaction or an open command. `after` is the last signer of the page before.
        """
        ...

    async def signers_finished_since(
        self, chain_id: int, block_number: int, *, limit: int, after: Signer | None = None
    ) -> Sequence[Signer]:
        """Return a page of the signers with ended transactions in this block or a later one, in order."""
        ...

    async def newest_ended_blocks(
        self, chain_id: int, *, limit: int, below: int | None = None
    ) -> Sequence[BlockRef]:
        """Return the blocks of the `limit` highest numbers below `below` in which transactions ended, highest first.

        If several hashes are stored for a number, all of them are returned.
        """
        ...

    async def get(self, tx_id: UUID) -> ManagedTx | None:
        """Return the transaction, or None if there is none with this id."""
        ...

    async def find_by_request(self, signer: Signer, request_id: str) -> ManagedTx | None:
        """Return the transaction of a signer's request, or None if the request was never stored."""
        ...


@dataclass(frozen=True, slots=True)
class Actor:
    """Name the author of a command, and the API key that was used, if any."""

    name: str
    key_id: str | None = None


@dataclass(frozen=True, slots=True)
class NewCommand:
    """Hold an operator command that is about to be stored. `command` is its name in the lane, `action` its name in the audit."""

    signer: Signer
    command: str
    action: str
    tx_id: UUID | None = None
    reason: str | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)


class CommandStore(Protocol):
    """Store operator commands. Any node may store them; the signer's lane runs them."""

    async def submit(self, command: NewCommand, actor: Actor) -> int:
        """Store the command and its audit row in one database transaction, and return the command's id.

        If the newest open command for the same transaction or signer is the same, return its id instead. For a cancel,
        return the id of the applied cancel of that transaction, if there is one.
        """
        ...
