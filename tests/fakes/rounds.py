"""Rounds of single lanes, by hand."""

from __future__ import annotations

from fencepost.application.allocate import MAX_NONCES_PER_COMMIT
from fencepost.application.lane import Lane
from fencepost.application.lane_round import run_round


async def run_alone(lane: Lane, at_most: int = MAX_NONCES_PER_COMMIT) -> float | None:
    """Run a round of a lone lane; return the seconds until its next one, or raise why it failed."""
    outcome = (await run_round([lane], at_most))[lane.signer]
    if isinstance(outcome, Exception):
        raise outcome
    return outcome
