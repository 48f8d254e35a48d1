"""Failpoints: every call of a port, before and after it, is a place where a process can be made to die or to sleep.

The methods of the adapters are wrapped, in the process that asks for it only; the product knows nothing of it. An order
is a file: `{"point": "ledger.commit:before", "nth": 3, "action": "kill"}`. It is looked for every few calls, counts
calls from then on, and is taken away just before it strikes, which is how whoever gave it learns that it did.
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
_LOOK_EVERY_S = 0.03

PORTS: dict[str, tuple[type, tuple[str, ...]]] = {
    "ledger": (
        PostgresLedger,
        (
            "accept",
            "accept_one",
            "ask",
            "acquire",
            "renew",
            "release",
            "load",
            "load_queue",
            "load_commands",
            "load_finished",
            "commit",
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
            "send",
            "nonce",
            "balance_wei",
            "receipts",
            "receipts_and_head",
            "knows",
            "head",
            "block",
            "estimate_gas",
            "quote_fees",
            "revert_reason",
        ),
    ),
    "keys": (KeyRing, ("sign",)),
}
POINTS: tuple[str, ...] = tuple(
    f"{port}.{method}:{when}"
    for port, (_, methods) in PORTS.items()
    for method in methods
    for when in ("before", "after")
)


class Order(msgspec.Struct, frozen=True):
    point: str
    nth: int
    action: Literal["kill", "pause"]


def give(path: Path, order: Order) -> None:
    """Whole or not at all: the process may look at any moment."""
    temporary = path.with_suffix(".new")
    temporary.write_bytes(msgspec.json.encode(order))
    temporary.rename(path)


@dataclass(slots=True)
class Failpoints:
    path: Path
    _order: Order | None = None
    _left: int = 0
    _looked_s: float = 0.0

    def install(self) -> None:
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
        if now_s - self._looked_s > _LOOK_EVERY_S:
            self._looked_s = now_s
            self._look()
        if self._order is None or self._order.point != point:
            return
        self._left -= 1
        if self._left <= 0:
            self._strike(self._order)

    def _look(self) -> None:
        try:
            order = msgspec.json.decode(self.path.read_bytes(), type=Order)
        except FileNotFoundError:
            self._order = None  # never given, or taken back
            return
        if order != self._order:
            self._order, self._left = order, order.nth

    def _strike(self, order: Order) -> None:
        self._order = None
        self.path.unlink(missing_ok=True)
        os.kill(os.getpid(), signal.SIGKILL if order.action == "kill" else signal.SIGSTOP)
