"""A mutant: one flaw that can be switched on, a schedule that must notice it, and nothing else changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

Change = tuple[Any, str, Any]


@dataclass(frozen=True, slots=True)
class Mutant:
    name: str
    changes: Callable[[], list[Change]]  # whose attribute becomes what
    schedule: str
    is_of_part_one: bool = False  # a pattern that was seen in practice, as opposed to one that we made up

    @contextmanager
    def planted(self) -> Iterator[None]:
        changes = self.changes()
        before = [(owner, name, vars(owner)[name]) for owner, name, _ in changes]
        for owner, name, value in changes:
            setattr(owner, name, value)
        try:
            yield
        finally:
            for owner, name, value in reversed(before):
                setattr(owner, name, value)
