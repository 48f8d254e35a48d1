"""What a node counts and logs. Critical writes are logged with signer, transaction, node and token."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from uuid import UUID

_log = logging.getLogger("fencepost.events")

# Everything else is for those who debug.
_LEVELS = {
    "fenced": logging.WARNING,
    "protect": logging.ERROR,
    "stuck": logging.WARNING,
    "lane_lost": logging.WARNING,
    "reopened": logging.WARNING,
    "new_fork": logging.WARNING,
    "unfunded": logging.WARNING,
    "handler_failed": logging.WARNING,
    "acquired": logging.INFO,
}


@dataclass(slots=True)
class NodeObserver:
    node: str
    on_changed: Callable[[Iterable[UUID]], None] = lambda _: None
    counts: Counter[str] = field(default_factory=Counter)

    def note(self, event: str, /, **fields: object) -> None:
        self.counts[event] += 1
        if event == "sent":
            self.counts[f"sent:{fields['result']}"] += 1
        if event == "wrote":
            txs = fields["txs"]
            assert isinstance(txs, list)  # noqa: S101 - `Lane.commit` is the only source
            self.on_changed(UUID(tx) for tx in txs)
        level = _LEVELS.get(event, logging.DEBUG)
        if _log.isEnabledFor(level):
            _log.log(level, event, extra={"fields": {"node": self.node, **fields}})
