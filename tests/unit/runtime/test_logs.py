"""Abandoned connection attempts are not reported as errors; every other unretrieved error is."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from fencepost.adapters.postgres.database import is_failure
from fencepost.runtime.logs import log_abandoned_attempts


@pytest.fixture
async def reported() -> list[dict[str, Any]]:
    loop, contexts = asyncio.get_running_loop(), list[dict[str, Any]]()
    loop.set_exception_handler(lambda _, context: contexts.append(context))
    log_abandoned_attempts(loop, is_failure)
    return contexts


def abandon(error: Exception) -> None:
    future = asyncio.get_running_loop().create_future()
    future.set_exception(error)
    del future
    gc.collect()


async def test_an_abandoned_connection_attempt_is_not_reported(reported: list[dict[str, Any]]) -> None:
    abandon(ConnectionError("unexpected connection_lost() call"))
    abandon(TimeoutError())
    assert reported == []


async def test_other_unretrieved_errors_are_reported(reported: list[dict[str, Any]]) -> None:
    abandon(ValueError("ours"))

    async def fail() -> None:
        raise ConnectionError("of a task")

    task = asyncio.get_running_loop().create_task(fail())
    await asyncio.wait([task])
    del task
    gc.collect()
    assert [type(context["exception"]) for context in reported] == [ValueError, ConnectionError]
