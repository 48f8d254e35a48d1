"""Run a node without log, counters and metrics of events: nothing may depend on them."""

from __future__ import annotations

import asyncio

import pytest

from fencepost import Fencepost
from fencepost.application import tx_waiter
from fencepost.domain.states import State
from fencepost.runtime.metrics import Metrics
from fencepost.runtime.observer import NodeObserver

WITHIN_S = 30.0
FAR_S = 3600.0


def silence_observers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every observer of a node, and its metrics, ignore all events."""

    def ignore(_self: object, _event: str, /, **_fields: object) -> None:
        return

    def unreachable(_self: object, event: str, _fields: object) -> None:
        raise AssertionError(f"{event} reached the metrics without an observer")

    monkeypatch.setattr(NodeObserver, "note", ignore)
    monkeypatch.setattr(Metrics, "note", unreachable)


async def check_waits_without_polling(fencepost: Fencepost, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for every milestone of a transaction while polling would come far too late."""
    monkeypatch.setattr(tx_waiter, "POLL_S", FAR_S)
    me = fencepost.addresses[0]
    tx_id = await fencepost.create(signer=me, to=me, value_wei=1)
    async with asyncio.timeout(WITHIN_S):
        waits = [
            fencepost.wait_for(tx_id, milestone, timeout_s=FAR_S)
            for milestone in ("allocated", "submitted", "mined", "finished")
        ]
        *_, tx = await asyncio.gather(*waits)
    assert tx is not None
    assert tx.state is State.CONFIRMED
