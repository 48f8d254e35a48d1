"""A mutant: one flaw that can be switched on, and the schedule that must catch it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

Change = tuple[Any, str, Any]


@dataclass(frozen=True, slots=True)
class Mutant:
    """One flaw, its schedule, and the changes that plant it."""

    name: str
    changes: Callable[[], list[Change]]  # owner, attribute, new value
    schedule: str
    is_of_part_one: bool = False  # a pattern that was seen in practice

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Plant the flaw until the body ends."""
        changes = self.changes()
        before = [(owner, name, vars(owner)[name]) for owner, name, _ in changes]
        for owner, name, value in changes:
            setattr(owner, name, value)
        try:
            yield
        finally:
            for owner, name, value in reversed(before):
                setattr(owner, name, value)
