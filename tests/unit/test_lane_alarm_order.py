"""Answers to sends that were under way when an alarm comes: they are written first, and nothing is made after it."""

from __future__ import annotations

import pytest

from fakes.bench import Bench
from fencepost.domain.send import SendCategory, SendResult
from fencepost.domain.states import CursorState, State
from fencepost.domain.transaction import Fees
from fencepost.errors import RpcUnavailable

STRANGER = SendResult(SendCategory.REPLACEMENT_UNDERPRICED, "a stranger's pays more")
FATAL = SendResult(SendCategory.FATAL, "gas limit reached")
UNDERPRICED = SendResult(SendCategory.UNDERPRICED)


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_what_is_out_is_written_before_the_alarm(bench: Bench) -> None:
    node = bench.node()
    stolen, *out = await bench.requests(4)
    bench.chain.fault_next_sends(STRANGER)
    await node.turn()
    assert node.lane.is_protected
    assert {bench.state(tx_id) for tx_id in out} == {State.SUBMITTED}
    assert {bench.tx(tx_id).latest.last_result for tx_id in out} == {SendCategory.ACCEPTED}
    assert bench.tx(stolen).latest.sent_count == 1
    told = [row.event for row in bench.database.journal]
    assert told.count("SendResult") == 4
    assert told.index("Protect") > max(at for at, event in enumerate(told) if event == "SendResult")


@pytest.mark.parametrize("refusal", [FATAL, UNDERPRICED])
async def test_no_bytes_are_made_after_an_alarm(bench: Bench, refusal: SendResult) -> None:
    node = bench.node()
    refused, stolen, late = await bench.requests(3)
    bench.chain.fault_next_sends(refusal, STRANGER, refusal)
    await node.turn()
    assert node.lane.is_protected
    assert [len(bench.tx(tx_id).attempts) for tx_id in (refused, stolen, late)] == [1, 1, 1]
    assert [bench.tx(tx_id).latest.sent_count for tx_id in (refused, stolen, late)] == [1, 1, 1]

    bench.chain.mine()  # the stranger's was a mistake of the node's: nothing of ours is in the pool, and nothing is lost
    await bench.ask("unprotect", decision="keep")
    for _ in range(6):
        bench.clock.advance(60)
        await node.turn()
        bench.chain.mine(2)
    await node.turn()
    assert bench.state(stolen) is State.CONFIRMED
    assert {bench.tx(tx_id).is_terminal for tx_id in (refused, late)} == {True}


async def test_a_node_that_falls_silent_after_the_answers_does_not_keep_the_alarm_back(bench: Bench) -> None:
    node = bench.node()
    await bench.requests(2)
    bench.chain.fault_next_sends(UNDERPRICED, STRANGER)
    quote = bench.chain.quote_fees

    async def once() -> Fees:
        bench.chain.quote_fees = silent  # type: ignore[method-assign]  # it quotes for the first attempts only
        return await quote()

    async def silent() -> Fees:
        raise RpcUnavailable("no answer")

    bench.chain.quote_fees = once  # type: ignore[method-assign]  # see above
    await node.turn()
    assert bench.database.cursors[bench.signer].state is CursorState.PROTECT
