"""Publish the committed changes of transactions inside a process.

Lanes publish after the ledger applied a write; `TxWaiter` and programs that embed a node subscribe. An event says what is in
the ledger: a deferred write is published when it is written, not when the lane's memory changes. The events of one signer
come in the order of its commits. They are hints for this process: a process that dies after a commit publishes nothing, and
other processes publish their own commits, so a subscriber that must miss nothing reads the ledger, too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from fencepost.application.ports import TxChange
from fencepost.domain.ids import Signer
from fencepost.domain.struct import Struct

_log = logging.getLogger(__name__)

MAX_SUBSCRIBERS = 64  # each is called after every commit of every lane


class TxsChanged(Struct, frozen=True):
    """Hold the changes of one commit. The entries of a change name what happened to its transaction."""

    signer: Signer
    token: int  # of the term that wrote
    changes: tuple[TxChange, ...]


Subscriber = Callable[[TxsChanged], None]


@dataclass(slots=True)
class TxEvents:
    """Call every subscriber with each event, in the order of subscription."""

    _subscribers: tuple[Subscriber, ...] = field(default=())

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Call the subscriber with every event from now on; return a function that ends the subscription.

        The subscriber runs in the event loop between two steps of a lane, so it must return quickly: set an event, or put
        the changes into a queue. Raises `RuntimeError` if there are `MAX_SUBSCRIBERS` already.
        """
        if len(self._subscribers) >= MAX_SUBSCRIBERS:
            raise RuntimeError(f"there are already {MAX_SUBSCRIBERS} subscribers: end a subscription first")
        self._subscribers = (*self._subscribers, subscriber)
        is_subscribed = True

        def unsubscribe() -> None:
            nonlocal is_subscribed
            if is_subscribed:
                is_subscribed = False
                remaining = list(self._subscribers)
                remaining.remove(subscriber)
                self._subscribers = tuple(remaining)

        return unsubscribe

    def publish(self, event: TxsChanged) -> None:
        """Call every subscriber. The commit is done, so an error of a subscriber is logged and stops nothing."""
        for subscriber in self._subscribers:
            try:
                subscriber(event)
            except Exception:  # noqa: BLE001 - any error of a subscriber ends here, in the log
                _log.exception("a subscriber to changes of transactions failed; the changes are stored")
