"""Define what every nonce scheme guarantees, and its value types.

- A nonce that is held, submitted or consumed is never allocated again. A consumed nonce is never released.
- The smallest released nonce is allocated first; the cursor moves only if there is none.
- A hold has a token, and every mark carries it: a previous holder of a nonce can't mark it for the current one.
- An expired hold is released only by `reclaim_expired`, and only if it has no hash and the chain has not seen its nonce.
  A hold lasts at least as long as the caller requested.
- Marks are idempotent. A mark with a hash other than the stored one is rejected.

If a scheme breaks one of these guarantees in some fault (`redis_full` does), its own file says so, and
`./dev schemes` demonstrates it.

After a database or Redis error the outcome is unknown: nonces whose allocation the caller never received stay held until
they expire.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol
from uuid import UUID

from fencepost.domain.ids import Signer, TxHash
from fencepost.errors import HoldLost, InvalidRequest, NonceConflict

MAX_NONCES_PER_CALL = 1000
MAX_HOLD_S = 86_400.0


class NonceState(StrEnum):
    """Name the states of a stored nonce."""

    HELD = "HELD"
    SUBMITTED = "SUBMITTED"
    CONSUMED = "CONSUMED"
    RELEASED = "RELEASED"


@dataclass(frozen=True, slots=True)
class Hold:
    """A nonce and the token of its holder."""

    signer: Signer
    nonce: int
    token: UUID


@dataclass(frozen=True, slots=True)
class NonceSlot:
    """The stored state of a nonce."""

    state: NonceState
    token: UUID | None
    tx_hash: TxHash | None


@dataclass(frozen=True, slots=True)
class SignerStatus:
    """Count the nonces of a signer by state."""

    start_nonce: int
    next_nonce: int  # the first that was never allocated
    held: int
    expired: int  # held nonces whose hold has expired
    submitted: int
    consumed: int
    released: int
    first_gap: int | None  # the smallest released nonce


class NoncePort(Protocol):
    """Allocate the nonces of the signers that use one scheme, and record their use."""

    async def allocate(self, signer: Signer, *, count: int = 1, hold_for_s: float) -> Sequence[Hold]:
        """Allocate `count` nonces, or raise and allocate none.

        Raises `SignerUsedOtherwise`, `NonceUnavailable` or `NotLeader`.
        """
        ...

    async def mark_submitted(self, hold: Hold, tx_hash: TxHash) -> None:
        """Record that the caller sent a transaction with this hash.

        Raises `HoldLost` if the hold has ended, `NonceConflict` if another hash is stored.
        """
        ...

    async def mark_used(self, hold: Hold, tx_hash: TxHash | None = None) -> None:
        """Record that the nonce is consumed. Raises as `mark_submitted` does."""
        ...

    async def mark_recyclable(self, hold: Hold) -> None:
        """Release a nonce that the caller did not and will not use. Raises `NonceConflict` if it has a hash."""
        ...

    async def reclaim_expired(self, signer: Signer) -> int:
        """Release expired holds and return their number. Raises `RpcError`, and releases none, if the chain can't be read."""
        ...

    async def status(self, signer: Signer) -> SignerStatus | None:
        """Count the nonces of a signer; return None if none was ever allocated."""
        ...

    async def tend_once(self) -> int:
        """Run the periodic maintenance (renewals, flushes, probes) once; return the amount of work done."""
        ...

    async def close(self) -> None:
        """Store unstored holds and release what this process did not use."""
        ...


class NonceAllocator(Protocol):
    """Allocate the nonces of any signer, whichever scheme it uses: the nonce service as its callers see it."""

    async def allocate(
        self, signer: Signer, *, count: int = 1, hold_for_s: float | None = None
    ) -> Sequence[Hold]:
        """Allocate as `NoncePort.allocate` does; without `hold_for_s`, hold for the configured time."""
        ...

    async def mark_submitted(self, hold: Hold, tx_hash: TxHash) -> None:
        """Record that the caller sent a transaction with this hash."""
        ...

    async def mark_used(self, hold: Hold, tx_hash: TxHash | None = None) -> None:
        """Record that the nonce is consumed."""
        ...

    async def mark_recyclable(self, hold: Hold) -> None:
        """Release a nonce that the caller did not and will not use."""
        ...

    async def reclaim_expired(self, signer: Signer) -> int:
        """Release expired holds, and return their number."""
        ...

    async def status(self, signer: Signer) -> SignerStatus | None:
        """Count the nonces of a signer; return None if none was ever allocated."""
        ...


class EventSink(Protocol):
    """Receive named events for log and metrics."""

    def __call__(self, event: str, /, **fields: object) -> None:
        """Record one event with its fields."""
        ...


def ignore_event(event: str, /, **fields: object) -> None:
    """Discard the event: for schemes that run outside a node."""


def check_request(*, count: int, hold_for_s: float) -> None:
    """Raise `InvalidRequest` if the number of nonces or the time to hold them is out of range."""
    if not 0 < count <= MAX_NONCES_PER_CALL:
        raise InvalidRequest(f"must be from 1 to {MAX_NONCES_PER_CALL}", field="count")
    if not 0 < hold_for_s <= MAX_HOLD_S:
        raise InvalidRequest(f"must be above 0 and at most {MAX_HOLD_S:.0f} seconds", field="holdFor")


@dataclass(frozen=True, slots=True)
class Mark:
    """A requested state of a hold."""

    hold: Hold
    state: NonceState
    tx_hash: TxHash | None = None


def is_applied(mark: Mark, slot: NonceSlot | None) -> bool:
    """Return True if the slot already has the requested state, False if the mark may be applied.

    Raises `HoldLost` or `NonceConflict` if the mark is not allowed.
    """
    nonce, wanted = mark.hold.nonce, mark.state
    if slot is None or slot.token != mark.hold.token:
        raise HoldLost(f"nonce {nonce} of {mark.hold.signer.address} is not held with this token")
    if slot.tx_hash is not None and mark.tx_hash is not None and slot.tx_hash != mark.tx_hash:
        raise NonceConflict(
            f"nonce {nonce} of {mark.hold.signer.address} already has the hash {slot.tx_hash}"
        )
    match slot.state, wanted:
        case NonceState.HELD, _:
            return False
        case NonceState.SUBMITTED, NonceState.CONSUMED:
            return False
        case NonceState.SUBMITTED | NonceState.CONSUMED, NonceState.SUBMITTED:
            return slot.tx_hash == mark.tx_hash or _raise_conflict(mark)
        case (NonceState.CONSUMED, NonceState.CONSUMED) | (NonceState.RELEASED, NonceState.RELEASED):
            return True
        case NonceState.RELEASED, _:
            raise HoldLost(f"nonce {nonce} of {mark.hold.signer.address} was released")
        case _:
            return _raise_conflict(mark)


def _raise_conflict(mark: Mark) -> bool:
    raise NonceConflict(
        f"nonce {mark.hold.nonce} of {mark.hold.signer.address} was already used: it can't become {mark.state}"
    )
