"""Run a node in its own process and make it die at a chosen point.

The test sends orders as JSON on standard input. This module wraps the methods of the adapters, in this process only: the
product knows nothing of failpoints. SIGTERM stops the node gracefully. The process writes every event of the node to
standard output as a line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any

import asyncpg

from fencepost.adapters.evm.chain import EvmChain
from fencepost.adapters.postgres.ledger import PostgresLedger
from fencepost.adapters.signers import KeyRing
from fencepost.application.ports import LaneWrite
from fencepost.facade import Fencepost

# All methods for one purpose: the lane chooses one by the amount of work it finds.
METHODS: dict[str, tuple[type, tuple[str, ...]]] = {
    "sign": (KeyRing, ("sign", "sign_each")),
    "send": (EvmChain, ("send",)),
    "receipts": (EvmChain, ("receipts", "receipts_and_head", "block_receipts")),
    "commit": (PostgresLedger, ("commit", "commit_each")),
    "renew": (PostgresLedger, ("renew",)),
}


def say(**fields: str) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


@dataclass(slots=True)
class Point:
    at: str
    when: str
    what: str
    nth: int
    calls: int = 0

    def is_reached(self, args: tuple[Any, ...]) -> bool:
        """Count the calls of this failpoint and tell whether the chosen one is reached."""
        event = self.at.partition(":")[2]
        if event and event not in _events(args[0]):
            return False
        self.calls += 1
        return self.calls == self.nth

    def strike(self) -> None:
        say(struck=self.at, when=self.when)
        if self.what == "lose_answer":
            raise asyncpg.ConnectionDoesNotExistError("the answer was lost")
        os.kill(os.getpid(), signal.SIGKILL if self.what == "kill" else signal.SIGSTOP)


def _events(written: LaneWrite | Sequence[LaneWrite]) -> set[str]:
    """Collect the events of one write, or of several that are committed together."""
    writes = [written] if isinstance(written, LaneWrite) else written
    of_txs = {entry.event for write in writes for change in write.changes for entry in change.entries}
    return of_txs | {entry.event for write in writes for entry in write.entries}


def wrap(point: Point) -> None:
    owner, names = METHODS[point.at.partition(":")[0]]
    for name in names:
        wrap_method(point, owner, name)


def wrap_method(point: Point, owner: type, name: str) -> None:
    real: Callable[..., Awaitable[Any]] = getattr(owner, name)

    @wraps(real)
    async def wrapped(self: object, *args: Any) -> Any:
        reached = point.is_reached(args)
        if reached and point.when == "before":
            point.strike()
        answer = await real(self, *args)
        if reached and point.when == "after":
            point.strike()
        return answer

    setattr(owner, name, wrapped)


class Events(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        fields = {key: str(value) for key, value in getattr(record, "fields", {}).items()}
        say(event=record.getMessage(), at=str(record.created), **fields)


async def main() -> None:
    orders = json.load(sys.stdin)
    logging.basicConfig(level=logging.WARNING)
    events = logging.getLogger("fencepost.events")
    events.setLevel(logging.INFO)
    events.addHandler(Events())
    events.propagate = False
    for failpoint in orders["failpoints"]:
        wrap(Point(**failpoint))
    shown = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, shown.set)
    async with Fencepost.open(
        dsn=orders["dsn"],
        rpc_url=orders["rpc_url"],
        chain_id=orders["chain_id"],
        private_keys=orders["private_keys"],
        options=orders["options"],
    ):
        say(event="open")
        await shown.wait()


if __name__ == "__main__":
    asyncio.run(main())
