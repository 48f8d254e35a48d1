"""What lanes read: those that ask in the same turn, or while a statement is under way, share the next one.

Many lanes with little to do each would otherwise spend most of their time on round trips of their own. An error reaches
every lane that shared the statement, and each is read anew.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from fencepost.adapters.postgres import rows
from fencepost.adapters.postgres.group_commit import GroupCommit
from fencepost.adapters.postgres.pool import Pool
from fencepost.adapters.postgres.queries import sql
from fencepost.application.ports import YOUNG_HISTORY_S, Clock, Command, Cursor, LaneState
from fencepost.domain.ids import Signer
from fencepost.domain.managed import ManagedTx
from fencepost.domain.states import CursorState

MOST_LANES_A_READ = 64
PARALLEL_READS = 2


class _Wanted(NamedTuple):
    signer: Signer
    queue_limit: int


class Loading:
    def __init__(self, pool: Pool, clock: Clock) -> None:
        self._pool = pool
        self._clock = clock
        shared = {"most_items": MOST_LANES_A_READ, "parallel": PARALLEL_READS}
        self._lanes = GroupCommit(self._load_lanes, **shared)
        self._queues = GroupCommit(self._load_queues, **shared)
        self._commands = GroupCommit(self._load_commands, **shared)

    async def drain(self) -> None:
        for reads in (self._lanes, self._queues, self._commands):
            await reads.drain()

    async def lane(self, signer: Signer, *, queue_limit: int) -> LaneState:
        return await self._lanes.submit(_Wanted(signer, queue_limit))

    async def queue(self, signer: Signer, *, limit: int) -> Sequence[ManagedTx]:
        return await self._queues.submit(_Wanted(signer, limit))

    async def commands(self, signer: Signer) -> Sequence[Command]:
        return await self._commands.submit(signer)

    async def with_attempts(self, found: Sequence[rows.Row]) -> list[ManagedTx]:
        if not found:
            return []
        attempts = rows.attempts_by_tx(
            await self._pool.fetch(sql("load_attempts"), [row["tx_id"] for row in found])
        )
        now_s = self._clock.now_s()
        return [rows.managed_tx(row, attempts.get(row["tx_id"], ()), now_s=now_s) for row in found]

    async def _load_lanes(self, wanted: Sequence[_Wanted]) -> Sequence[LaneState]:
        signers = rows.signer_arrays([lane.signer for lane in wanted])
        cursors = {rows.signer_of(row): row for row in await self._pool.fetch(sql("load_cursors"), *signers)}
        in_flight = defaultdict(list)
        for tx in await self.with_attempts(await self._pool.fetch(sql("load_in_flight"), *signers)):
            in_flight[tx.signer].append(tx)
        queues = await self._load_queues(wanted)
        is_young = len(cursors) < len(wanted) and await self._pool.fetchval(
            sql("history_is_young"), YOUNG_HISTORY_S
        )
        return [
            LaneState(
                cursor=_cursor(row) if (row := cursors.get(signer)) is not None else None,
                in_flight=tuple(in_flight[signer]),
                queue=tuple(queue),
                cursor_token=row["fencing_token"] if row is not None else None,
                may_be_forgotten=is_young and row is None,
            )
            for (signer, _), queue in zip(wanted, queues, strict=True)
        ]

    async def _load_queues(self, wanted: Sequence[_Wanted]) -> Sequence[Sequence[ManagedTx]]:
        signers = rows.signer_arrays([lane.signer for lane in wanted])
        limits = [lane.queue_limit for lane in wanted]
        found = await self._pool.fetch(sql("load_queues"), *signers, limits)
        now_s = self._clock.now_s()
        queues: list[list[ManagedTx]] = [[] for _ in wanted]
        for position, *row in found:
            queues[position - 1].append(rows.queued_tx(wanted[position - 1].signer, row, now_s=now_s))
        return queues

    async def _load_commands(self, signers: Sequence[Signer]) -> Sequence[Sequence[Command]]:
        commands: list[list[Command]] = [[] for _ in signers]
        for row in await self._pool.fetch(sql("load_commands"), *rows.signer_arrays(signers)):
            commands[row["position"] - 1].append(
                Command(
                    id=row["id"],
                    command=row["command"],
                    tx_id=row["tx_id"],
                    detail=msgspec.json.decode(row["detail"]),
                    asked_by=row["asked_by"],
                    reason=row["reason"],
                )
            )
        return commands


def _cursor(row: rows.Row) -> Cursor:
    return Cursor(
        next_nonce=row["next_nonce"],
        start_nonce=row["start_nonce"],
        state=CursorState(row["state"]),
        reason=row["reason"],
        is_doubted=row["is_doubted"],
    )
