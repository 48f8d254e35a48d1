"""Connect the event log to a node: a reader for callers, and a loop that removes old events."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fencepost.adapters.postgres.database import is_failure
from fencepost.adapters.postgres.event_log import PostgresEventLog
from fencepost.adapters.postgres.pool import Pool
from fencepost.application.tx_waiter import TxWaiter
from fencepost.events.reader import EventReader
from fencepost.events.retention import Retention
from fencepost.tasks.background_task import background_task
from fencepost.tasks.service_loop import FailureLog, run_service_loop


def build_event_reader(pool: Pool, waiter: TxWaiter) -> EventReader:
    """Return a reader of the events in PostgreSQL; its waits end when the node stops."""
    log = PostgresEventLog(pool)
    return EventReader(log, log.tags, is_stopped=lambda: waiter.is_stopped)


@asynccontextmanager
async def prune_events(events: EventReader, *, keep_s: float) -> AsyncIterator[None]:
    """Remove old events until the body ends."""
    turn = Retention(events.log, keep_s).turn
    loop = run_service_loop(turn, failure_log=FailureLog("event retention", is_failure))
    async with background_task(loop, name="event-retention") as task:
        try:
            yield
        finally:
            task.cancel()
