"""Measure the same transfers through a node, through a bare pipeline, and sent directly to the same kind of chain."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass

import msgspec

from fencepost.adapters.evm.rpc import JsonRpc
from fencepost.adapters.signers.local import LocalKeys
from fencepost.domain.ids import Address
from fencepost.domain.transaction import Call, Fees, SignedTx, UnsignedTx
from fencepost.errors import Unready
from lab.bench import bare_pipeline
from lab.bench.bare_sender import OrderedSender, Receipts
from lab.bench.cpu import cores, family_cpu_s, isolate_core
from lab.bench.interleaved import median_round
from lab.bench.load import batch_bodies, batch_requests, send_all
from lab.bench.report import Figure
from lab.bench.signers import Signers
from lab.bench.testbed import Testbed, require_confirmed, wait_until_ended
from lab.bench.throughput import SIGNERS

# Assigns cores by process id while a figure is measured: the chain's, and all others.
CoreAssignment = Callable[[int, Sequence[int]], AbstractContextManager[None]]

CHAIN_ID = 31337
GWEI = 10**9
BLOCK_TIME_S = 0.25


@dataclass(frozen=True, slots=True)
class _Took:
    seconds: float
    cpu_s: float  # of all processes: the chain, the sender and what is in between


@dataclass(frozen=True, slots=True)
class _Round:
    direct: _Took
    bare: _Took
    ours: _Took

    def slower(self) -> float:
        return self.ours.seconds / self.direct.seconds

    def rates(self, count: int) -> tuple[float, float, float]:
        """Return the transactions per second of the node, the bare pipeline and the direct sender."""
        return count / self.ours.seconds, count / self.bare.seconds, count / self.direct.seconds


async def end_to_end(testbed: Testbed) -> list[Figure]:
    """Measure with all processes on the same cores; then with the chain on a core of its own, if there are two.

    On shared cores the chain takes most of the CPU, so a node is judged by a bare pipeline that pays for the same chain.
    """
    count = testbed.count(10_000, 2_000)
    shared = await _interleave(testbed, count, _share_cores)
    figures = _shared_figures("end to end on Anvil", shared, count)
    if cores():
        name = "end to end: CPU of all, chain included"
        ours_us, direct_us = shared.ours.cpu_s / count * 1e6, shared.direct.cpu_s / count * 1e6
        figures.append(Figure(name, ours_us, "µs a tx", None, False, "sent directly, µs", direct_us))
    if len(cores()) > 1:
        figures += _isolated_figures(
            "end to end, Anvil on a core of its own", await _interleave(testbed, count, isolate_core), count
        )
    return figures


def _shared_figures(name: str, measured: _Round, count: int) -> list[Figure]:
    ours, bare, direct = measured.rates(count)
    return [
        Figure(name, ours, "tx/s", 0.85, True, "a bare pipeline, tx/s", bare),
        Figure(f"{name}: of what is sent directly", ours, "tx/s", None, True, "sent directly, tx/s", direct),
    ]


def _isolated_figures(name: str, measured: _Round, count: int) -> list[Figure]:
    ours, bare, direct = measured.rates(count)
    return [
        Figure(name, ours, "tx/s", 0.85, True, "sent directly, tx/s", direct),
        Figure(f"{name}: a bare pipeline", bare, "tx/s", None, True, "sent directly, tx/s", direct),
    ]


@contextmanager
def _share_cores(_chain: int, _others: Sequence[int]) -> Iterator[None]:
    """Leave all processes on all cores."""
    yield


async def _interleave(testbed: Testbed, count: int, assign_cores: CoreAssignment) -> _Round:
    rounds = [
        _Round(
            await _direct(testbed, count, assign_cores),
            await _bare(testbed, count, assign_cores),
            await _ours(testbed, count, assign_cores),
        )
        for _ in range(testbed.count(5, 1))
    ]
    return median_round(rounds, _Round.slower)


async def _ours(testbed: Testbed, count: int, assign_cores: CoreAssignment) -> _Took:
    """Measure from the first request to the last end; leases and sequences are started before."""
    signers = Signers.fresh(SIGNERS)
    async with testbed.anvil(block_time_s=BLOCK_TIME_S) as chain, testbed.database() as dsn:
        await fund(chain.rpc_url, signers)
        async with testbed.node(dsn, chain.rpc_url, signers.keys) as node:
            await send_all(node.url, batch_requests(node.url, signers, SIGNERS, "warm"), 4, 200)
            await wait_until_ended(dsn, within_s=30)
            requests = batch_requests(node.url, signers, count, "e")
            with assign_cores(chain.pid, [node.process.pid, testbed.server.pid]):
                clock = _Clock([chain.pid, node.process.pid, testbed.server.pid])
                await send_all(node.url, requests, 4, 200)
                await wait_until_ended(dsn, within_s=180)
                took = clock.stop()
            await require_confirmed(dsn, SIGNERS + count)
    return took


async def _bare(testbed: Testbed, count: int, assign_cores: CoreAssignment) -> _Took:
    """Measure from the first request, which the process already holds, to the last stored receipt."""
    signers = Signers.fresh(SIGNERS)
    async with testbed.anvil(block_time_s=BLOCK_TIME_S) as chain, testbed.database() as dsn:
        await fund(chain.rpc_url, signers)
        bodies = [body.decode() for body in batch_bodies(signers, count, "e")]
        order = bare_pipeline.Order(dsn, chain.rpc_url, CHAIN_ID, list(signers.keys), bodies)
        async with bare_process(order) as (process, go):
            with assign_cores(chain.pid, [process.pid, testbed.server.pid]):
                clock = _Clock([chain.pid, process.pid, testbed.server.pid])
                await go()
                return clock.stop()


@asynccontextmanager
async def bare_process(
    order: bare_pipeline.Order,
) -> AsyncIterator[tuple[asyncio.subprocess.Process, Callable[[], Awaitable[None]]]]:
    """Start the bare pipeline; yield it when it is ready, with a function that runs it to its end."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        bare_pipeline.MODULE,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None  # noqa: S101 - it was asked for
    assert process.stdout is not None  # noqa: S101 - it was asked for
    to_it, from_it = process.stdin, process.stdout

    async def tell(line: bytes, awaited: str) -> None:
        to_it.write(line + b"\n")
        await to_it.drain()
        said = (await from_it.readline()).decode().strip()
        if said != awaited:
            raise Unready(f"the bare pipeline said {said!r} instead of {awaited!r}")

    try:
        await tell(msgspec.json.encode(order), bare_pipeline.READY)
        yield process, lambda: tell(b"", bare_pipeline.DONE)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


class _Clock:
    """Measure elapsed time, and the CPU time of processes with their children and of this process."""

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
    """Give every signer enough ether."""
    rpc = JsonRpc(rpc_url)
    try:
        await rpc.batch([("anvil_setBalance", [address, hex(10**24)]) for address in signers.addresses])
    finally:
        await rpc.close()


async def presigned(signers: Signers, count: int) -> list[SignedTx]:
    """Sign `count` transfers of each signer, in nonce order."""
    keys = LocalKeys.from_hex(signers.keys)
    to = Address(signers.addresses[0])
    wanted = [
        UnsignedTx(CHAIN_ID, nonce, Call(to=to, value_wei=1), 21_000, Fees(10 * GWEI, GWEI))
        for nonce in range(count)
    ]
    return [signed for address in keys.addresses() for signed in await keys.sign(address, wanted)]


async def _direct(testbed: Testbed, count: int, assign_cores: CoreAssignment) -> _Took:
    """Measure from the first send to the last receipt; everything is signed before."""
    signers = Signers.fresh(SIGNERS)
    signed = await presigned(signers, count // SIGNERS)
    async with testbed.anvil(block_time_s=BLOCK_TIME_S) as chain:
        await fund(chain.rpc_url, signers)
        rpc = JsonRpc(chain.rpc_url, timeout_s=60)
        sender = OrderedSender(rpc)
        for index, tx in enumerate(signed):
            sender.submit(signers.addresses[index // (count // SIGNERS)], tx)
        sender.close()
        try:
            with assign_cores(chain.pid, []):
                clock = _Clock([chain.pid])
                async with asyncio.TaskGroup() as group:
                    group.create_task(sender.run())
                    group.create_task(Receipts(rpc, len(signed)).fetch())
                return clock.stop()
        finally:
            await rpc.close()
