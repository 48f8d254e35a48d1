"""Where a transaction's time goes, and where the node's CPU goes: two runs against a chain that costs nothing.

Time is measured at a hundred transactions a second, where nobody waits for anybody; CPU at the ceiling.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping

import msgspec

from fencepost.errors import Unready
from fencepost.lab.bench.cpu import cpu_s
from fencepost.lab.bench.load import Answer, batch_requests, pace, pour, require, single_requests
from fencepost.lab.bench.profiled_node import MODULE, Seen, watched
from fencepost.lab.bench.sampling import package_of
from fencepost.lab.bench.signers import Signers
from fencepost.lab.bench.stage import Stage, open_stage, require_confirmed, until_ended
from fencepost.lab.bench.stages import STAGES
from fencepost.lab.machine import machine

RATE = 100
_LEAST_SHARE = 0.004  # of the CPU: narrower ones can't be read in a picture


class StageTime(msgspec.Struct, frozen=True):
    stage: str
    p50_ms: float
    mean_ms: float


class PackageCost(msgspec.Struct, frozen=True):
    package: str
    us: float  # CPU a transaction
    share: float


class Stack(msgspec.Struct, frozen=True):
    frames: list[str]
    share: float


class Profile(msgspec.Struct, frozen=True):
    machine: Mapping[str, str]
    rate: int
    stages: list[StageTime]
    transactions: int  # of the run whose CPU was sampled
    node_us: float  # CPU a transaction, sampling included
    packages: list[PackageCost]
    stacks: list[Stack]


async def measure(*, quick: bool) -> Profile:
    async with open_stage(quick=quick) as stage:
        facts = machine(postgresql=await stage.version(), anvil=await stage.anvil_version())
        stages = await _stages(stage)
        count, node_us, seen = await _cpu(stage)
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


async def _stages(stage: Stage) -> list[StageTime]:
    count = stage.count(1_000, 300)
    signers = Signers.fresh(20)
    file = stage.folder / "stages.json"
    async with (
        stage.stub() as rpc_url,
        stage.database() as dsn,
        stage.node(dsn, rpc_url, signers.keys, module=MODULE, more_environ=watched(file)) as node,
    ):
        await pour(node.url, single_requests(node.url, signers, 20, "warm"), 4, 202)
        await until_ended(dsn, within_s=30)
        answers = await pace(node.url, single_requests(node.url, signers, count, "p"), rate=RATE)
        require(answers, 202)
        await until_ended(dsn, within_s=60)
        await require_confirmed(dsn, count + 20)
    finished = msgspec.json.decode(file.read_bytes(), type=Seen).stages_s[20:]
    if not finished:
        raise Unready("no transaction was seen on its whole way")
    by_stage = list(zip(*finished, strict=True))
    return [
        _http(answers, by_stage[0]),
        *(_stage_time(name, seconds) for name, seconds in zip(STAGES, by_stage, strict=True)),
    ]


def _http(answers: list[Answer], accepting_s: tuple[float, ...]) -> StageTime:
    """What a client waits for besides the commit, there and back."""
    whole_s = [answer.answered_s - answer.asked_s for answer in answers]
    return StageTime(
        "HTTP",
        round(max(0.0, statistics.median(whole_s) - statistics.median(accepting_s)) * 1000, 3),
        round(max(0.0, statistics.fmean(whole_s) - statistics.fmean(accepting_s)) * 1000, 3),
    )


def _stage_time(name: str, seconds: tuple[float, ...]) -> StageTime:
    return StageTime(
        name, round(statistics.median(seconds) * 1000, 3), round(statistics.fmean(seconds) * 1000, 3)
    )


async def _cpu(stage: Stage) -> tuple[int, float, Seen]:
    count = stage.count(20_000, 6_000)
    signers = Signers.fresh(50)
    file = stage.folder / "cpu.json"
    async with (
        stage.stub() as rpc_url,
        stage.database() as dsn,
        stage.node(dsn, rpc_url, signers.keys, module=MODULE, more_environ=watched(file)) as node,
    ):
        requests = batch_requests(node.url, signers, count, "c")
        before_s = cpu_s(node.process.pid)
        await pour(node.url, requests, 4, 200)
        await until_ended(dsn, within_s=120)
        spent_s = cpu_s(node.process.pid) - before_s
        await require_confirmed(dsn, count)
    return count, spent_s / count * 1e6, msgspec.json.decode(file.read_bytes(), type=Seen)


def _packages(seen: Seen, samples: int, node_us: float) -> list[PackageCost]:
    hits: Counter[str] = Counter()
    for frames, count in seen.stacks:
        hits[package_of(frames[-1])] += count
    return [
        PackageCost(package, round(count / samples * node_us, 1), round(count / samples, 4))
        for package, count in hits.most_common()
        if count / samples >= _LEAST_SHARE
    ]


def cut_stacks(seen: Seen, samples: int) -> list[Stack]:
    """Cut where a branch gets too narrow: what is below counts for the function above it."""
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
