"""Run a task for as long as the body of a context."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any


@asynccontextmanager
async def background_task(work: Coroutine[Any, Any, None], *, name: str) -> AsyncIterator[asyncio.Task[None]]:
    """Run `work` in the background; cancel it when the body ends, and cancel the body if the work fails.

    An exception of the body is raised as it is, not in an exception group: a program that embeds a node catches its own
    exceptions by type.
    """
    body_error: Exception | None = None
    async with asyncio.TaskGroup() as group:
        task = group.create_task(work, name=name)
        try:
            yield task
        except Exception as error:  # noqa: BLE001 - raised again below, once the group has ended
            body_error = error
        finally:
            task.cancel()
    if body_error is not None:
        raise body_error
