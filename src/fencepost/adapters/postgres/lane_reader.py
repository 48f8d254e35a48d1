"""Load the state of lanes: reads that arrive together, or while a statement runs, share the next statement.

Otherwise round trips would dominate when many lanes have little work each. An error is raised to every lane that shared the
statement, and each lane loads again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from fencepost.adapters.postgres import rows
from fencepost.adapters.postgres.group_commit import GroupCommit
from fencepost.adapters.postgres.pool import Pool
from fencepost.adapters.postgres.queries import sql
from fencepost.application.ports import YOUNG_HISTORY_S, Clock, Command, LaneState, UnreadableRow
from fencepost.domain.ids import Signer
from fencepost.domain.transaction_state import ManagedTx

MAX_LANES_PER_READ = 64
PARALLEL_READS = 2


class _Wanted(NamedTuple):
    signer: Signer
    queue_limit: int


class _Queue(NamedTuple):
    txs: list[ManagedTx]
    unreadable: list[UnreadableRow]


class LaneReader:
    def __init__(self, pool: Pool, clock: Clock) -> None:
        self._pool = pool
        self._clock = clock
        shared = {"max_items": MAX_LANES_PER_READ, "parallel": PARALLEL_READS}
        self._lanes = GroupCommit(self._load_lanes, **shared)
        self._queues = GroupCommit(self._load_queues, **shared)
        self._commands = GroupCommit(self._load_commands, **shared)

    async def drain(self) -> None:
        for reads in (self._lanes, self._queues, self._commands):
            await reads.drain()

    async def lane(self, signer: Signer, *, queue_limit: int) -> LaneState:
        return await self._lanes.submit(_Wanted(signer, queue_limit))

    async def queue(self, signer: Signer, *, limit: int) -> Sequence[ManagedTx]:
        found = await self._queues.submit(_Wanted(signer, limit))
        if found.unreadable:
            raise found.unreadable[0]
        return found.txs

    async def commands(self, signer: Signer) -> Sequence[Command]:
        return await self._commands.submit(signer)

    async def cursor(self, signer: Signer) -> LaneState:
        found = await self._pool.fetch(sql("load_cursors"), *rows.signer_arrays([signer]))
        if found:
            (row,) = found
            return LaneState(
                rows.cursor(row), (), (), cursor_token=row["fencing_token"], is_from_copy=row["is_from_copy"]
            )
        ((is_young, is_copy),) = await self._pool.fetch(sql("young_history"), YOUNG_HISTORY_S)
        return LaneState(None, (), (), may_be_forgotten=is_young, is_from_copy=is_copy)

    async def with_attempts(self, found: Sequence[rows.Row]) -> list[ManagedTx]:
        """Load the attempts of these rows and convert all; raise `UnreadableRow` for the first that can't be read."""
        txs = []
        for tx in await self._readable(found):
            if isinstance(tx, UnreadableRow):
                raise tx
            txs.append(tx)
        return txs

    async def _readable(self, found: Sequence[rows.Row]) -> list[ManagedTx | UnreadableRow]:
        """Convert each row by itself: an unreadable row must not affect other rows, in particular those of other signers."""
        if not found:
            return []
        attempts = rows.rows_by_tx(
            await self._pool.fetch(sql("load_attempts"), [row["tx_id"] for row in found])
        )
        now_s = self._clock.now_s()
        read: list[ManagedTx | UnreadableRow] = []
        for row in found:
            try:
                read.append(rows.managed_tx(row, attempts.get(row["tx_id"], ()), now_s=now_s))
            except UnreadableRow as error:
                read.append(error)
        return read

    async def _load_lanes(self, wanted: Sequence[_Wanted]) -> Sequence[LaneState]:
        signers = rows.signer_arrays([lane.signer for lane in wanted])
        cursors = {rows.signer_of(row): row for row in await self._pool.fetch(sql("load_cursors"), *signers)}
        in_flight = defaultdict(list)
        unreadable = defaultdict(list)
        for tx in await self._readable(await self._pool.fetch(sql("load_in_flight"), *signers)):
            if isinstance(tx, UnreadableRow):
                unreadable[tx.tx.signer].append(tx)
            else:
                in_flight[tx.signer].append(tx)
        queues = await self._load_queues(wanted)
        is_young = is_copy = False
        if len(cursors) < len(wanted):
            ((is_young, is_copy),) = await self._pool.fetch(sql("young_history"), YOUNG_HISTORY_S)
        return [
            LaneState(
                cursor=rows.cursor(row) if (row := cursors.get(signer)) is not None else None,
                in_flight=tuple(in_flight[signer]),
                queue=tuple(queue.txs),
                cursor_token=row["fencing_token"] if row is not None else None,
                may_be_forgotten=is_young and row is None,
                unreadable=(*unreadable[signer], *queue.unreadable),
                is_from_copy=row["is_from_copy"] if row is not None else is_copy,
            )
            for (signer, _), queue in zip(wanted, queues, strict=True)
        ]

    async def _load_queues(self, wanted: Sequence[_Wanted]) -> Sequence[_Queue]:
        signers = rows.signer_arrays([lane.signer for lane in wanted])
        limits = [lane.queue_limit for lane in wanted]
        found = await self._pool.fetch(sql("load_queues"), *signers, limits)
        now_s = self._clock.now_s()
        queues = [_Queue([], []) for _ in wanted]
        for row in found:
            lane = row["position"] - 1
            queue = queues[lane]
            try:
                queue.txs.append(rows.queued_tx(wanted[lane].signer, row, now_s=now_s))
            except UnreadableRow as error:
                queue.unreadable.append(error)
        return queues

    async def _load_commands(self, signers: Sequence[Signer]) -> Sequence[Sequence[Command]]:
        commands: list[list[Command]] = [[] for _ in signers]
        for row in await self._pool.fetch(sql("load_commands"), *rows.signer_arrays(signers)):
            commands[row["position"] - 1].append(rows.command(row))
        return commands
