"""A node in a process of its own, that dies where it is told to. Orders come as JSON on standard input.

The methods of the adapters are wrapped here, in this process only: the product knows nothing of failpoints. SIGTERM
stops the node in good order. Every event that the node notes goes to standard output as a line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

import asyncpg

from fencepost.adapters.evm.chain import EvmChain
from fencepost.adapters.postgres.ledger import PostgresLedger
from fencepost.adapters.signers import KeyRing
from fencepost.application.ports import LaneWrite
from fencepost.facade import Fencepost

METHODS: dict[str, tuple[type, str]] = {
    "sign": (KeyRing, "sign"),
    "send": (EvmChain, "send"),
    "receipts": (EvmChain, "receipts"),
    "commit": (PostgresLedger, "commit"),
    "renew": (PostgresLedger, "renew"),
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
        """Counts the calls that it is about."""
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


def _events(write: LaneWrite) -> set[str]:
    of_txs = {entry.event for change in write.changes for entry in change.entries}
    return of_txs | {entry.event for entry in write.entries}


def wrap(point: Point) -> None:
    owner, name = METHODS[point.at.partition(":")[0]]
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
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    async with Fencepost.open(
        dsn=orders["dsn"],
        rpc_url=orders["rpc_url"],
        private_keys=orders["private_keys"],
        options=orders["options"],
    ):
        say(event="open")
        await told.wait()


if __name__ == "__main__":
    asyncio.run(main())
