"""Define the user functions that a lane calls: handlers, which build a transaction for a nonce, and the stuck hook."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from fencepost.domain.ids import Signer
from fencepost.domain.transaction import Fees, UnsignedTx
from fencepost.domain.transaction_state import ManagedTx
from fencepost.errors import SettingError

StuckDecision = Literal["wait", "resubmit", "mark", "filler"]
"""Wait another interval; send the same bytes again; mark it STUCK for an operator; consume its nonce with a filler."""
StuckHook = Callable[[ManagedTx], Awaitable[StuckDecision]]


@dataclass(frozen=True, slots=True)
class NonceContext:
    """The argument of a `with_nonce` handler. The nonce belongs to it and is consumed even if it fails."""

    signer: Signer
    nonce: int
    tx_id: UUID
    fees: Fees


Handler = Callable[[NonceContext], Awaitable[UnsignedTx | bytes]]


def load_stuck_hook(entry_point: str) -> StuckHook:
    """Import the hook that a setting names as `module:function`. Raises `SettingError` if it can't be imported."""
    module_name, _, name = entry_point.partition(":")
    try:
        found: object = importlib.import_module(module_name)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise SettingError(f"resubmit.stuck_hook: {entry_point} can't be imported: {error}") from error
    call = found if inspect.isroutine(found) else getattr(found, "__call__", None)  # noqa: B004 - its method is needed
    if not callable(found) or not inspect.iscoroutinefunction(call):
        raise SettingError(
            f"resubmit.stuck_hook: {entry_point} must be an async function that takes one transaction"
        )
    return found
