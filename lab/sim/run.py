"""Run a plan, shrink a failing one, and describe what happened in it."""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from fencepost.domain.states import State
from fencepost.domain.transaction_state import Kind
from fencepost.errors import FencepostError
from lab.checker.invariants import Violation
from lab.sim.end_checks import find_violations
from lab.sim.loop import Runaway
from lab.sim.plan import Plan, make_plan
from lab.sim.world import World

MAX_SHRINKS = 150
MAX_STORY_LINES = 80


@dataclass(frozen=True, slots=True)
class Outcome:
    plan: Plan
    violations: tuple[Violation, ...]
    simulated_s: float
    faults: Counter[str]
    requests: int
    confirmed: int
    trace: tuple[str, ...] = field(repr=False, default=())

    @property
    def seed(self) -> int:
        return self.plan.seed

    @property
    def digest(self) -> str:
        return hashlib.sha256("\n".join(self.trace).encode()).hexdigest()


def run_seed(seed: int, *, with_trace: bool = False) -> Outcome:
    return run_plan(make_plan(seed), with_trace=with_trace)


def run_plan(plan: Plan, *, with_trace: bool = False) -> Outcome:
    world = World(plan)
    began_s = world.loop.time()
    with _catch_logged_errors(world):
        try:
            world.loop.run(world.play())
        except Runaway as error:
            world.recorder.add_violation(14, f"it does not end: {error}", "the whole run")
    violations = find_violations(world)
    asked = [tx for tx in world.database.txs.values() if tx.kind is not Kind.FILLER]
    states = Counter(tx.state for tx in asked)
    return Outcome(
        plan=plan,
        violations=tuple(violations),
        simulated_s=world.loop.time() - began_s,
        faults=world.recorder.counts,
        requests=len(asked),
        confirmed=states[State.CONFIRMED],
        trace=tuple(_line(began_s, entry) for entry in world.recorder.trace) if with_trace else (),
    )


def _line(began_s: float, entry: tuple[object, ...]) -> str:
    at_s, who, *rest = entry
    assert isinstance(at_s, float)  # noqa: S101 - the recorder put it there
    return f"{at_s - began_s:10.4f} {who!s:<8} {' '.join(map(str, rest))}"


class _ErrorLogHandler(logging.Handler):
    """Report as violations the errors that the program's loops log, unless a fault caused them."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.ERROR)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, FencepostError | OSError):
            self._world.recorder.add_violation(14, f"{type(error).__name__}: {error}", record.getMessage())


@contextmanager
def _catch_logged_errors(world: World) -> Iterator[None]:
    logger = logging.getLogger("fencepost")
    level, propagate = logger.level, logger.propagate
    handler = _ErrorLogHandler(world)
    logger.addHandler(handler)
    logger.setLevel(logging.ERROR)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate


# ---- shrinking


def shrink(plan: Plan, *, most_runs: int = MAX_SHRINKS) -> Plan:
    """Remove faults and requests that the failure does not need, in a bounded number of runs.

    The shrunk plan breaks at least one of the invariants that the original broke.
    """
    broken = _broken(plan)
    if not broken:
        return plan
    runs = 1
    for part in (len(plan.faults), *(1 << n for n in range(6, -1, -1))):
        start = 0
        while part > 0 and start < len(plan.faults) and runs < most_runs:
            fewer = replace(plan, faults=plan.faults[:start] + plan.faults[start + part :])
            runs += 1
            if _broken(fewer) & broken:
                plan = fewer
            else:
                start += part
    at = 0
    while at < len(plan.requests) and runs < most_runs:
        fewer = replace(plan, requests=plan.requests[:at] + plan.requests[at + 1 :])
        runs += 1
        if _broken(fewer) & broken:
            plan = fewer
        else:
            at += 1
    return plan


def _broken(plan: Plan) -> set[int]:
    return {violation.invariant for violation in run_plan(plan).violations}


def story(plan: Plan) -> list[str]:
    """Describe a run for a reader: its faults, its events and its violations, in a bounded number of lines."""
    outcome = run_plan(plan, with_trace=True)
    setup = plan.setup
    mode = f"{'strict' if setup.strict else 'pipelined'}, depth {setup.required}"
    lines = [
        f"seed {plan.seed}: {setup.nodes} nodes, {setup.signers} signers, {len(plan.requests)} requests, {mode}",
        *(f"  violates {violation}" for violation in outcome.violations[:10]),
        "  it takes:",
        *(f"    {fault}" for fault in plan.faults),
        "  what happened:",
    ]
    interesting = [line for line in outcome.trace if _is_shown(line)]
    if len(interesting) > MAX_STORY_LINES:
        left_out = len(interesting) - MAX_STORY_LINES
        interesting = [
            *interesting[: MAX_STORY_LINES // 2],
            f"    … {left_out} more …",
            *interesting[-MAX_STORY_LINES // 2 :],
        ]
    return lines + [f"    {line}" for line in interesting]


_SHOWN_EVENTS = (
    "*",
    "-",
    "sent",
    "violation",
    "acknowledged",
    "starts",
    "stops",
    "is gone",
    "faults",
    "unprotect",
    "cancels",
    "commit",
)


def _is_shown(line: str) -> bool:
    who, what = line[11:19].rstrip(), line[20:]
    return what.startswith(_SHOWN_EVENTS) or (who == "chain" and not what.endswith(" 0"))
