"""Flaws of terms: what a process does after its lease was lost, or just after it was acquired."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fencepost.application import lane_round
from fencepost.application.lane import Lane
from fencepost.application.lane_round import Outcome
from fencepost.application.ports import LaneState
from fencepost.domain.ids import Signer
from fencepost.domain.states import CursorState
from fencepost.errors import Fenced
from fencepost.runtime import lane_scheduler
from fencepost.testing import InMemoryLedger
from mutants.planting import Change


def no_reconcile() -> list[Change]:
    async def nothing(lane: Lane) -> None:
        state = await lane.ports.ledger.load(lane.signer, queue_limit=lane.settings.read_ahead)
        lane.adopt(replace(state, in_flight=()), queue_limit=lane.settings.read_ahead)
        lane.reconciled = True

    return [(lane_round, "reconcile", nothing)]


def trusts_for_ever() -> list[Change]:
    return [(Lane, "require_trust", lambda _: None)]


def goes_on_after_fenced() -> list[Change]:
    honest = lane_round.run_round

    async def go_on(lanes: Sequence[Lane], at_most: int) -> dict[Signer, Outcome]:
        outcomes = await honest(lanes, at_most)
        for lane in lanes:
            if isinstance(outcomes[lane.signer], Fenced):
                lane.reconciled = False
                outcomes[lane.signer] = 1.0
        return outcomes

    return [(lane_scheduler, "run_round", go_on)]


def protect_forgotten() -> list[Change]:
    """Forget PROTECT at a take-over."""
    honest = Lane.adopt

    def adopt(self: Lane, state: LaneState, *, queue_limit: int) -> None:
        honest(self, state, queue_limit=queue_limit)
        if self.cursor is not None and self.cursor.state is CursorState.PROTECT:
            self.cursor = self.cursor.changed(state=CursorState.ACTIVE, reason=None)

    return [(Lane, "adopt", adopt), (InMemoryLedger, "_check_cursor", lambda *_: None)]


def only_hints() -> list[Change]:
    """Never poll for work; rely on hints."""

    async def nothing(_self: InMemoryLedger, *_: Any, **__: Any) -> Sequence[Signer]:
        return []

    return [(InMemoryLedger, "signers_with_work", nothing)]
