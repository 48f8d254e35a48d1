"""Implement the event log over the rows of the in-memory ledger."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from fencepost.events.log import BEGINNING, MAX_BATCHES, EventLog, EventsExpired, LogEntry, LogPage, Place
from fencepost.testing.database import InMemoryDatabase, JournalRow


class InMemoryEventLog(EventLog):
    """Read the journal of an in-memory database: its rows are visible in the order in which they were written."""

    def __init__(self, database: InMemoryDatabase) -> None:
        """Read this database."""
        self._database = database

    async def read(self, after: Place, *, max_batches: int = MAX_BATCHES) -> LogPage:
        """Return the entries after a place."""
        await asyncio.sleep(0)
        if after != BEGINNING and after.entry < self._database.journal_removed:
            raise EventsExpired("events after this place were removed: start from the beginning of the log")
        entries = [entry for entry in self._entries() if entry.place > after][:max_batches]
        return LogPage(entries, entries[-1].place if entries else after)

    async def newest(self) -> Place:
        """Return the place of the last entry."""
        await asyncio.sleep(0)
        entries = self._entries()
        return entries[-1].place if entries else BEGINNING

    async def prune(self, *, older_than_s: float) -> int:
        """Remove old entries from the front of the journal, up to the first one of a live transaction."""
        await asyncio.sleep(0)
        data, oldest = self._database, datetime.now(UTC) - timedelta(seconds=older_than_s)
        count = 0
        for row in data.journal:
            if row.at >= oldest or (row.tx_id is not None and not data.txs[row.tx_id].is_terminal):
                break
            count += 1
        del data.journal[:count]
        data.journal_removed += count
        return count

    def _entries(self) -> list[LogEntry]:
        first = self._database.journal_removed + 1
        return [_entry(row, number) for number, row in enumerate(self._database.journal, start=first)]


def _entry(row: JournalRow, number: int) -> LogEntry:
    return LogEntry(
        place=Place(row.timeline + 1, number, number),
        at=row.at,
        chain_id=row.signer.chain_id,
        address=row.signer.address or None,  # empty: the event concerns no signer
        tx_id=row.tx_id,
        event=row.event,
        state=row.state,
        detail=row.detail,
    )
