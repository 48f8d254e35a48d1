"""Nodes at work, in this process and in processes of their own.

`open_fencepost` opens a node here, `start_node` one that can be stopped, killed, or told to die at a named point.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from uuid import uuid4

import pytest_asyncio

from fencepost.facade import Fencepost
from fix_anvil import TestChain
from fix_core import WITHIN_S, Account, OwnChain, eventually

NODE_PROCESS = Path(__file__).parent / "acceptance" / "node_process.py"

# Short enough that a lost node costs a test a second, long enough for a busy machine.
FAST = {
    "lease.duration": "2s",
    "lease.renew_interval": "400ms",
    "lease.skew_allowance": "0s",
    "chains.default.poll_interval": "50ms",
    "confirmations.required": "1",
}


def open_fencepost(
    dsn: str, chain: TestChain, *accounts: Account, options: Mapping[str, str] | None = None
) -> AbstractAsyncContextManager[Fencepost]:
    return Fencepost.open(
        dsn=dsn,
        rpc_url=chain.rpc_url,
        private_keys=[account.key for account in accounts],
        options={"node.id": f"here-{uuid4().hex[:6]}", **FAST, **(options or {})},
    )


async def heads_seen(fencepost: Fencepost, chain: OwnChain) -> None:
    """Until the node has seen the newest block, and its lanes have done what follows from it."""
    head = int(await chain.call("eth_blockNumber"), 16)
    node = fencepost.running.node

    async def is_seen() -> bool:
        quiet = not (node.lanes._stepping or node.lanes._queued)
        return quiet and node.watches[chain.chain_id].view.head == head

    await eventually(is_seen)


@dataclass(frozen=True, slots=True)
class Failpoint:
    """What befalls a node process around the n-th call of a port's method.

    `at` names them: sign, send, receipts, renew, or commit:EVENT for a commit whose journal entries have that event.
    `what` is kill (-9), stop (until SIGCONT), or lose_answer (only `after`: the effect stays, an error comes back).
    """

    at: str
    when: str = "before"
    what: str = "kill"
    nth: int = 1


@dataclass(slots=True)
class NodeProcess:
    process: subprocess.Popen[bytes]
    log: Path

    async def ended(self, within_s: float = WITHIN_S) -> int:
        async def is_over() -> bool:
            return self.process.poll() is not None

        await eventually(is_over, within_s=within_s, why=f"the node lives on: {self.said()[-2000:]}")
        return int(self.process.returncode)

    async def stopped(self, within_s: float = WITHIN_S) -> None:
        """Until the process has been stopped by a signal."""

        async def is_stopped() -> bool:
            state = self._process_state()
            assert state not in "ZX", self.said()[-2000:]
            return state == "T"

        await eventually(is_stopped, within_s=within_s, why=f"the node never stopped: {self.said()[-2000:]}")

    def _process_state(self) -> str:
        return Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()[0]

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def events(self) -> list[dict[str, str]]:
        """What the node has noted so far, each with its time (`at`)."""
        # The last line may not be whole yet.
        lines = self.said().rpartition("\n")[0].splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    async def noted(self, **fields: str) -> None:
        """Until the node has noted an event with these fields."""

        async def has_noted() -> bool:
            return any(fields.items() <= event.items() for event in self.events())

        await eventually(has_noted, why=f"{fields} is not in {self.said()[-2000:]}")

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(timeout=10)


StartNode = Callable[..., NodeProcess]


@pytest_asyncio.fixture
async def start_node(dsn: str, tmp_path: Path) -> AsyncIterator[StartNode]:
    """Starts `node_process.py`; whatever still runs at the end of the test is killed."""
    started: list[NodeProcess] = []

    def start(
        chain: TestChain,
        *accounts: Account,
        name: str = "there",
        options: Mapping[str, str] | None = None,
        failpoints: Sequence[Failpoint] = (),
    ) -> NodeProcess:
        orders = {
            "dsn": dsn,
            "rpc_url": chain.rpc_url,
            "private_keys": [account.key for account in accounts],
            "options": {"node.id": name, **FAST, **(options or {})},
            "failpoints": [asdict(failpoint) for failpoint in failpoints],
        }
        log = tmp_path / f"{name}-{len(started)}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, str(NODE_PROCESS)], stdin=subprocess.PIPE, stdout=out, stderr=out
            )
        assert process.stdin is not None
        process.stdin.write(json.dumps(orders).encode())
        process.stdin.close()
        started.append(NodeProcess(process, log))
        return started[-1]

    try:
        yield start
    finally:
        for node in started:
            node.end()
