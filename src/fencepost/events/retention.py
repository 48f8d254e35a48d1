"""Remove events that are older than the retention, in bounded batches, by one node at a time."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from fencepost.events.log import EventLog

_log = logging.getLogger(__name__)

PRUNE_INTERVAL_S = 600.0


@dataclass(slots=True)
class Retention:
    """Remove old events regularly."""

    log: EventLog
    keep_s: float

    async def turn(self) -> float:
        """Remove what is too old, and return the seconds until the next turn."""
        if removed := await self.log.prune(older_than_s=self.keep_s):
            _log.info("removed %s journal batches that were older than events.retention", removed)
        return PRUNE_INTERVAL_S
