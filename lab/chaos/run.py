"""A chaos run: load and faults by seed, then a quiet phase, then the check of everything.

The faults run in parallel streams, each with its own random generator. When the time is over they are ended, and the system
has a bounded time to finish its work. Then the history is read and checked. Two phases with their own checks follow: the
database is restored from an older copy, and a fail-over loses commits.
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
from lab.chaos import chain_faults as chain
from lab.chaos import database_faults as database
from lab.chaos import lost_commits_phase, restore_phase
from lab.chaos import node_faults as nodes
from lab.chaos.load import NOTICE_TIMEOUT_S, Load
from lab.chaos.testbed import FaultEvent, Plan, Testbed, open_testbed
from lab.checker import collect, evidence, lost_commits, restored_copy
from lab.checker.history import History
from lab.checker.invariants import Violation, check

Fault = Callable[[Testbed, random.Random], Awaitable[FaultEvent | None]]

UP_TIMEOUT_S = 30.0
LONGEST_HANG_S = 10.0
READ_TIMEOUT_S = 300.0  # a long run leaves millions of rows
LAST_FAULT_TIMEOUT_S = NOTICE_TIMEOUT_S + 1.0  # after the faults' time
_QUIET_LOOKS = 4
_POLL_INTERVAL_S = 0.4
# The faults of each stream with their weights, and the longest pause between two of them.
FAULT_STREAMS: dict[str, tuple[float, dict[Fault, int]]] = {
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
            database.db_lost_response: 12,
            database.db_delay: 6,
            database.backend_terminated: 12,
            database.commit_held: 6,
            database.disk_full: 3,
            database.pool_exhausted: 3,
            database.connections_exhausted: 2,
        },
    ),
    "the server": (90.0, {database.db_restart: 1, database.db_promoted: 1}),
    "answers": (2.5, {database.db_lost_response: 2, database.backend_terminated: 1}),
    "endpoints": (
        0.5,
        {
            chain.rpc_error: 4,
            chain.rpc_hang: 3,
            chain.rpc_executed: 5,
            chain.rpc_lag: 3,
            chain.rpc_repointed: 3,
        },
    ),
    "an endpoint with wrong nonces": (20.0, {chain.rpc_wrong_nonce: 1}),
    "chain": (
        1.5,
        {
            chain.reorg_dropped: 1,
            chain.reorg_included: 1,
            chain.reorg_mixed: 1,
            chain.reorg_replaced: 1,
            chain.eviction: 8,
        },
    ),
    "prices": (12.0, {chain.base_fee_spike: 1}),
}
FOREIGN_USE_UNTIL = 0.6  # share of the time


@dataclass(frozen=True, slots=True)
class Progress:
    """What the live table shows."""

    left_s: float
    phase: str
    rows: tuple[tuple[str, int, int, int, str], ...]  # signer, queued, in flight, ended, lease holder
    nodes: tuple[str, ...]
    faults: int
    asked: int
    acknowledged: int


@dataclass(slots=True)
class Outcome:
    """The result of a run."""

    plan: Plan
    seconds: float
    faults: list[FaultEvent]
    history: History
    violations: list[Violation]
    answers: Counter[str]
    notes: Counter[str]
    injected: Counter[str]
    starts: int
    failed_starts: Counter[str]
    machine: Mapping[str, str]
    began_s: float = 0.0
    restored: restore_phase.RestoreResult | None = None  # None: the system was not quiet before
    lost: lost_commits_phase.LostCommitsResult | None = None  # None: as above

    @property
    def is_good(self) -> bool:
        return not self.violations

    @property
    def by_kind(self) -> Counter[str]:
        return Counter(fault.kind for fault in self.faults)


@dataclass(slots=True)
class Run:
    """The phases of a run."""

    testbed: Testbed
    load: Load
    show: Callable[[Progress], None]
    phase: str = "starting"
    _until_s: float = 0.0
    _restored: restored_copy.Restored | None = None

    async def play(self, logs: Path) -> Outcome:
        """Run all phases."""
        async with self._nodes() as group:
            self.testbed.began_s = time.time()
            load_task = group.create_task(self._attack())
            quiet_within_s = await self._settle(load_task)
        outcome = await self._check(logs, quiet_within_s)
        if quiet_within_s is not None and await self._restore_copy(logs, outcome):
            await self._lose_commits(logs, outcome)
        return outcome

    @asynccontextmanager
    async def _nodes(self) -> AsyncIterator[asyncio.TaskGroup]:
        """Keep all nodes running until the body ends."""
        async with asyncio.TaskGroup() as group:
            keepers = [group.create_task(self.testbed.keep_running(slot)) for slot in self.testbed.slots]
            watcher = group.create_task(self._watch())
            await self._all_up()
            yield group
            watcher.cancel()
            for keeper in keepers:
                keeper.cancel()

    async def _all_up(self) -> None:
        async with asyncio.timeout(UP_TIMEOUT_S):
            while not all(slot.is_up for slot in self.testbed.slots):  # noqa: ASYNC110 - the state of other processes
                await asyncio.sleep(0.05)
        self.testbed.is_first_start = False

    # ---- faults

    async def _attack(self) -> None:
        """Run load and faults until the time is over; then wait for the last answers."""
        plan = self.testbed.plan
        self.phase = "faults"
        self._until_s = time.monotonic() + plan.seconds
        async with asyncio.TaskGroup() as group:
            group.create_task(self.load.generate(self._until_s, self.testbed.signers))
            streams = [group.create_task(self._inject_stream(name)) for name in FAULT_STREAMS]
            for number, victim in enumerate(self.testbed.victims, start=1):
                at = FOREIGN_USE_UNTIL * number / len(self.testbed.victims)
                streams.append(group.create_task(self._use_key_of(victim, at)))
            await asyncio.wait(streams, timeout=plan.seconds + LAST_FAULT_TIMEOUT_S)
            for stream in streams:
                stream.cancel()
            self.phase = "healing"
            await self.testbed.heal()

    async def _inject_stream(self, name: str) -> None:
        pause_most_s, faults = FAULT_STREAMS[name]
        rng = self.testbed.rng(name)
        while True:
            left_s = max(0.0, self._until_s - time.monotonic())
            await asyncio.sleep(min(left_s, rng.uniform(0.02, pause_most_s)))
            if time.monotonic() >= self._until_s:
                return
            fault = rng.choices(list(faults), list(faults.values()))[0]
            try:
                event = await fault(self.testbed, rng)
            except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, RpcError, EmbeddedError) as error:
                self.testbed.notes[f"{fault.__name__}: {type(error).__name__}"] += 1
                event = None
            if event is not None:
                self.testbed.fault_events.append(event)

    async def _use_key_of(self, victim: Address, at: float) -> None:
        """Use the victim's key outside Fencepost, as long as the load continues for the victim."""
        await asyncio.sleep(self.testbed.plan.seconds * at)
        while time.monotonic() < self._until_s + NOTICE_TIMEOUT_S:
            with suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError, RpcError):
                await chain.add_foreign_tx(self.testbed, victim)
                return
            await asyncio.sleep(0.5)

    # ---- the quiet phase

    async def _settle(self, load_task: asyncio.Task[None]) -> float | None:
        """Return how long it took to become quiet; None if it took too long."""
        while not load_task.done() and self.phase != "healing":  # noqa: ASYNC110 - bounded by the faults' own time
            await asyncio.sleep(0.1)
        healed_s = time.monotonic()
        deadline_s = healed_s + self.testbed.plan.quiet_within_s
        self.phase, self._until_s = "waiting for silence", deadline_s
        looks = 0
        while time.monotonic() < deadline_s:
            looks = looks + 1 if load_task.done() and await self._is_quiet() else 0
            if looks >= _QUIET_LOOKS:
                return time.monotonic() - healed_s - (_QUIET_LOOKS - 1) * _POLL_INTERVAL_S
            await asyncio.sleep(_POLL_INTERVAL_S)
        load_task.cancel()
        return None

    async def _is_quiet(self) -> bool:
        with suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
            live: int = await self.testbed.database.fetchval(
                "SELECT count(*) FROM managed_tx WHERE state NOT IN ('CONFIRMED', 'FAILED', 'CANCELLED')"
                " AND signer <> ALL ($1)",
                list(self.testbed.used_victims),
            )
            return live == 0
        return False

    async def _check(self, logs: Path, quiet_within_s: float | None) -> Outcome:
        testbed, plan = self.testbed, self.testbed.plan
        history = await self._history(logs, quiet_within_s)
        violations = check(history)
        if violations:
            await evidence.save(logs, testbed.chain.rpc, history, violations)
        return Outcome(
            plan=plan,
            seconds=round(time.time() - testbed.began_s, 1),
            faults=testbed.fault_events,
            history=history,
            violations=violations,
            answers=self.load.answers,
            notes=testbed.notes,
            injected=testbed.record.injected,
            starts=sum(slot.starts for slot in testbed.slots),
            failed_starts=testbed.failed_starts,
            machine=testbed.machine,
            began_s=testbed.began_s,
        )

    async def _history(self, logs: Path, quiet_within_s: float | None) -> History:
        history = await self._whole_history(logs, quiet_within_s)
        return history if self._restored is None else restored_copy.known_history(history, self._restored)

    async def _whole_history(self, logs: Path, quiet_within_s: float | None) -> History:
        testbed, plan = self.testbed, self.testbed.plan
        connection = await asyncpg.connect(testbed.postgres.dsn, command_timeout=READ_TIMEOUT_S)
        try:
            return History(
                required_depth=plan.required_depth,
                terms=await collect.terms(connection),
                lines=await collect.lines(connection),
                txs=await collect.txs(connection),
                attempts=await collect.attempts(connection),
                cursors=await collect.cursors(connection),
                blocks=await collect.blocks(testbed.chain.rpc),
                pool=await collect.pool(testbed.chain.rpc),
                sent=tuple(sorted(testbed.record.sent, key=lambda sent: sent.at_s)),
                acknowledged=tuple(self.load.acknowledged),
                fenced=collect.fenced(logs),
                victims=frozenset(testbed.used_victims),
                foreign=frozenset(testbed.foreign),
                all_must_mine=True,
                quiet_within_s=quiet_within_s,
                late_send_s=3 * plan.lease_s + LONGEST_HANG_S,
            )
        finally:
            await connection.close()

    async def _restore_copy(self, logs: Path, outcome: Outcome) -> bool:
        """Run the restore phase; return whether the system became quiet again."""
        self.phase = "restoring an older copy"
        async with self._nodes():
            copy = await restore_phase.copy_under_load(self.testbed, self.load)
        self._restored, dropped = await restore_phase.put_back(self.testbed, copy)
        async with self._nodes():
            quiet_within_s = await restore_phase.finish(self.testbed, self.load)
        history = await self._history(logs, quiet_within_s)
        found = restored_copy.check_restored_copy(history, self._restored)
        await self._keep_evidence(logs / "restored-copy", history, found.violations)
        outcome.restored = restore_phase.RestoreResult(self._restored, dropped, quiet_within_s, found)
        outcome.violations += found.violations
        return quiet_within_s is not None

    async def _lose_commits(self, logs: Path, outcome: Outcome) -> None:
        self.phase = "losing commits"
        async with self._nodes():
            act = await lost_commits_phase.play(self.testbed, self.load)
        history = await self._history(logs, act.quiet_within_s)
        found = lost_commits.check_lost_commits(history, act.fail_over)
        await self._keep_evidence(logs / "lost-commits", history, found.violations)
        outcome.lost = lost_commits_phase.LostCommitsResult(act, found)
        outcome.violations += found.violations

    async def _keep_evidence(self, folder: Path, history: History, violations: list[Violation]) -> None:
        if violations:
            folder.mkdir(exist_ok=True)  # noqa: ASYNC240 - once, at the end
            await evidence.save(folder, self.testbed.chain.rpc, history, violations)

    # ---- progress

    async def _watch(self) -> None:
        while True:
            with suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
                self.show(await self._progress())
            await asyncio.sleep(_POLL_INTERVAL_S)

    async def _progress(self) -> Progress:
        found = await self.testbed.database.fetch(
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
            nodes=tuple(slot.name for slot in self.testbed.slots if slot.is_up),
            faults=len(self.testbed.fault_events),
            asked=self.load.asked,
            acknowledged=len(self.load.acknowledged),
        )


async def run(
    plan: Plan, *, logs: Path, report: Callable[[str], None], show: Callable[[Progress], None]
) -> Outcome:
    """Open a testbed, and run all phases in it."""
    async with open_testbed(plan, logs=logs, report=report) as testbed:
        report(f"starting {plan.nodes} nodes")
        return await Run(testbed, Load(testbed), show).play(logs)
