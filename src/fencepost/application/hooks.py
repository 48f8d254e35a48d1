"""What a lane calls that its users wrote: who fills a nonce, and who decides about what is stuck."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from fencepost.domain.ids import Signer
from fencepost.domain.managed import ManagedTx
from fencepost.domain.transaction import Fees, UnsignedTx

StuckDecision = Literal["wait", "resubmit", "mark", "filler"]
StuckHook = Callable[[ManagedTx], Awaitable[StuckDecision]]


@dataclass(frozen=True, slots=True)
class NonceContext:
    """What a handler of `with_nonce` gets: the nonce is its own, and will be consumed whatever it does."""

    signer: Signer
    nonce: int
    tx_id: UUID
    fees: Fees


Handler = Callable[[NonceContext], Awaitable[UnsignedTx | bytes]]
