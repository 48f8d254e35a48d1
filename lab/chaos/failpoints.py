"""Failpoints before and after every call of a port, at which a process can be killed or paused.

The methods of the adapters are wrapped in the chaos node only; the product has no code for it. An order is a file such as
`{"point": "ledger.commit:before", "nth": 3, "action": "kill"}`. The process reads it every few calls, counts calls from then
on, and deletes the file just before it acts, so that the lab sees that it did.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, Literal

import msgspec

from fencepost.adapters.evm.chain import EvmChain
from fencepost.adapters.postgres.ledger import PostgresLedger
from fencepost.adapters.signers import KeyRing

ORDER_FILE = "LAB_FAILPOINT_FILE"
_READ_INTERVAL_S = 0.03

PORTS: dict[str, tuple[type, tuple[str, ...]]] = {
    "ledger": (
        PostgresLedger,
        (
            "accept",
            "add_command",
            "acquire",
            "renew",
            "release",
            "load",
            "load_cursor",
            "load_queue",
            "load_unsent",
            "load_commands",
            "load_finished",
            "commit",
            "commit_each",
            "signers_with_work",
            "signers_finished_since",
            "newest_ended_blocks",
            "get",
            "find_by_request",
        ),
    ),
    "chain": (
        EvmChain,
        (
            "survey",
            "check_identity",
            "send",
            "nonce",
            "nonce_at",
            "transactions_of",
            "balance_wei",
            "receipts",
            "receipts_and_head",
            "knows",
            "head",
            "block",
            "block_receipts",
            "estimate_gas",
            "quote_fees",
            "revert_reason",
        ),
    ),
    "keys": (KeyRing, ("sign", "sign_each")),
}
POINTS: tuple[str, ...] = tuple(
    f"{port}.{method}:{when}"
    for port, (_, methods) in PORTS.items()
    for method in methods
    for when in ("before", "after")
)


class FailpointOrder(msgspec.Struct, frozen=True):
    """Kill or pause the process at the n-th call of a failpoint."""

    point: str
    nth: int
    action: Literal["kill", "pause"]


def write_order(path: Path, order: FailpointOrder) -> None:
    """Write an order atomically, because the process may read it at any time."""
    temporary = path.with_suffix(".new")
    temporary.write_bytes(msgspec.json.encode(order))
    temporary.rename(path)


@dataclass(slots=True)
class Failpoints:
    """Wrap the ports, and act on orders."""

    path: Path
    _order: FailpointOrder | None = None
    _left: int = 0
    _read_at_s: float = 0.0

    def install(self) -> None:
        """Wrap all methods of the ports."""
        for port, (adapter, methods) in PORTS.items():
            for method in methods:
                setattr(adapter, method, self._wrapped(f"{port}.{method}", getattr(adapter, method)))

    def _wrapped(self, name: str, real: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        before, after = f"{name}:before", f"{name}:after"

        @wraps(real)
        async def call(*args: Any, **named: Any) -> Any:
            self._reach(before)
            answer = await real(*args, **named)
            self._reach(after)
            return answer

        return call

    def _reach(self, point: str) -> None:
        now_s = time.monotonic()
        if now_s - self._read_at_s > _READ_INTERVAL_S:
            self._read_at_s = now_s
            self._read_order()
        if self._order is None or self._order.point != point:
            return
        self._left -= 1
        if self._left <= 0:
            self._trigger(self._order)

    def _read_order(self) -> None:
        try:
            order = msgspec.json.decode(self.path.read_bytes(), type=FailpointOrder)
        except FileNotFoundError:
            self._order = None  # none, or withdrawn
            return
        if order != self._order:
            self._order, self._left = order, order.nth

    def _trigger(self, order: FailpointOrder) -> None:
        self._order = None
        self.path.unlink(missing_ok=True)
        os.kill(os.getpid(), signal.SIGKILL if order.action == "kill" else signal.SIGSTOP)
