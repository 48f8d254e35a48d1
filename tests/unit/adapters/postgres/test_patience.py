"""A slow database is retried; an unreachable one is reported immediately."""

from __future__ import annotations

import asyncpg
import pytest

from fencepost.adapters.postgres import slow_retry
from fencepost.adapters.postgres.slow_retry import MAX_BROKEN_CONNECTIONS, repeat_while_slow


class Work:
    def __init__(self, *errors: Exception) -> None:
        self._errors = list(errors)
        self.tries = 0

    async def __call__(self) -> str:
        self.tries += 1
        if self._errors:
            raise self._errors.pop(0)
        return "done"


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_retry, "RETRY_PAUSE_S", 0.0)


@pytest.mark.parametrize(
    "error",
    [
        TimeoutError(),
        asyncpg.TransactionTimeoutError("transaction timeout"),
        asyncpg.LockNotAvailableError("lock timeout"),
        asyncpg.QueryCanceledError("statement timeout"),
    ],
)
async def test_a_timeout_is_retried(error: Exception) -> None:
    work = Work(*[error] * 5)
    assert await repeat_while_slow(work) == "done"
    assert work.tries == 6


async def test_a_broken_connection_is_replaced_a_few_times() -> None:
    broken = asyncpg.ConnectionDoesNotExistError("closed in the middle")
    work = Work(*[broken] * MAX_BROKEN_CONNECTIONS)
    assert await repeat_while_slow(work) == "done"
    work = Work(*[broken] * (MAX_BROKEN_CONNECTIONS + 1))
    with pytest.raises(asyncpg.ConnectionDoesNotExistError):
        await repeat_while_slow(work)


@pytest.mark.parametrize(
    "error",
    [
        ConnectionRefusedError(),
        asyncpg.CannotConnectNowError("starting up"),
        asyncpg.AdminShutdownError("shutting down"),
        asyncpg.UniqueViolationError("twice"),
        ValueError("ours"),
    ],
)
async def test_an_unreachable_server_or_a_mistake_is_reported_immediately(error: Exception) -> None:
    work = Work(error)
    with pytest.raises(type(error)):
        await repeat_while_slow(work)
    assert work.tries == 1


async def test_retries_have_a_time_limit() -> None:
    work = Work(TimeoutError())
    with pytest.raises(TimeoutError):
        await repeat_while_slow(work, within_s=0.0)
