"""What every scheme promises, and the values it speaks in.

- A nonce that is held, submitted or consumed is nobody else's. A consumed one never comes back.
- The smallest released nonce is given again first; only then the cursor moves.
- A hold has a token. Marks name it: whoever held a nonce before can't mark it for its next holder.
- A hold whose time is over is released only by `reclaim_expired`, and only if it has no hash and the chain has not
  seen its nonce. It is held for at least as long as was asked.
- Marks may be repeated. A hash other than the one that is stored is refused.

What a scheme does not keep in some fault (`redis_full` does not keep all of this) stands in its own file, and is shown
by `fencepost lab schemes`.

After an error of the database or of Redis nobody knows what was done: nonces that were given and never heard of again
are held until their time is over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol
from uuid import UUID

from fencepost.domain.ids import Signer, TxHash
from fencepost.errors import HoldLost, InvalidRequest, NonceConflict

MOST_AT_ONCE = 1000
HOLD_S_MAX = 86_400.0


class NonceState(StrEnum):
    HELD = "HELD"
    SUBMITTED = "SUBMITTED"
    CONSUMED = "CONSUMED"
    RELEASED = "RELEASED"


@dataclass(frozen=True, slots=True)
class Hold:
    """A nonce and the token that shows whose it is."""

    signer: Signer
    nonce: int
    token: UUID


@dataclass(frozen=True, slots=True)
class Slot:
    """A nonce as it is stored."""

    state: NonceState
    token: UUID | None
    tx_hash: TxHash | None


@dataclass(frozen=True, slots=True)
class SignerStatus:
    start_nonce: int
    next_nonce: int  # the first that was never given
    held: int
    expired: int  # of those held: their time is over
    submitted: int
    consumed: int
    released: int
    first_gap: int | None  # the smallest that waits to be given again


class NoncePort(Protocol):
    async def allocate(self, signer: Signer, *, count: int = 1, hold_for_s: float) -> Sequence[Hold]:
        """All of them, or an error and none. Raises `SignerElsewhere`, `NonceUnavailable`, or `NotLeader`."""
        ...

    async def mark_submitted(self, hold: Hold, tx_hash: TxHash) -> None:
        """Raises `HoldLost` when the hold is over, `NonceConflict` when another hash is stored."""
        ...

    async def mark_used(self, hold: Hold, tx_hash: TxHash | None = None) -> None: ...

    async def mark_recyclable(self, hold: Hold) -> None:
        """The nonce was not and will not be used. What has a hash is not released: `NonceConflict`."""
        ...

    async def reclaim_expired(self, signer: Signer) -> int:
        """How many nonces were released. Raises `RpcError` when the chain can't be asked: then nothing is released."""
        ...

    async def status(self, signer: Signer) -> SignerStatus | None: ...

    async def tend_once(self) -> int:
        """What has to be done again and again (renewals, flushes, probes); returns how much was done."""
        ...

    async def close(self) -> None:
        """Store what is not stored, give back what is not used."""
        ...


class NonceDesk(Protocol):
    """What callers of a whole service see: any signer, whichever scheme it has."""

    async def allocate(
        self, signer: Signer, *, count: int = 1, hold_for_s: float | None = None
    ) -> Sequence[Hold]: ...

    async def mark_submitted(self, hold: Hold, tx_hash: TxHash) -> None: ...
    async def mark_used(self, hold: Hold, tx_hash: TxHash | None = None) -> None: ...
    async def mark_recyclable(self, hold: Hold) -> None: ...
    async def reclaim_expired(self, signer: Signer) -> int: ...
    async def status(self, signer: Signer) -> SignerStatus | None: ...


def check_request(*, count: int, hold_for_s: float) -> None:
    if not 0 < count <= MOST_AT_ONCE:
        raise InvalidRequest(f"must be from 1 to {MOST_AT_ONCE}", field="count")
    if not 0 < hold_for_s <= HOLD_S_MAX:
        raise InvalidRequest(f"must be above 0 and at most {HOLD_S_MAX:.0f} seconds", field="holdFor")


@dataclass(frozen=True, slots=True)
class Mark:
    """A state that a hold shall have."""

    hold: Hold
    state: NonceState
    tx_hash: TxHash | None = None


def is_done(mark: Mark, slot: Slot | None) -> bool:
    """Whether the slot is as the mark wants it already; False: it may be changed so. Raises when it may not."""
    nonce, wanted = mark.hold.nonce, mark.state
    if slot is None or slot.token != mark.hold.token:
        raise HoldLost(f"nonce {nonce} of {mark.hold.signer.address} is not held with this token")
    if slot.tx_hash is not None and mark.tx_hash is not None and slot.tx_hash != mark.tx_hash:
        raise NonceConflict(f"nonce {nonce} of {mark.hold.signer.address} has the hash {slot.tx_hash}")
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
        f"nonce {mark.hold.nonce} of {mark.hold.signer.address} was used: it can't become {mark.state}"
    )
