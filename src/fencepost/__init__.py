"""Fencepost: a transaction manager for EVM chains.

The way of one transaction, and where to read about each step:

    client ──► api, facade ──► application/accept ─────────────► QUEUED      any node; stored once a request id
                                                                   │ wake-up, or polling
               the node that holds the signer's lease:             ▼
    application/allocate    nonce + signed bytes + journal, one fenced statement  → ALLOCATED
    application/broadcast   send what is stored, classify the answer               → SUBMITTED
    application/track       blocks → receipts → confirmations, forks               → TRACKING → CONFIRMED / FAILED
    application/escalate    too long without a receipt: the same bytes, or a better price, or a filler
    application/reconcile   on take-over and on boot: the ledger against the chain, then go on
    application/intervene   what people ask: cancel, suspend, resume, protect

PostgreSQL decides who may write: a lease a signer, a fencing token on every write. The chain decides what happened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fencepost.facade import Fencepost

__all__ = ["Fencepost"]


def __getattr__(name: str) -> Any:
    """`Fencepost` brings the whole node with it, so it is imported when somebody asks for it."""
    if name == "Fencepost":
        from fencepost.facade import Fencepost

        return Fencepost
    raise AttributeError(name)
