"""Run a loop until it is cancelled: a turn that fails is logged, and the next turn tries again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from fencepost.errors import FencepostError

_log = logging.getLogger(__name__)

PAUSE_AFTER_FAILURE_S = 1.0

IsDatabaseFailure = Callable[
    [BaseException], bool
]  # the database is down or overloaded, and a retry may help


def is_broken_connection(error: BaseException) -> bool:
    """Return whether the error is a failed connection, for callers that do not know the database driver."""
    return isinstance(error, OSError)


@dataclass(slots=True)
class FailureLog:
    """Log the failures of a loop.

    An expected failure (the database, an endpoint) is logged in one line when it starts, when it changes and when it is
    over, however many turns it lasts. An unexpected exception is logged each time, with its traceback.
    """

    loop: str
    is_database_failure: IsDatabaseFailure = is_broken_connection
    _reported: str = ""

    def failed(self, error: Exception) -> None:
        """Log the failure of a turn, unless the same one was logged before."""
        if isinstance(error, FencepostError):
            self._report(str(error))
        elif self.is_database_failure(error):
            self._report("the database does not answer", f" ({type(error).__name__})")
        else:
            _log.error("%s failed and is retried", self.loop, exc_info=error)

    def _report(self, failure: str, cause: str = "") -> None:
        """Log a failure once; its cause may vary: an outage starts with a broken connection and then rejects new ones."""
        if failure != self._reported:
            _log.warning("%s: %s%s", self.loop, failure, cause)
            self._reported = failure

    def succeeded(self) -> None:
        """Log that the loop has recovered, if a failure was logged."""
        if self._reported:
            _log.warning("%s: recovered", self.loop)
            self._reported = ""


async def run_service_loop(
    turn: Callable[[], Awaitable[float]], *, failure_log: FailureLog, wake: asyncio.Event | None = None
) -> NoReturn:
    """Call `turn` forever. It returns the seconds until the next turn; `wake` ends the wait early."""
    while True:
        try:
            rest_s = await turn()
        except Exception as error:  # noqa: BLE001 - a loop's edge: the cause is logged, the next turn tries again
            failure_log.failed(error)
            rest_s = PAUSE_AFTER_FAILURE_S
        else:
            failure_log.succeeded()
        await _rest(rest_s, wake)


async def _rest(seconds: float, wake: asyncio.Event | None) -> None:
    if wake is None:
        await asyncio.sleep(seconds)
        return
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await wake.wait()
    wake.clear()
