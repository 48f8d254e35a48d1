"""An observer that records events, so that a test can inspect them."""

from __future__ import annotations

from collections import Counter


class FakeObserver:
    def __init__(self) -> None:
        self.notes: list[tuple[str, dict[str, object]]] = []

    def note(self, event: str, /, **fields: object) -> None:
        self.notes.append((event, fields))

    @property
    def counts(self) -> Counter[str]:
        return Counter(event for event, _ in self.notes)

    def of(self, event: str) -> list[dict[str, object]]:
        return [fields for name, fields in self.notes if name == event]
