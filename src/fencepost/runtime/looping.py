"""A loop that nothing ends but its cancellation: a turn that fails is logged, and the next one tries again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import NoReturn

from fencepost.errors import FencepostError

_log = logging.getLogger(__name__)

PAUSE_AFTER_FAILURE_S = 1.0


async def keep_turning(
    turn: Callable[[], Awaitable[float]], *, name: str, wake: asyncio.Event | None = None
) -> NoReturn:
    """`turn` tells how many seconds to rest; `wake` ends the rest."""
    while True:
        try:
            rest_s = await turn()
        except FencepostError as error:
            _log.warning("%s: %s", name, error)
            rest_s = PAUSE_AFTER_FAILURE_S
        except OSError as error:
            _log.warning("%s: %s", name, type(error).__name__)
            rest_s = PAUSE_AFTER_FAILURE_S
        except Exception:  # noqa: BLE001 - a loop's edge: the cause is logged, the next turn tries again
            _log.exception("%s failed; it goes on", name)
            rest_s = PAUSE_AFTER_FAILURE_S
        await _rest(rest_s, wake)


async def _rest(seconds: float, wake: asyncio.Event | None) -> None:
    if wake is None:
        await asyncio.sleep(seconds)
        return
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await wake.wait()
    wake.clear()
