"""The same transfers through a node, and blasted at the same kind of chain with nothing in between."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import TypeVar

from fencepost.adapters.evm.rpc import JsonRpc
from fencepost.adapters.signers.local import LocalKeys
from fencepost.domain.ids import Address
from fencepost.domain.transaction import Call, Fees, SignedTx, UnsignedTx
from fencepost.errors import Unready
from fencepost.lab.bench.cpu import apart, cores, family_cpu_s
from fencepost.lab.bench.load import batch_requests, pour
from fencepost.lab.bench.report import Figure
from fencepost.lab.bench.signers import Signers
from fencepost.lab.bench.stage import Stage, require_confirmed, until_ended
from fencepost.lab.bench.throughput import SIGNERS

T = TypeVar("T")

# Who may use which core while it is measured, by process id: the chain, and all the others.
ShareOut = Callable[[int, Sequence[int]], AbstractContextManager[None]]

GWEI = 10**9
BLOCK_TIME_S = 0.25
_PART = 100
_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class _Took:
    seconds: float
    cpu_s: float  # of everybody: the chain, who sends, and whatever stands in between


async def end_to_end(stage: Stage) -> list[Figure]:
    """All on the same cores; and, to see who holds up whom, the chain on one that nobody else uses."""
    count = stage.count(10_000, 2_000)
    ours, blasted = await _in_turn(stage, count, _together)
    figures = [_rates("end to end on Anvil", 0.85, count / ours.seconds, count / blasted.seconds)]
    if cores():
        name = "end to end: CPU of all, chain included"
        ours_us, blasted_us = ours.cpu_s / count * 1e6, blasted.cpu_s / count * 1e6
        figures.append(Figure(name, ours_us, "µs a tx", None, False, "blasted, µs", blasted_us))
    if len(cores()) > 1:
        ours, blasted = await _in_turn(stage, count, apart)
        name = "end to end, Anvil on a core of its own"
        figures.append(_rates(name, None, count / ours.seconds, count / blasted.seconds))
    return figures


def _rates(name: str, target: float | None, ours: float, blasted: float) -> Figure:
    return Figure(name, ours, "tx/s", target, True, "blasted, tx/s", blasted)


@contextmanager
def _together(_chain: int, _others: Sequence[int]) -> Iterator[None]:
    """Whoever wants a core gets one."""
    yield


async def _in_turn(stage: Stage, count: int, share_out: ShareOut) -> tuple[_Took, _Took]:
    """Ours, and blasted: medians of three runs of each."""
    ours, blasted = [], []
    for _ in range(stage.count(3, 1)):
        blasted.append(await _blasted(stage, count, share_out))
        ours.append(await _ours(stage, count, share_out))
    return _median(ours), _median(blasted)


def _median(runs: Sequence[_Took]) -> _Took:
    return _Took(median(run.seconds for run in runs), median(run.cpu_s for run in runs))


async def _ours(stage: Stage, count: int, share_out: ShareOut) -> _Took:
    """From the first request to the last end."""
    signers = Signers.fresh(SIGNERS)
    async with stage.anvil(block_time_s=BLOCK_TIME_S) as chain, stage.database() as dsn:
        await fund(chain.rpc_url, signers)
        async with stage.node(dsn, chain.rpc_url, signers.keys) as node:
            requests = batch_requests(node.url, signers, count, "e")
            with share_out(chain.pid, [node.process.pid, stage.server.pid]):
                clock = _Clock([chain.pid, node.process.pid, stage.server.pid])
                await pour(node.url, requests, 4, 200)
                await until_ended(dsn, within_s=180)
                took = clock.stop()
            await require_confirmed(dsn, count)
    return took


class _Clock:
    """Of the wall, and of processes with their families and ourselves."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = pids if cores() else ()
        self._cpu_s = self._cpu_now_s()
        self._began_s = time.perf_counter()

    def stop(self) -> _Took:
        seconds = time.perf_counter() - self._began_s
        return _Took(seconds, self._cpu_now_s() - self._cpu_s)

    def _cpu_now_s(self) -> float:
        return time.process_time() + sum(family_cpu_s(pid) for pid in self._pids)


async def fund(rpc_url: str, signers: Signers) -> None:
    rpc = JsonRpc(rpc_url)
    try:
        await rpc.batch([("anvil_setBalance", [address, hex(10**24)]) for address in signers.addresses])
    finally:
        await rpc.close()


async def presigned(signers: Signers, count: int) -> list[SignedTx]:
    """So many transfers of each, in the order of nonces."""
    keys = LocalKeys.from_hex(signers.keys)
    to = Address(signers.addresses[0])
    wanted = [
        UnsignedTx(31337, nonce, Call(to=to, value_wei=1), 21_000, Fees(10 * GWEI, GWEI))
        for nonce in range(count)
    ]
    return [signed for address in keys.addresses() for signed in await keys.sign(address, wanted)]


async def _blasted(stage: Stage, count: int, share_out: ShareOut) -> _Took:
    """From the first send to the last receipt. Everything is signed before."""
    signers = Signers.fresh(SIGNERS)
    signed = await presigned(signers, count // SIGNERS)
    async with stage.anvil(block_time_s=BLOCK_TIME_S) as chain:
        await fund(chain.rpc_url, signers)
        rpc = JsonRpc(chain.rpc_url, timeout_s=60)
        try:
            with share_out(chain.pid, []):
                clock = _Clock([chain.pid])
                async with asyncio.TaskGroup() as group:
                    group.create_task(_send_all(rpc, signed))
                    group.create_task(_Receipts(rpc, len(signed)).fetch())
                return clock.stop()
        finally:
            await rpc.close()


async def _send_all(rpc: JsonRpc, signed: Sequence[SignedTx]) -> None:
    """In batches of 100, four at a time: the fastest that Anvil takes."""
    gate = asyncio.Semaphore(_AT_ONCE)

    async def send(part: Sequence[SignedTx]) -> None:
        async with gate:
            await rpc.batch([("eth_sendRawTransaction", ["0x" + tx.raw.hex()]) for tx in part])

    await asyncio.gather(*(send(part) for part in _parts(signed)))


@dataclass(slots=True)
class _Receipts:
    """The cheapest way to them: blocks tell which hashes are in, and only those are asked for, four batches at a time.

    (`eth_getBlockReceipts` costs Anvil more a receipt the larger the block is.)
    """

    rpc: JsonRpc
    wanted: int
    _found: int = 0
    _gate: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_AT_ONCE))

    async def fetch(self) -> None:
        number = 1
        async with asyncio.TaskGroup() as group:
            seen = 0
            while seen < self.wanted:
                block = await self.rpc.call("eth_getBlockByNumber", [hex(number), False])
                if block is None:
                    await asyncio.sleep(0.02)
                    continue
                number += 1
                seen += len(block["transactions"])
                for part in _parts(block["transactions"]):
                    group.create_task(self._fetch(part))
        if self._found != self.wanted:
            raise Unready(f"Anvil gave {self._found} of {self.wanted} receipts")

    async def _fetch(self, hashes: Sequence[str]) -> None:
        async with self._gate:
            answers = await self.rpc.batch([("eth_getTransactionReceipt", [tx_hash]) for tx_hash in hashes])
        self._found += sum(isinstance(answer, dict) for answer in answers)


def _parts(items: Sequence[T]) -> list[Sequence[T]]:
    return [items[start : start + _PART] for start in range(0, len(items), _PART)]
