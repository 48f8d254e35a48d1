"""The journal as a feed: whoever remembers the place of the last entry misses nothing and sees nothing twice.

A serial number is not commit order: an entry with a smaller number may become visible after one with a larger. Places
are therefore (transaction, number), and a page ends below the oldest transaction that is still at work: whatever
commits later has a later place. The price is that a long transaction anywhere in the cluster holds the feed up; those
of this product are bounded by their time-outs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from fencepost.adapters.postgres.database import Connection, Pool
from fencepost.adapters.postgres.queries import sql
from fencepost.domain.ids import Address, Signer

MOST_ENTRIES = 1_000


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A reader's bookmark; it may be written down and used after any restart."""

    xid: int
    id: int


BEGINNING = Place(0, 0)


@dataclass(frozen=True, slots=True)
class JournalEntry:
    place: Place
    at: datetime
    signer: Signer
    tx_id: UUID | None
    event: str
    state: str | None
    detail: Mapping[str, Any]
    node: str | None
    token: int | None


async def read_page(source: Pool | Connection, after: Place = BEGINNING, *, limit: int) -> list[JournalEntry]:
    """Up to `limit` entries that follow `after`; fewer, or none, when there is nothing more that is certain yet."""
    bounded = max(1, min(limit, MOST_ENTRIES))
    return [_entry(row) for row in await source.fetch(sql("journal_page"), after.xid, after.id, bounded)]


def _entry(row: asyncpg.Record) -> JournalEntry:
    return JournalEntry(
        place=Place(row["xid"], row["id"]),
        at=row["at"],
        signer=Signer(row["chain_id"], Address(row["signer"])),
        tx_id=row["tx_id"],
        event=row["event"],
        state=row["state"],
        detail=msgspec.json.decode(row["detail"]) if row["detail"] else {},
        node=row["node"],
        token=row["fencing_token"],
    )
