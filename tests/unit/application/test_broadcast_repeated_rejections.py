"""A repeated rejection is reported on the transaction; an unavailable revert reason delays no end."""

from __future__ import annotations

import pytest

from fakes.bench import QUICK, Bench
from fencepost.application.broadcast import MAX_BACK_OFF_S, MAX_SAME_REJECTIONS
from fencepost.application.track import MAX_REASON_TRIES
from fencepost.domain.ids import TxHash
from fencepost.domain.send_result import SendCategory, SendResult
from fencepost.domain.states import State, SubState
from fencepost.errors import RpcError, RpcRefused, RpcUnavailable
from fencepost.testing import InMemoryChain


async def test_a_repeated_rejection_marks_the_transaction_stuck_with_its_text() -> None:
    bench = Bench()
    at = bench.node()
    tx_id = await bench.request()
    for number in range(MAX_SAME_REJECTIONS + 3):
        bench.chain.script_next_sends(SendResult(SendCategory.UNKNOWN, f"no room for {number} flowers"))
        await at.turn()
        bench.clock.advance(MAX_BACK_OFF_S + 1)
        is_stuck = bench.tx(tx_id).sub_state is SubState.STUCK
        assert is_stuck == (number + 1 >= MAX_SAME_REJECTIONS)
    assert "no room for" in (bench.tx(tx_id).error or "")
    assert bench.events(tx_id).count("Stuck") == 1
    assert len(bench.chain.sent) == MAX_SAME_REJECTIONS + 3  # it is still sent
    await at.turn()
    assert (bench.tx(tx_id).sub_state, bench.tx(tx_id).error) == (None, None)


async def test_different_rejections_are_not_counted_together() -> None:
    bench = Bench()
    at = bench.node()
    tx_id = await bench.request()
    for number in range(2 * MAX_SAME_REJECTIONS):
        bench.chain.script_next_sends(SendResult(SendCategory.UNKNOWN, "ab"[number % 2]))
        await at.turn()
        bench.clock.advance(MAX_BACK_OFF_S + 1)
    assert bench.tx(tx_id).sub_state is not SubState.STUCK


async def test_a_repeatedly_rejected_transaction_is_not_bumped() -> None:
    bench = Bench()
    at = bench.node(QUICK.__class__(strict=False, required=1, bump_enabled=True, bump_after_resubmits=20))
    tx_id = await bench.request()
    for _ in range(MAX_SAME_REJECTIONS + 20):
        bench.chain.script_next_sends(SendResult(SendCategory.UNKNOWN, "no"))
        await at.turn()
        bench.clock.advance(MAX_BACK_OFF_S + 1)
    assert len(bench.tx(tx_id).attempts) == 1


class _Forgetful(InMemoryChain):
    """A chain that answers everything but revert reasons."""

    error: RpcError = RpcUnavailable("HTTP 403")

    async def revert_reason(self, tx_hash: TxHash) -> str | None:  # noqa: ARG002 - the port names it
        raise self.error


@pytest.mark.parametrize("error", [RpcUnavailable("HTTP 403"), RpcRefused("missing trie node")])
async def test_an_unavailable_revert_reason_delays_neither_the_end_nor_other_transactions(
    error: RpcError,
) -> None:
    bench = Bench()
    bench.chain.__class__ = _Forgetful
    bench.chain.error = error  # type: ignore[attr-defined]  # of the class that it is now
    at = bench.node()
    reverted, fine = await bench.requests(2)
    await at.turn()
    bench.chain.reverting[bench.tx(reverted).latest.signed.hash] = "not today"
    bench.chain.mine(2)
    again_s = await at.turn()
    assert bench.state(fine) is State.CONFIRMED  # it does not wait for the other's reason
    later = await bench.request()
    for _ in range(MAX_REASON_TRIES):
        assert again_s is not None
        bench.clock.advance(again_s)
        again_s = await at.turn()
    assert bench.state(reverted) is State.FAILED
    assert "not known" in (bench.tx(reverted).error or "")
    assert bench.state(later) is State.SUBMITTED
