"""Read the event log from the journal in PostgreSQL: `sql/events.sql`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID

import msgspec

from fencepost.adapters.postgres.pool import Pool
from fencepost.adapters.postgres.queries import sql
from fencepost.adapters.postgres.rows import Row
from fencepost.adapters.postgres.slow_retry import RetryingReads
from fencepost.domain.ids import Address
from fencepost.domain.states import State
from fencepost.events.log import BEGINNING, MAX_BATCHES, EventLog, EventsExpired, LogEntry, LogPage, Place

MAX_PRUNED_PER_STATEMENT = 1_000
MAX_PRUNE_STATEMENTS = 1_000  # per call; the next call continues


class PostgresEventLog(EventLog):
    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._reads = RetryingReads(pool)

    async def read(self, after: Place, *, max_batches: int = MAX_BATCHES) -> LogPage:
        # One more than asked for: the batch that contains the place counts, and must not be all that is read.
        rows = await self._reads.fetch(
            sql("events_read"), after.epoch, str(after.xid), after.entry, max_batches + 1
        )
        if after != BEGINNING and await self._has_gap(after):
            raise EventsExpired(
                "events after this place were removed, because they were older than events.retention: start from the"
                " beginning of the log, and read the current state of your transactions"
            )
        entries = [entry for row in rows for entry in _entries(row)]
        read_to = max(after, entries[-1].place) if entries else after
        return LogPage([entry for entry in entries if entry.place > after], read_to)

    async def _has_gap(self, after: Place) -> bool:
        """Return whether a batch after the place was removed. Read after the batches: a removal shows here first."""
        return bool(await self._reads.fetchval(sql("events_floor"), after.epoch, str(after.xid), after.entry))

    async def newest(self) -> Place:
        row = await self._reads.fetchrow(sql("events_newest"))
        if row is None:
            return BEGINNING
        return Place(row["epoch"], int(row["xid"]), row["id"] + row["entries"] - 1)

    async def prune(self, *, older_than_s: float) -> int:
        at, removed = BEGINNING, 0
        for _ in range(MAX_PRUNE_STATEMENTS):
            row = await self._pool.fetchrow(
                sql("events_prune"),
                at.epoch,
                str(at.xid),
                at.entry,
                MAX_PRUNED_PER_STATEMENT,
                older_than_s,
            )
            if row is None or not row["is_open"]:
                return removed
            removed += int(row["removed"])
            if not row["is_old"] or row["examined"] < MAX_PRUNED_PER_STATEMENT:
                return removed
            at = Place(row["epoch"], int(row["xid"]), row["id"])
        return removed

    async def tags(self, tx_ids: Collection[UUID]) -> Mapping[UUID, Sequence[str]]:
        """Return the tags of transactions."""
        rows = await self._reads.fetch(sql("read_txs"), list(tx_ids))
        return {row["tx_id"]: row["tags"] for row in rows}


def _entries(row: Row) -> Iterator[LogEntry]:
    """Yield the entries of a batch in order: per transaction, its events."""
    details: Sequence[Mapping[str, Any] | None] = (
        msgspec.json.decode(row["details"]) if row["details"] else ()
    )
    words = list(zip(row["events"], row["states"], strict=True))
    for number, tx_id in enumerate(row["tx_ids"]):
        address = row["signer"] or (row["signers"][number] if row["signers"] else None)
        for position, (event, state) in enumerate(words, start=number * len(words)):
            yield LogEntry(
                place=Place(row["epoch"], int(row["xid"]), row["id"] + position),
                at=row["at"],
                chain_id=row["chain_id"],
                address=Address(address) if address else None,
                tx_id=tx_id,
                event=event,
                state=State(state) if state else None,
                detail=(details[position] or {}) if details else {},
            )
