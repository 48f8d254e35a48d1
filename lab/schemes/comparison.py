"""Compare the nonce schemes in one real run: their rates, and their behaviour under faults.

The run is bounded in time. Duplicates that a scheme makes by design are counted like any others.
"""

from __future__ import annotations

import asyncio
import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field

import asyncpg

from fencepost.errors import Unready
from fencepost.nonce.redis_client import RedisClient
from lab.schemes.faults import FAULTS, PROCESS_FAULTS, Outcome, Pace
from lab.schemes.load import Rate, measure, measure_bare_lua
from lab.schemes.testbed import SCHEMES, Testbed, new_signer, open_scheme, open_testbed

SIGNERS = 100
LIMIT_S = 180.0
QUICK_LIMIT_S = 45.0
MIN_BATCHED_RATIO = 10.0  # relative to one row lock per call, for `leased` and `segments`
MIN_LUA_RATIO = 2 / 3  # relative to the bare script under equal load, for `redis_full`


@dataclass(slots=True)
class Measured:
    """The results of one scheme."""

    hot: Rate
    spread: Rate
    faults: dict[str, Outcome] = field(default_factory=dict)


@dataclass(slots=True)
class Report:
    """The results of all schemes."""

    machine: dict[str, str]
    bare_lua: Rate
    bare_lua_pipelined: Rate
    schemes: dict[str, Measured]

    @property
    def ratios(self) -> Mapping[str, float]:
        """Return the ratios that have a target, within this run."""
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
            ratios["leased / postgres"] >= MIN_BATCHED_RATIO
            and ratios["segments / postgres"] >= MIN_BATCHED_RATIO
            and ratios["redis_full / bare Lua in pipelines"] >= MIN_LUA_RATIO
        )

    def as_json(self) -> dict[str, object]:
        return {**asdict(self), "ratios": dict(self.ratios)}


async def compare(*, quick: bool, report: Callable[[str], None]) -> Report:
    """Run the comparison."""
    limit_s = QUICK_LIMIT_S if quick else LIMIT_S
    try:
        async with asyncio.timeout(limit_s):
            report("starting PostgreSQL, Redis and a replica")
            async with open_testbed() as testbed:
                return await _compare(testbed, quick=quick, report=report)
    except TimeoutError as error:
        raise Unready(
            f"the comparison did not end within {limit_s:.0f} s: the machine is too busy"
        ) from error


async def _compare(testbed: Testbed, *, quick: bool, report: Callable[[str], None]) -> Report:
    seconds = 0.3 if quick else 3.0
    pace = (
        Pace(before_s=0.2, after_s=0.8, lease_s=1.0, max_status_age_s=0.25)
        if quick
        else Pace(before_s=1.0, after_s=3.0)
    )
    schemes: dict[str, Measured] = {}
    for name in SCHEMES:
        if name == "redis_full":  # next to its baseline
            report("measuring bare Lua")
            bare = await measure_bare_lua(testbed.direct.redis_url, seconds, pipelined=False)
            bare_pipelined = await measure_bare_lua(testbed.direct.redis_url, seconds, pipelined=True)
        report(f"measuring {name}")
        async with open_scheme(name, testbed.direct, ends_cleanly=False) as opened:
            hot = await measure(opened.port, [new_signer()], seconds)
            spread = await measure(opened.port, [new_signer() for _ in range(SIGNERS)], seconds)
        schemes[name] = Measured(hot, spread)
    for names in _fault_groups(quick=quick):
        report(f"fault: {', '.join(names)}")
        found = await asyncio.gather(*[FAULTS[name](testbed, pace) for name in names])
        for name, outcomes in zip(names, found, strict=True):
            for scheme, outcome in outcomes.items():
                schemes[scheme].faults[name] = outcome
    return Report(await _machine(testbed), bare, bare_pipelined, schemes)


def _fault_groups(*, quick: bool) -> list[tuple[str, ...]]:
    """Return the faults one by one; in a quick run, those that do not affect each other together."""
    if not quick:
        return [(name,) for name in FAULTS]
    return [PROCESS_FAULTS, *[(name,) for name in FAULTS if name not in PROCESS_FAULTS]]


async def _machine(testbed: Testbed) -> dict[str, str]:
    connection = await asyncpg.connect(testbed.postgres.dsn)
    try:
        server = await connection.fetchval("SELECT current_setting('server_version')")
    finally:
        await connection.close()
    link = RedisClient(testbed.redis.url)
    redis = (await link.command("INFO", "server"))["redis_version"]
    await link.close()
    return {
        "cores": str(os.cpu_count()),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "postgresql": server,
        "redis": redis,
    }
