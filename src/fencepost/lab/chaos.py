"""A chaos run: load through the API, faults of all kinds by seed, then silence, then the check of everything.

The faults run side by side in a few strands, each with dice of its own. When the time is over they stop, everything is
healed, and the system has a bounded time to finish what it took. Then the history is read and checked. The last act is
a fail-over that loses commits, with a check of its own.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import asyncpg

from fencepost.domain.ids import Address
from fencepost.errors import EmbeddedError, RpcError
from fencepost.lab import chaos_database_faults as database
from fencepost.lab import chaos_lost_commits, evidence, gather, lost_commits
from fencepost.lab import chaos_node_faults as nodes
from fencepost.lab import chaos_world_faults as world
from fencepost.lab.chaos_load import NOTICE_WITHIN_S, Load
from fencepost.lab.chaos_stage import Happened, Plan, Stage, stage
from fencepost.lab.checker import Violation, check
from fencepost.lab.history import History

Fault = Callable[[Stage, random.Random], Awaitable[Happened | None]]

UP_WITHIN_S = 30.0
LONGEST_HANG_S = 10.0
READ_WITHIN_S = 300.0  # a long run leaves millions of rows
LAST_FAULT_WITHIN_S = NOTICE_WITHIN_S + 1.0  # after the time is over
_QUIET_LOOKS = 4
_LOOK_EVERY_S = 0.4
# What a strand may do, how often one compared with another, and the longest pause between two of them.
STRANDS: dict[str, tuple[float, dict[Fault, int]]] = {
    "nodes": (
        1.0,
        {
            nodes.kill_at_failpoint: 6,
            nodes.pause_at_failpoint: 6,
            nodes.kill: 2,
            nodes.pause: 4,
            nodes.graceful_stop: 3,
            nodes.rolling_restart: 1,
            nodes.duplicate_id: 1,
            nodes.clock_skew: 2,
        },
    ),
    "more nodes": (1.5, {nodes.kill_at_failpoint: 2, nodes.pause_at_failpoint: 5, nodes.pause: 2}),
    "database": (
        1.6,
        {
            database.db_cut: 8,
            database.db_black_hole: 4,
            database.db_dropped_answer: 12,
            database.db_delay: 6,
            database.backend_terminated: 12,
            database.commit_held: 6,
            database.disk_full: 3,
            database.pool_exhausted: 3,
            database.connections_exhausted: 2,
        },
    ),
    "the server": (90.0, {database.db_restart: 1, database.db_promoted: 1}),
    "answers": (2.5, {database.db_dropped_answer: 2, database.backend_terminated: 1}),
    "endpoints": (
        0.5,
        {world.rpc_error: 4, world.rpc_hang: 3, world.rpc_executed: 5, world.rpc_lag: 3},
    ),
    "a lying endpoint": (20.0, {world.rpc_lie: 1}),
    "chain": (
        1.5,
        {
            world.reorg_dropped: 1,
            world.reorg_included: 1,
            world.reorg_mixed: 1,
            world.reorg_replaced: 1,
            world.eviction: 8,
        },
    ),
    "prices": (12.0, {world.base_fee_spike: 1}),
}
STRANGERS_UNTIL = 0.6  # of the time


@dataclass(frozen=True, slots=True)
class Progress:
    left_s: float
    phase: str
    rows: tuple[tuple[str, int, int, int, str], ...]  # signer, queued, in flight, ended, held by
    nodes: tuple[str, ...]
    faults: int
    asked: int
    acknowledged: int


@dataclass(slots=True)
class Outcome:
    plan: Plan
    seconds: float
    faults: list[Happened]
    history: History
    violations: list[Violation]
    answers: Counter[str]
    notes: Counter[str]
    injected: Counter[str]
    starts: int
    failed_starts: int
    machine: Mapping[str, str]
    began_s: float = 0.0
    lost: chaos_lost_commits.Lost | None = None  # None: it had not become quiet before

    @property
    def is_good(self) -> bool:
        return not self.violations

    @property
    def by_kind(self) -> Counter[str]:
        return Counter(fault.kind for fault in self.faults)


@dataclass(slots=True)
class Run:
    stage: Stage
    load: Load
    show: Callable[[Progress], None]
    phase: str = "starting"
    _until_s: float = 0.0

    async def play(self, logs: Path) -> Outcome:
        async with self._nodes() as group:
            self.stage.began_s = time.time()
            pouring = group.create_task(self._attack())
            quiet_within_s = await self._settle(pouring)
        outcome = await self._judge(logs, quiet_within_s)
        if quiet_within_s is not None:
            await self._lose_commits(logs, outcome)
        return outcome

    @asynccontextmanager
    async def _nodes(self) -> AsyncIterator[asyncio.TaskGroup]:
        """All are up, and somebody keeps and watches them; afterwards none is."""
        async with asyncio.TaskGroup() as group:
            keepers = [group.create_task(self.stage.keep(slot)) for slot in self.stage.slots]
            watcher = group.create_task(self._watch())
            await self._all_up()
            yield group
            watcher.cancel()
            for keeper in keepers:
                keeper.cancel()

    async def _all_up(self) -> None:
        async with asyncio.timeout(UP_WITHIN_S):
            while not all(slot.is_up for slot in self.stage.slots):  # noqa: ASYNC110 - other processes' work
                await asyncio.sleep(0.05)
        self.stage.is_first_start = False

    # ---- faults

    async def _attack(self) -> None:
        """Load and faults until the time is over; then the load until its last request was answered."""
        plan = self.stage.plan
        self.phase = "faults"
        self._until_s = time.monotonic() + plan.seconds
        async with asyncio.TaskGroup() as group:
            group.create_task(self.load.pour(self._until_s, self.stage.signers))
            strands = [group.create_task(self._strand(name)) for name in STRANDS]
            for number, victim in enumerate(self.stage.victims, start=1):
                at = STRANGERS_UNTIL * number / len(self.stage.victims)
                strands.append(group.create_task(self._stranger(victim, at)))
            await asyncio.wait(strands, timeout=plan.seconds + LAST_FAULT_WITHIN_S)
            for strand in strands:
                strand.cancel()
            self.phase = "healing"
            await self.stage.heal()

    async def _strand(self, name: str) -> None:
        pause_most_s, faults = STRANDS[name]
        chance = self.stage.chance(name)
        while True:
            left_s = max(0.0, self._until_s - time.monotonic())
            await asyncio.sleep(min(left_s, chance.uniform(0.02, pause_most_s)))
            if time.monotonic() >= self._until_s:
                return
            fault = chance.choices(list(faults), list(faults.values()))[0]
            try:
                happened = await fault(self.stage, chance)
            except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, RpcError, EmbeddedError) as error:
                self.stage.notes[f"{fault.__name__}: {type(error).__name__}"] += 1
                happened = None
            if happened is not None:
                self.stage.happened.append(happened)

    async def _stranger(self, victim: Address, at: float) -> None:
        """Bounded by the patience of the load, which goes on for the victim."""
        await asyncio.sleep(self.stage.plan.seconds * at)
        while time.monotonic() < self._until_s + NOTICE_WITHIN_S:
            with suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError, RpcError):
                await world.stranger(self.stage, victim)
                return
            await asyncio.sleep(0.5)

    # ---- silence

    async def _settle(self, pouring: asyncio.Task[None]) -> float | None:
        """How long it took to become quiet; None when it took too long."""
        while not pouring.done() and self.phase != "healing":  # noqa: ASYNC110 - bounded by the faults' own time
            await asyncio.sleep(0.1)
        healed_s = time.monotonic()
        deadline_s = healed_s + self.stage.plan.quiet_within_s
        self.phase, self._until_s = "waiting for silence", deadline_s
        looks = 0
        while time.monotonic() < deadline_s:
            looks = looks + 1 if pouring.done() and await self._is_quiet() else 0
            if looks >= _QUIET_LOOKS:
                return time.monotonic() - healed_s - (_QUIET_LOOKS - 1) * _LOOK_EVERY_S
            await asyncio.sleep(_LOOK_EVERY_S)
        pouring.cancel()
        return None

    async def _is_quiet(self) -> bool:
        with suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
            live: int = await self.stage.database.fetchval(
                "SELECT count(*) FROM managed_tx WHERE state NOT IN ('CONFIRMED', 'FAILED', 'CANCELLED')"
                " AND signer <> ALL ($1)",
                list(self.stage.struck),
            )
            return live == 0
        return False

    async def _judge(self, logs: Path, quiet_within_s: float | None) -> Outcome:
        staged, plan = self.stage, self.stage.plan
        history = await self._history(logs, quiet_within_s)
        violations = check(history)
        if violations:
            await evidence.save(logs, staged.chain.rpc, history, violations)
        return Outcome(
            plan=plan,
            seconds=round(time.time() - staged.began_s, 1),
            faults=staged.happened,
            history=history,
            violations=violations,
            answers=self.load.answers,
            notes=staged.notes,
            injected=staged.record.injected,
            starts=sum(slot.starts for slot in staged.slots),
            failed_starts=sum(slot.failed_starts for slot in staged.slots),
            machine=staged.machine,
            began_s=staged.began_s,
        )

    async def _history(self, logs: Path, quiet_within_s: float | None) -> History:
        staged, plan = self.stage, self.stage.plan
        connection = await asyncpg.connect(staged.postgres.dsn, command_timeout=READ_WITHIN_S)
        try:
            return History(
                required_depth=plan.required_depth,
                terms=await gather.terms(connection),
                lines=await gather.lines(connection),
                txs=await gather.txs(connection),
                attempts=await gather.attempts(connection),
                cursors=await gather.cursors(connection),
                blocks=await gather.blocks(staged.chain.rpc),
                pool=await gather.pool(staged.chain.rpc),
                sent=tuple(sorted(staged.record.sent, key=lambda sent: sent.at_s)),
                acknowledged=tuple(self.load.acknowledged),
                fenced=gather.fenced(logs),
                victims=frozenset(staged.struck),
                strangers=frozenset(staged.strangers),
                all_must_mine=True,
                quiet_within_s=quiet_within_s,
                late_send_s=3 * plan.lease_s + LONGEST_HANG_S,
            )
        finally:
            await connection.close()

    async def _lose_commits(self, logs: Path, outcome: Outcome) -> None:
        self.phase = "losing commits"
        async with self._nodes():
            act = await chaos_lost_commits.play(self.stage, self.load)
        history = await self._history(logs, act.quiet_within_s)
        found = lost_commits.judge(history, act.fail_over)
        if found.violations:
            folder = logs / "lost-commits"
            folder.mkdir(exist_ok=True)
            await evidence.save(folder, self.stage.chain.rpc, history, found.violations)
        outcome.lost = chaos_lost_commits.Lost(act, found)
        outcome.violations += found.violations

    # ---- what it looks like

    async def _watch(self) -> None:
        while True:
            with suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
                self.show(await self._progress())
            await asyncio.sleep(_LOOK_EVERY_S)

    async def _progress(self) -> Progress:
        found = await self.stage.database.fetch(
            "SELECT t.signer, count(*) FILTER (WHERE t.state = 'QUEUED') AS queued,"
            " count(*) FILTER (WHERE t.state IN ('ALLOCATED', 'SUBMITTED', 'TRACKING', 'SUSPENDED')) AS in_flight,"
            " count(*) FILTER (WHERE t.state IN ('CONFIRMED', 'FAILED', 'CANCELLED')) AS ended,"
            " coalesce(max(l.owner_node), '') AS owner"
            " FROM managed_tx t LEFT JOIN signer_lease l USING (chain_id, signer) GROUP BY t.signer ORDER BY t.signer"
        )
        for row in found:
            self.load.ended[row["signer"]] = row["ended"]
        return Progress(
            left_s=max(0.0, self._until_s - time.monotonic()),
            phase=self.phase,
            rows=tuple((r["signer"], r["queued"], r["in_flight"], r["ended"], r["owner"]) for r in found),
            nodes=tuple(slot.name for slot in self.stage.slots if slot.is_up),
            faults=len(self.stage.happened),
            asked=self.load.asked,
            acknowledged=len(self.load.acknowledged),
        )


async def run(
    plan: Plan, *, logs: Path, report: Callable[[str], None], show: Callable[[Progress], None]
) -> Outcome:
    async with stage(plan, logs=logs, report=report) as staged:
        report(f"starting {plan.nodes} nodes")
        return await Run(staged, Load(staged), show).play(logs)
