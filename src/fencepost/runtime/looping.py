"""A loop that nothing ends but its cancellation: a turn that fails is logged, and the next one tries again."""

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

IsDatabaseFailure = Callable[[BaseException], bool]  # it is away or busy, not wrong


def is_broken_connection(error: BaseException) -> bool:
    """All that can be known without knowing the driver."""
    return isinstance(error, OSError)


@dataclass(slots=True)
class Trouble:
    """What a loop tells of its failures.

    What lies outside is told in a line when it begins, when it turns into something else and when it is over, however
    many turns it lasts. A mistake of ours is told each time, with its trace.
    """

    loop: str
    is_database_failure: IsDatabaseFailure = is_broken_connection
    _told: str = ""

    def met(self, error: Exception) -> None:
        if isinstance(error, FencepostError):
            self._tell(str(error))
        elif self.is_database_failure(error):
            self._tell("the database does not answer", f" ({type(error).__name__})")
        else:
            _log.error("%s failed; it goes on", self.loop, exc_info=error)

    def _tell(self, what: str, more: str = "") -> None:
        """`more` is of the moment: an outage begins with a broken connection and goes on with refused ones."""
        if what != self._told:
            _log.warning("%s: %s%s", self.loop, what, more)
            self._told = what

    def over(self) -> None:
        if self._told:
            _log.warning("%s: goes on", self.loop)
            self._told = ""


async def keep_turning(
    turn: Callable[[], Awaitable[float]], *, trouble: Trouble, wake: asyncio.Event | None = None
) -> NoReturn:
    """`turn` tells how many seconds to rest; `wake` ends the rest."""
    while True:
        try:
            rest_s = await turn()
        except Exception as error:  # noqa: BLE001 - a loop's edge: the cause is logged, the next turn tries again
            trouble.met(error)
            rest_s = PAUSE_AFTER_FAILURE_S
        else:
            trouble.over()
        await _rest(rest_s, wake)


async def _rest(seconds: float, wake: asyncio.Event | None) -> None:
    if wake is None:
        await asyncio.sleep(seconds)
        return
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await wake.wait()
    wake.clear()
