"""Define the port of the event log: journal entries in an order in which none appears late.

The log is the journal, which is written by the commit that makes a fact true. Reading it needs no subscription and adds
nothing to a transaction.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from fencepost.domain.ids import Address
from fencepost.domain.states import State
from fencepost.errors import UsageError

MAX_BATCHES = 200  # per read; a batch has at most 255 entries
MAX_PARTS = 16  # events per journal entry
_ID = re.compile(r"evt_([0-9a-f]{12})([0-9a-f]{16})([0-9a-f]{16})([0-9a-f])")
_MAX_BIGINT = 2**63 - 1


class Place(NamedTuple):
    """Mark an event in the order of the log: epoch of the database, commit, journal entry, event of that entry.

    A restored or copied database begins a new epoch, which is above all earlier ones: a place that was kept from before
    stays valid, and everything that happens in the new epoch comes after it.
    """

    epoch: int
    xid: int
    entry: int
    part: int = MAX_PARTS - 1

    @property
    def id(self) -> str:
        """Return the event id: opaque text, whose order as text is the order of the log."""
        return f"evt_{self.epoch:012x}{self.xid:016x}{self.entry:016x}{self.part:x}"

    @property
    def sequence(self) -> str:
        """Return the place as one whole number in decimal text. It rises with the log, also across epochs."""
        return str(((self.epoch << 64 | self.xid) << 64 | self.entry) << 4 | self.part)


BEGINNING = Place(0, 0, 0, 0)


def parse_place(text: str) -> Place | None:
    """Return the place of an event id; None if the text is not an event id."""
    found = _ID.fullmatch(text)
    if found is None:
        return None
    place = Place(*(int(digits, 16) for digits in found.groups()))
    return place if place.entry <= _MAX_BIGINT else None


class EventsExpired(UsageError):
    """Report that events after the caller's place were removed, because they were older than the retention."""

    code = "events_expired"


@dataclass(frozen=True, slots=True)
class LogEntry:
    """Hold one journal entry. `place.part` is that of the entry's last event."""

    place: Place
    at: datetime
    chain_id: int  # 0: the entry concerns no chain
    address: Address | None
    tx_id: UUID | None
    event: str
    state: State | None
    detail: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LogPage:
    """Hold the entries that follow a place, in order, and the place up to which the log was read."""

    entries: Sequence[LogEntry]
    read_to: Place


class EventLog(Protocol):
    """Read the log. Database errors are raised unchanged."""

    async def read(self, after: Place, *, max_batches: int = MAX_BATCHES) -> LogPage:
        """Return the entries after a place; none of them can still be preceded by an entry that is not visible yet.

        An entry is returned again if `after` is the place of an event of it that is not its last. Raises `EventsExpired`
        if entries after the place were removed; never for `BEGINNING`.
        """
        ...

    async def newest(self) -> Place:
        """Return the newest place that `read` returns now; `BEGINNING` if the log is empty."""
        ...

    async def prune(self, *, older_than_s: float) -> int:
        """Remove old entries of ended transactions and of signers, in bounded batches, and return how many batches.

        Return 0 if another node is removing them.
        """
        ...
