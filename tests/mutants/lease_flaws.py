"""Flaws of terms: what an owner does that is none any more, or has just become one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fencepost.application import step
from fencepost.application.lane import Lane
from fencepost.application.ports import LaneState
from fencepost.domain.ids import Signer
from fencepost.domain.states import CursorState
from fencepost.errors import Fenced
from fencepost.lab.sim.ledger import FakeLedger
from fencepost.runtime import lanes as lanes_module
from mutants.planting import Change


def no_reconcile() -> list[Change]:
    async def nothing(lane: Lane) -> None:
        state = await lane.ledger.load(lane.signer, queue_limit=lane.policy.read_ahead)
        lane.adopt(replace(state, in_flight=()), queue_limit=lane.policy.read_ahead)
        lane.reconciled = True

    return [(step, "reconcile", nothing)]


def trusts_for_ever() -> list[Change]:
    return [(Lane, "require_trust", lambda _: None)]


def goes_on_after_fenced() -> list[Change]:
    honest = step.step

    async def go_on(lane: Lane, at_most: int) -> float | None:
        try:
            return await honest(lane, at_most)
        except Fenced:
            lane.reconciled = False
            return 1.0

    return [(lanes_module, "step", go_on)]


def protect_forgotten() -> list[Change]:
    """A take-over begins with a clean slate."""
    honest = Lane.adopt

    def adopt(self: Lane, state: LaneState, *, queue_limit: int) -> None:
        honest(self, state, queue_limit=queue_limit)
        if self.cursor is not None and self.cursor.state is CursorState.PROTECT:
            self.cursor = self.cursor.changed(state=CursorState.ACTIVE, reason=None)

    return [(Lane, "adopt", adopt), (FakeLedger, "_check_cursor", lambda *_: None)]


def only_hints() -> list[Change]:
    """Whoever has work will say so."""

    async def nothing(_self: FakeLedger, *_: Any, **__: Any) -> Sequence[Signer]:
        return []

    return [(FakeLedger, "signers_with_work", nothing)]
