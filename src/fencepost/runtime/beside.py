"""Something that runs beside the body of a context, and never longer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any


@asynccontextmanager
async def beside(work: Coroutine[Any, Any, None], *, name: str) -> AsyncIterator[asyncio.Task[None]]:
    """If the work fails, so does the body; when the body ends, work that did not end with it is cancelled.

    An error of the body goes out as it is: whoever embeds a node catches their own errors by name, not in a group.
    """
    of_the_body: Exception | None = None
    async with asyncio.TaskGroup() as group:
        task = group.create_task(work, name=name)
        try:
            yield task
        except Exception as error:  # noqa: BLE001 - raised again below, once the group has ended
            of_the_body = error
        finally:
            task.cancel()
    if of_the_body is not None:
        raise of_the_body
