"""Count and log the events of a node. Critical writes are logged with signer, transaction, node and token.

Every event goes to three places: a plain counter (for a program that embeds a node), the metrics, and the log. Events of
every transaction are logged at level DEBUG; events that an operator should see have their own level below. Nothing else depends
on them: a node without an observer works the same (`TxEvents` wakes the callers that wait for a transaction).
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field
from uuid import UUID

from fencepost.domain.ids import Signer
from fencepost.runtime.metrics import Metrics

_log = logging.getLogger("fencepost.events")

# All other events are logged at level DEBUG.
_LEVELS = {
    "fenced": logging.WARNING,
    "protect": logging.ERROR,
    "attached": logging.WARNING,
    "adopted": logging.WARNING,
    "pool_ahead": logging.WARNING,
    "stuck": logging.WARNING,
    "below_market": logging.WARNING,
    "pending_in_pool": logging.WARNING,
    "forgotten_by_pool": logging.WARNING,
    "stalled": logging.WARNING,
    "lane_lost": logging.WARNING,
    "reopened": logging.WARNING,
    "new_fork": logging.WARNING,
    "unfunded": logging.WARNING,
    "estimate_refused": logging.WARNING,
    "signing_refused": logging.WARNING,
    "command_failed": logging.WARNING,
    "handler_failed": logging.WARNING,
    "stuck_hook_failed": logging.ERROR,
    "acquired": logging.INFO,
    "handed_over": logging.INFO,
    "duplicate_node": logging.ERROR,
    "history_changed": logging.ERROR,
    "redis_lost": logging.WARNING,
    "redis_found": logging.WARNING,
}

# For the metrics only: "wrote" logs the same change, and a step by itself is not worth a line.
_NOT_LOGGED = frozenset({"moved", "waited"})


@dataclass(slots=True)
class NodeObserver:
    """Implement the `Observer` port."""

    node: str
    metrics: Metrics = field(default_factory=lambda: Metrics(signer_labels=False))
    counts: Counter[str] = field(default_factory=Counter)

    def note(self, event: str, /, **fields: object) -> None:
        """Count an event, pass it on to the metrics, and log it at its level."""
        self.counts[event] += 1
        self.metrics.note(event, fields)
        if event in _NOT_LOGGED:
            return
        level = _LEVELS.get(event, logging.DEBUG)
        if _log.isEnabledFor(level):
            _log.log(level, event, extra={"fields": {"node": self.node, **_as_text(fields)}})


def _as_text(fields: dict[str, object]) -> dict[str, object]:
    """Write ids and signers in the form that operators and queries use."""
    return {name: _text(value) for name, value in fields.items()}


def _text(value: object) -> object:
    if isinstance(value, list):
        return [_text(item) for item in value]
    return str(value) if isinstance(value, Signer | UUID) else value
