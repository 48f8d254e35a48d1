"""Answers to sends in progress when an alarm is raised: they are written first, and nothing is signed after it."""

from __future__ import annotations

import pytest

from fakes.bench import Bench
from fencepost.domain.fees import FeeQuote
from fencepost.domain.send_result import SendCategory, SendResult
from fencepost.domain.states import CursorState, State
from fencepost.errors import RpcUnavailable

FOREIGN = SendResult(SendCategory.REPLACEMENT_UNDERPRICED, "a foreign one pays more")
FATAL = SendResult(SendCategory.FATAL, "gas limit reached")
UNDERPRICED = SendResult(SendCategory.UNDERPRICED)


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_send_results_are_written_before_the_alarm(bench: Bench) -> None:
    node = bench.node()
    stolen, *out = await bench.requests(4)
    bench.chain.script_next_sends(FOREIGN)
    await node.turn()
    assert node.lane.is_protected
    assert {bench.state(tx_id) for tx_id in out} == {State.SUBMITTED}
    assert {bench.tx(tx_id).latest.last_result for tx_id in out} == {SendCategory.ACCEPTED}
    assert bench.tx(stolen).latest.sent_count == 1
    shown = [row.event for row in bench.database.journal]
    assert shown.count("SendResult") == 4
    assert shown.index("Protect") > max(at for at, event in enumerate(shown) if event == "SendResult")


@pytest.mark.parametrize("refusal", [FATAL, UNDERPRICED])
async def test_nothing_is_signed_after_an_alarm(bench: Bench, refusal: SendResult) -> None:
    node = bench.node()
    refused, stolen, late = await bench.requests(3)
    bench.chain.script_next_sends(refusal, FOREIGN, refusal)
    await node.turn()
    assert node.lane.is_protected
    assert [len(bench.tx(tx_id).attempts) for tx_id in (refused, stolen, late)] == [1, 1, 1]
    assert [bench.tx(tx_id).latest.sent_count for tx_id in (refused, stolen, late)] == [1, 1, 1]

    bench.chain.mine()  # the endpoint was wrong about the foreign transaction: none of ours is in the pool, and none is lost
    await bench.ask("unprotect", decision="keep")
    for _ in range(6):
        bench.clock.advance(60)
        await node.turn()
        bench.chain.mine(2)
    await node.turn()
    assert bench.state(stolen) is State.CONFIRMED
    assert {bench.tx(tx_id).is_terminal for tx_id in (refused, late)} == {True}


async def test_an_endpoint_that_falls_silent_does_not_delay_the_alarm(bench: Bench) -> None:
    node = bench.node()
    await bench.requests(2)
    bench.chain.script_next_sends(UNDERPRICED, FOREIGN)
    quote = bench.chain.quote_fees

    async def once() -> FeeQuote:
        bench.chain.quote_fees = silent  # type: ignore[method-assign]  # it quotes for the first attempts only
        return await quote()

    async def silent() -> FeeQuote:
        raise RpcUnavailable("no answer")

    bench.chain.quote_fees = once  # type: ignore[method-assign]  # see above
    await node.turn()
    assert bench.database.cursors[bench.signer].state is CursorState.PROTECT
