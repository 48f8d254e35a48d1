"""Chaos has failpoints at every method of a port; a new method needs one, too."""

from __future__ import annotations

import inspect

import pytest

from fencepost.application.ports import Chain, KeyPort, Ledger
from lab.chaos.failpoints import POINTS, PORTS
from lab.sim.ports import LEDGER_WRITES, LedgerPort


@pytest.mark.parametrize(("name", "port"), [("ledger", Ledger), ("chain", Chain), ("keys", KeyPort)])
def test_every_call_of_a_port_is_watched(name: str, port: type) -> None:
    calls = {method for method, _ in inspect.getmembers(port, inspect.iscoroutinefunction)}
    adapter, watched = PORTS[name]
    assert calls - set(watched) == set()
    assert all(callable(getattr(adapter, method)) for method in watched)


def test_lanes_that_write_together_can_fail() -> None:
    together = ("ledger.commit_each", "keys.sign_each", "chain.block_receipts")
    assert {f"{call}:{when}" for call in together for when in ("before", "after")} <= set(POINTS)


def test_every_call_that_the_simulator_gates_by_name_is_a_call_of_the_ledger() -> None:
    """A call that was renamed would no longer meet a fault, and no simulation would show it."""
    named = {*LedgerPort.GATED, *LEDGER_WRITES}
    assert [name for name in sorted(named) if not hasattr(Ledger, name)] == []
