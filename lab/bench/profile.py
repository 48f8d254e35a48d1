"""Profile a transaction's time by stage and a node's CPU by package, in two runs against a stub chain.

Time is measured at 100 transactions per second, where no queue builds up; CPU at the maximum rate.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping

import msgspec

from fencepost.errors import Unready
from lab.bench.cpu import cpu_s
from lab.bench.load import Response, batch_requests, require_status, send_all, send_at_rate, single_requests
from lab.bench.profiled_node import MODULE, NodeProfile, profile_environ
from lab.bench.signers import Signers
from lab.bench.stack_sampler import package_of
from lab.bench.testbed import Testbed, open_testbed, require_confirmed, wait_until_ended
from lab.bench.tx_stages import STAGES
from lab.machine import machine

RATE = 100
_LEAST_SHARE = 0.004  # of the CPU: narrower branches can't be read in a chart


class StageTime(msgspec.Struct, frozen=True):
    stage: str
    p50_ms: float
    mean_ms: float


class PackageCost(msgspec.Struct, frozen=True):
    package: str
    us: float  # CPU per transaction
    share: float


class Stack(msgspec.Struct, frozen=True):
    frames: list[str]
    share: float


class Profile(msgspec.Struct, frozen=True):
    machine: Mapping[str, str]
    rate: int
    stages: list[StageTime]
    transactions: int  # of the run whose CPU was sampled
    node_us: float  # CPU per transaction, sampling included
    packages: list[PackageCost]
    stacks: list[Stack]


async def measure(*, quick: bool) -> Profile:
    """Run both profiles."""
    async with open_testbed(quick=quick) as testbed:
        facts = machine(postgresql=await testbed.version(), anvil=await testbed.anvil_version())
        stages = await _stages(testbed)
        count, node_us, seen = await _cpu(testbed)
    samples = sum(hits for _, hits in seen.stacks)
    if not samples:
        raise Unready("the node was not sampled")
    return Profile(
        machine=facts,
        rate=RATE,
        stages=stages,
        transactions=count,
        node_us=round(node_us, 1),
        packages=_packages(seen, samples, node_us),
        stacks=cut_stacks(seen, samples),
    )


async def _stages(testbed: Testbed) -> list[StageTime]:
    count = testbed.count(1_000, 300)
    signers = Signers.fresh(20)
    file = testbed.folder / "stages.json"
    async with (
        testbed.stub() as rpc_url,
        testbed.database() as dsn,
        testbed.node(dsn, rpc_url, signers.keys, module=MODULE, more_environ=profile_environ(file)) as node,
    ):
        await send_all(node.url, single_requests(node.url, signers, 20, "warm"), 4, 202)
        await wait_until_ended(dsn, within_s=30)
        answers = await send_at_rate(node.url, single_requests(node.url, signers, count, "p"), rate=RATE)
        require_status(answers, 202)
        await wait_until_ended(dsn, within_s=60)
        await require_confirmed(dsn, count + 20)
    finished = msgspec.json.decode(file.read_bytes(), type=NodeProfile).stages_s[20:]
    if not finished:
        raise Unready("no transaction was seen on its whole way")
    by_stage = list(zip(*finished, strict=True))
    return [
        _http(answers, by_stage[0]),
        *(_stage_time(name, seconds) for name, seconds in zip(STAGES, by_stage, strict=True)),
    ]


def _http(answers: list[Response], accepting_s: tuple[float, ...]) -> StageTime:
    """Return the time of a response without the commit: HTTP in both directions."""
    whole_s = [answer.answered_s - answer.sent_s for answer in answers]
    return StageTime(
        "HTTP",
        round(max(0.0, statistics.median(whole_s) - statistics.median(accepting_s)) * 1000, 3),
        round(max(0.0, statistics.fmean(whole_s) - statistics.fmean(accepting_s)) * 1000, 3),
    )


def _stage_time(name: str, seconds: tuple[float, ...]) -> StageTime:
    return StageTime(
        name, round(statistics.median(seconds) * 1000, 3), round(statistics.fmean(seconds) * 1000, 3)
    )


async def _cpu(testbed: Testbed) -> tuple[int, float, NodeProfile]:
    count = testbed.count(20_000, 6_000)
    signers = Signers.fresh(50)
    file = testbed.folder / "cpu.json"
    async with (
        testbed.stub() as rpc_url,
        testbed.database() as dsn,
        testbed.node(dsn, rpc_url, signers.keys, module=MODULE, more_environ=profile_environ(file)) as node,
    ):
        requests = batch_requests(node.url, signers, count, "c")
        before_s = cpu_s(node.process.pid)
        await send_all(node.url, requests, 4, 200)
        await wait_until_ended(dsn, within_s=120)
        spent_s = cpu_s(node.process.pid) - before_s
        await require_confirmed(dsn, count)
    return count, spent_s / count * 1e6, msgspec.json.decode(file.read_bytes(), type=NodeProfile)


def _packages(seen: NodeProfile, samples: int, node_us: float) -> list[PackageCost]:
    hits: Counter[str] = Counter()
    for frames, count in seen.stacks:
        hits[package_of(frames[-1])] += count
    return [
        PackageCost(package, round(count / samples * node_us, 1), round(count / samples, 4))
        for package, count in hits.most_common()
        if count / samples >= _LEAST_SHARE
    ]


def cut_stacks(seen: NodeProfile, samples: int) -> list[Stack]:
    """Cut stacks where a branch is too narrow to draw; the function above gets its share."""
    weights: Counter[tuple[str, ...]] = Counter()
    for frames, count in seen.stacks:
        for depth in range(1, len(frames) + 1):
            weights[frames[:depth]] += count
    kept: Counter[tuple[str, ...]] = Counter()
    for frames, count in seen.stacks:
        whole = frames
        while len(whole) > 1 and weights[whole] / samples < _LEAST_SHARE:
            whole = whole[:-1]
        kept[whole] += count
    return [Stack(list(frames), round(count / samples, 4)) for frames, count in sorted(kept.items())]
