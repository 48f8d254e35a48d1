"""Fencepost: a transaction manager for EVM chains.

The life of one transaction, and the module of each step:

    client ──► api, facade ──► application/accept ─────────────► QUEUED      any node; stored once per request id
                                                                   │ wake-up, or polling
               the node that holds the signer's lease:             ▼
    application/allocate    nonce + signed bytes + journal, one fenced statement  → ALLOCATED
    application/broadcast   send the stored bytes, classify the result             → SUBMITTED
    application/track       blocks → receipts → confirmations, forks               → TRACKING → CONFIRMED / FAILED
    application/resubmit    no receipt in time: send the same bytes, a higher price, or a filler
    application/reconcile   at each take-over and start: compare the ledger with the chain
    application/operator_commands   cancel, suspend, resume, bump, pause, protect

PostgreSQL decides which node may write: one lease per signer, a fencing token on every write. The chain decides what
happened.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fencepost.application.hooks import Handler, NonceContext, StuckDecision, StuckHook
    from fencepost.application.tx_events import TxsChanged
    from fencepost.domain.ids import Address, Signer
    from fencepost.domain.transaction import AccessEntry, Call, Fees, TxType, UnsignedTx
    from fencepost.domain.transaction_state import ManagedTx
    from fencepost.facade import Fencepost

__all__ = [
    "AccessEntry",
    "Address",
    "Call",
    "Fees",
    "Fencepost",
    "Handler",
    "ManagedTx",
    "NonceContext",
    "Signer",
    "StuckDecision",
    "StuckHook",
    "TxType",
    "TxsChanged",
    "UnsignedTx",
]

_MODULES = {
    "fencepost.facade": ("Fencepost",),
    "fencepost.application.hooks": ("Handler", "NonceContext", "StuckDecision", "StuckHook"),
    "fencepost.application.tx_events": ("TxsChanged",),
    "fencepost.domain.ids": ("Address", "Signer"),
    "fencepost.domain.transaction_state": ("ManagedTx",),
    "fencepost.domain.transaction": ("AccessEntry", "Call", "Fees", "TxType", "UnsignedTx"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: `Fencepost` imports the whole node."""
    if name in _MODULE_OF:
        return getattr(importlib.import_module(_MODULE_OF[name]), name)
    raise AttributeError(name)
