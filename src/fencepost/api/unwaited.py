"""What a coroutine gives at once, if nothing makes it wait."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Waits(Exception):
    """It can't be known without waiting."""


def unwaited(work: Coroutine[Any, Any, T]) -> T:
    """Raises `Waits` if it would wait; then it is given up, so nothing may have happened that somebody relies on."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]  # what a coroutine returns
    work.close()
    raise Waits
