"""The same transfers through a node, through a bare pipeline, and blasted at the same kind of chain with nothing in between."""

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
from fencepost.lab.bench import bare_pipeline
from fencepost.lab.bench.blasting import Receipts, send_all
from fencepost.lab.bench.cpu import apart, cores, family_cpu_s
from fencepost.lab.bench.in_turn import middle
from fencepost.lab.bench.load import batch_bodies, batch_requests, pour
from fencepost.lab.bench.report import Figure
from fencepost.lab.bench.signers import Signers
from fencepost.lab.bench.stage import Stage, require_confirmed, until_ended
from fencepost.lab.bench.throughput import SIGNERS

# Who may use which core while it is measured, by process id: the chain, and all the others.
ShareOut = Callable[[int, Sequence[int]], AbstractContextManager[None]]

CHAIN_ID = 31337
GWEI = 10**9
BLOCK_TIME_S = 0.25


@dataclass(frozen=True, slots=True)
class _Took:
    seconds: float
    cpu_s: float  # of everybody: the chain, who sends, and whatever stands in between


@dataclass(frozen=True, slots=True)
class _Round:
    blasted: _Took
    bare: _Took
    ours: _Took

    def slower(self) -> float:
        return self.ours.seconds / self.blasted.seconds


async def end_to_end(stage: Stage) -> list[Figure]:
    """All on the same cores; and, to see who holds up whom, the chain on one that nobody else uses."""
    count = stage.count(10_000, 2_000)
    shared = await _in_turn(stage, count, _together)
    figures = _figures("end to end on Anvil", shared, count)
    if cores():
        name = "end to end: CPU of all, chain included"
        ours_us, blasted_us = shared.ours.cpu_s / count * 1e6, shared.blasted.cpu_s / count * 1e6
        figures.append(Figure(name, ours_us, "µs a tx", None, False, "blasted, µs", blasted_us))
    if len(cores()) > 1:
        figures += _figures(
            "end to end, Anvil on a core of its own", await _in_turn(stage, count, apart), count
        )
    return figures


def _figures(name: str, measured: _Round, count: int) -> list[Figure]:
    ours, bare, blasted = (count / took.seconds for took in (measured.ours, measured.bare, measured.blasted))
    return [
        Figure(name, ours, "tx/s", 0.85, True, "blasted, tx/s", blasted),
        Figure(f"{name}: a bare pipeline", bare, "tx/s", None, True, "blasted, tx/s", blasted),
    ]


@contextmanager
def _together(_chain: int, _others: Sequence[int]) -> Iterator[None]:
    """Whoever wants a core gets one."""
    yield


async def _in_turn(stage: Stage, count: int, share_out: ShareOut) -> _Round:
    rounds = [
        _Round(
            await _blasted(stage, count, share_out),
            await _bare(stage, count, share_out),
            await _ours(stage, count, share_out),
        )
        for _ in range(stage.count(5, 1))
    ]
    return middle(rounds, _Round.slower)


async def _ours(stage: Stage, count: int, share_out: ShareOut) -> _Took:
    """From the first request to the last end, with the leases taken and the sequences begun before."""
    signers = Signers.fresh(SIGNERS)
    async with stage.anvil(block_time_s=BLOCK_TIME_S) as chain, stage.database() as dsn:
        await fund(chain.rpc_url, signers)
        async with stage.node(dsn, chain.rpc_url, signers.keys) as node:
            await pour(node.url, batch_requests(node.url, signers, SIGNERS, "warm"), 4, 200)
            await until_ended(dsn, within_s=30)
            requests = batch_requests(node.url, signers, count, "e")
            with share_out(chain.pid, [node.process.pid, stage.server.pid]):
                clock = _Clock([chain.pid, node.process.pid, stage.server.pid])
                await pour(node.url, requests, 4, 200)
                await until_ended(dsn, within_s=180)
                took = clock.stop()
            await require_confirmed(dsn, SIGNERS + count)
    return took


async def _bare(stage: Stage, count: int, share_out: ShareOut) -> _Took:
    """From the first request, which it holds already, to the last receipt stored."""
    signers = Signers.fresh(SIGNERS)
    async with stage.anvil(block_time_s=BLOCK_TIME_S) as chain, stage.database() as dsn:
        await fund(chain.rpc_url, signers)
        bodies = [body.decode() for body in batch_bodies(signers, count, "e")]
        order = bare_pipeline.Order(dsn, chain.rpc_url, CHAIN_ID, list(signers.keys), bodies)
        async with bare_process(order) as (process, go):
            with share_out(chain.pid, [process.pid, stage.server.pid]):
                clock = _Clock([chain.pid, process.pid, stage.server.pid])
                await go()
                return clock.stop()


@asynccontextmanager
async def bare_process(
    order: bare_pipeline.Order,
) -> AsyncIterator[tuple[asyncio.subprocess.Process, Callable[[], Awaitable[None]]]]:
    """It is ready; calling what comes with it makes it go, and ends when all is done."""
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
        UnsignedTx(CHAIN_ID, nonce, Call(to=to, value_wei=1), 21_000, Fees(10 * GWEI, GWEI))
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
                    group.create_task(send_all(rpc, signed))
                    group.create_task(Receipts(rpc, len(signed)).fetch())
                return clock.stop()
        finally:
            await rpc.close()
