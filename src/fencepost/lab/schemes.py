"""`fencepost lab schemes`: what each nonce scheme gives, and what each does when something fails; from one real run.

The whole is bounded in time: rates are measured for some seconds each, faults are looked at for some seconds each.
Duplicates that a scheme makes by design are counted like any others.
"""

from __future__ import annotations

import asyncio
import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field

import asyncpg

from fencepost.errors import Unready
from fencepost.lab.scheme_faults import FAULTS, OF_PROCESSES, Outcome, Pace
from fencepost.lab.scheme_load import Rate, measure, measure_bare_lua
from fencepost.lab.scheme_stage import SCHEMES, Stage, new_signer, open_scheme, open_stage
from fencepost.nonce.redis_link import RedisLink

SIGNERS = 100
LIMIT_S = 180.0
QUICK_LIMIT_S = 45.0
LEAST_BATCHED = 10.0  # times one row lock a call, for `leased` and `segments`
LEAST_OF_LUA = 2 / 3  # of the bare script under equal load, for `redis_full`


@dataclass(slots=True)
class Measured:
    hot: Rate
    spread: Rate
    faults: dict[str, Outcome] = field(default_factory=dict)


@dataclass(slots=True)
class Report:
    machine: dict[str, str]
    bare_lua: Rate
    bare_lua_pipelined: Rate
    schemes: dict[str, Measured]

    @property
    def ratios(self) -> Mapping[str, float]:
        """What is to be reached, as ratios within this run."""
        hot = {name: measured.hot.per_s for name, measured in self.schemes.items()}
        return {
            "leased / postgres": round(hot["leased"] / hot["postgres"], 1),
            "segments / postgres": round(hot["segments"] / hot["postgres"], 1),
            "redis_full / bare Lua": round(hot["redis_full"] / self.bare_lua.per_s, 2),
            "redis_full / bare Lua in pipelines": round(hot["redis_full"] / self.bare_lua_pipelined.per_s, 2),
        }

    @property
    def is_fast_enough(self) -> bool:
        ratios = self.ratios
        return (
            ratios["leased / postgres"] >= LEAST_BATCHED
            and ratios["segments / postgres"] >= LEAST_BATCHED
            and ratios["redis_full / bare Lua in pipelines"] >= LEAST_OF_LUA
        )

    def as_json(self) -> dict[str, object]:
        return {**asdict(self), "ratios": dict(self.ratios)}


async def compare(*, quick: bool, report: Callable[[str], None]) -> Report:
    limit_s = QUICK_LIMIT_S if quick else LIMIT_S
    try:
        async with asyncio.timeout(limit_s):
            report("starting PostgreSQL, Redis and a replica")
            async with open_stage() as stage:
                return await _compare(stage, quick=quick, report=report)
    except TimeoutError as error:
        raise Unready(
            f"the comparison did not end within {limit_s:.0f} s: the machine is too busy"
        ) from error


async def _compare(stage: Stage, *, quick: bool, report: Callable[[str], None]) -> Report:
    seconds = 0.3 if quick else 3.0
    pace = (
        Pace(before_s=0.2, after_s=0.8, lease_s=1.0, heard_within_s=0.25)
        if quick
        else Pace(before_s=1.0, after_s=3.0)
    )
    schemes: dict[str, Measured] = {}
    for name in SCHEMES:
        if name == "redis_full":  # side by side with what it is compared with
            report("measuring bare Lua")
            bare = await measure_bare_lua(stage.direct.redis_url, seconds, pipelined=False)
            bare_pipelined = await measure_bare_lua(stage.direct.redis_url, seconds, pipelined=True)
        report(f"measuring {name}")
        async with open_scheme(name, stage.direct, ends_cleanly=False) as opened:
            hot = await measure(opened.port, [new_signer()], seconds)
            spread = await measure(opened.port, [new_signer() for _ in range(SIGNERS)], seconds)
        schemes[name] = Measured(hot, spread)
    for names in _turns(quick=quick):
        report(f"fault: {', '.join(names)}")
        found = await asyncio.gather(*[FAULTS[name](stage, pace) for name in names])
        for name, outcomes in zip(names, found, strict=True):
            for scheme, outcome in outcomes.items():
                schemes[scheme].faults[name] = outcome
    return Report(await _machine(stage), bare, bare_pipelined, schemes)


def _turns(*, quick: bool) -> list[tuple[str, ...]]:
    """One fault after the other; in a hurry, those that leave each other alone at the same time."""
    if not quick:
        return [(name,) for name in FAULTS]
    return [OF_PROCESSES, *[(name,) for name in FAULTS if name not in OF_PROCESSES]]


async def _machine(stage: Stage) -> dict[str, str]:
    connection = await asyncpg.connect(stage.postgres.dsn)
    try:
        server = await connection.fetchval("SELECT current_setting('server_version')")
    finally:
        await connection.close()
    link = RedisLink(stage.redis.url)
    redis = (await link.command("INFO", "server"))["redis_version"]
    await link.close()
    return {
        "cores": str(os.cpu_count()),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "postgresql": server,
        "redis": redis,
    }
