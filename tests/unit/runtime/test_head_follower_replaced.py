"""A chain that was replaced protects every signer of a node, also one that only waits for a block."""

from __future__ import annotations

import pytest

from fakes.bench import CHAIN_ID, Bench
from fakes.rounds import run_alone
from fencepost.application.lane import REPLACED_AFTER_S
from fencepost.domain.states import CursorState
from fencepost.errors import ChainReplaced, RpcUnavailable


@pytest.mark.parametrize(
    ("error", "is_protected"),
    [
        (ChainReplaced("another first block", seen_for_s=REPLACED_AFTER_S), True),
        (ChainReplaced("another first block", seen_for_s=REPLACED_AFTER_S - 1), False),
        (RpcUnavailable("silence"), False),
    ],
)
async def test_signers_without_a_step_of_their_own_are_protected(
    error: Exception, *, is_protected: bool
) -> None:
    bench = Bench()
    at = bench.node()
    await bench.request()
    await at.turn()
    sent = len(bench.chain.sent)
    lane = at.node.lanes.get(bench.signer)
    assert lane is not None
    at.node.chain_views[CHAIN_ID].failed(error)
    await run_alone(lane)
    cursor = bench.database.cursors[bench.signer]
    assert (cursor.state is CursorState.PROTECT) is is_protected
    assert ("another first block" in (cursor.reason or "")) is is_protected
    assert len(bench.chain.sent) == sent
