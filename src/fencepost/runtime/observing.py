"""What a node counts and logs. Critical writes are logged with signer, transaction, node and token.

Every event goes to three places: a plain count (for whoever embeds a node), the metrics, and the log. What happens for
every transaction is logged at debug; what a person should see stands at its own level below.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from uuid import UUID

from fencepost.domain.ids import Signer
from fencepost.runtime.metrics import Metrics

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
    "handed_over": logging.INFO,
    "duplicate_node": logging.ERROR,
    "history_changed": logging.ERROR,
}

# For the figures alone: "wrote" tells the same story in the log, and a step is no news.
_NOT_LOGGED = frozenset({"moved", "waited"})


@dataclass(slots=True)
class NodeObserver:
    node: str
    metrics: Metrics = field(default_factory=lambda: Metrics(signer_labels=False))
    on_changed: Callable[[Iterable[UUID]], None] = lambda _: None
    counts: Counter[str] = field(default_factory=Counter)

    def note(self, event: str, /, **fields: object) -> None:
        self.counts[event] += 1
        self.metrics.note(event, fields)
        if event in _NOT_LOGGED:
            return
        if event == "wrote":
            txs = fields["txs"]
            assert isinstance(txs, list)  # noqa: S101 - `Lane.commit` is the only source
            self.on_changed(txs)
        level = _LEVELS.get(event, logging.DEBUG)
        if _log.isEnabledFor(level):
            _log.log(level, event, extra={"fields": {"node": self.node, **_as_written(fields)}})


def _as_written(fields: dict[str, object]) -> dict[str, object]:
    """As people and queries write it."""
    return {name: _text(value) for name, value in fields.items()}


def _text(value: object) -> object:
    if isinstance(value, list):
        return [_text(item) for item in value]
    return str(value) if isinstance(value, Signer | UUID) else value
