"""A database that came back without its last commits: bytes of ours may be out at nonces that we don't know of."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, cast

import pytest

from fakes.bench import QUICK, STRICT, Bench, BenchNode
from fencepost.application.lane import Policy
from fencepost.application.ports import Chain
from fencepost.application.sequence import ADOPT_AFTER_S, LAG_RETRY_S, LOOK_EVERY_S
from fencepost.domain.ids import Address
from fencepost.domain.states import CursorState, State
from fencepost.domain.transaction import SignedTx

BOTH = pytest.mark.parametrize("policy", [QUICK, STRICT])


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def one_sent(bench: Bench, policy: Policy) -> BenchNode:
    node = bench.node(policy, name="before")
    await bench.request()
    await node.turn()
    return node


async def lose_what_follows(bench: Bench, node: BenchNode, *, requests: int) -> list[SignedTx]:
    """Of some requests the acceptance is kept, and the rest is lost: here is what went out for them."""
    txs = await bench.requests(requests)
    replica = bench.database.copied()
    await node.turn()
    bench.database.fail_over(replica)
    assert {bench.state(tx_id) for tx_id in txs} == {State.QUEUED}
    bench.clock.advance(60)  # the lease as the replica has it runs out
    return bench.chain.sent[-requests:]


def forget(bench: Bench, lost: list[SignedTx]) -> None:
    """No pool that we can ask has them; they are on their way from somewhere else."""
    for signed in lost:
        bench.chain.drop(signed.hash)


async def test_lost_bytes_that_arrive_late_are_not_sent_a_second_time(bench: Bench) -> None:
    before = await one_sent(bench, QUICK)
    lost = await lose_what_follows(bench, before, requests=2)
    forget(bench, lost)
    after = bench.node(name="after")
    await after.turn(3)
    assert bench.sent_nonces() == [0, 1, 2, 0]  # what is known goes out again, and nothing new

    await bench.chain.send(lost)
    bench.chain.mine(2)
    await after.turn()
    await after.turn_for(ADOPT_AFTER_S)
    cursor = bench.database.cursors[bench.signer]
    assert cursor.state is CursorState.PROTECT
    assert "lost commits" in (cursor.reason or "")
    assert bench.sent_nonces() == [0, 1, 2, 0, 1, 2]


@BOTH
async def test_lost_bytes_that_wait_in_the_pool_protect(bench: Bench, policy: Policy) -> None:
    before = await one_sent(bench, policy)
    bench.chain.mine(2)
    await before.turn()
    await lose_what_follows(bench, before, requests=1)
    after = bench.node(policy, name="after")
    again_s = await after.turn()
    assert again_s == LOOK_EVERY_S
    await after.turn_for(ADOPT_AFTER_S)
    assert "lost commits" in (bench.database.cursors[bench.signer].reason or "")
    assert bench.sent_nonces() == [0, 1]


@BOTH
async def test_an_idle_signer_goes_on_at_once(bench: Bench, policy: Policy) -> None:
    before = await one_sent(bench, policy)
    bench.chain.mine(2)
    await before.turn()
    forget(bench, await lose_what_follows(bench, before, requests=1))
    after = bench.node(policy, name="after")
    await after.turn()
    assert not after.lane.doubts_history
    assert bench.sent_nonces() == [0, 1, 1]


@BOTH
async def test_it_goes_on_when_all_that_is_known_is_consumed(bench: Bench, policy: Policy) -> None:
    before = await one_sent(bench, policy)
    later = await bench.request()
    bench.database.fail_over(bench.database.copied())
    assert before.lane.unmined
    bench.clock.advance(60)
    after = bench.node(policy, name="after")
    await after.turn(2)
    assert (after.lane.doubts_history, bench.state(later)) == (True, State.QUEUED)
    bench.chain.mine(2)
    await after.turn()
    assert (after.lane.doubts_history, bench.state(later)) == (False, State.SUBMITTED)
    assert bench.tx(later).nonce == 1


async def test_a_node_that_lags_is_asked_again(bench: Bench) -> None:
    before = await one_sent(bench, QUICK)
    bench.chain.mine(2)
    await before.turn(2)
    later = await bench.request()
    bench.database.fail_over(bench.database.copied())
    bench.clock.advance(60)
    bench.chain.nonce_lag_blocks = 2
    after = bench.node(name="after")
    again_s = await after.turn()
    assert (again_s, bench.state(later)) == (LAG_RETRY_S, State.QUEUED)
    bench.chain.nonce_lag_blocks = 0
    bench.clock.advance(LAG_RETRY_S)
    await after.turn()
    assert bench.state(later) is State.SUBMITTED


class _Asked:
    """The chain as a node sees it whose first answers about nonces are old, and come late."""

    def __init__(self, bench: Bench, *, takes_s: float = 0.0, old_answers: int = 0) -> None:
        self._bench = bench
        self._takes_s = takes_s
        self._old_answers = old_answers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bench.chain, name)

    async def nonce(self, address: Address, tag: Literal["latest", "pending"]) -> int:
        self._bench.clock.advance(self._takes_s)
        self._old_answers -= 1
        self._bench.chain.nonce_lag_blocks = 2 if self._old_answers >= 0 else 0
        return await self._bench.chain.nonce(address, tag)


async def test_a_look_that_takes_longer_than_the_pause_after_it_is_not_the_last(bench: Bench) -> None:
    before = await one_sent(bench, QUICK)
    bench.chain.mine(2)
    await before.turn(2)
    await bench.request()
    bench.database.fail_over(bench.database.copied())
    bench.clock.advance(60)
    asked = _Asked(bench, takes_s=LAG_RETRY_S, old_answers=9)
    after = bench.node(name="after", chain=cast("Chain", asked))
    assert await after.turn() is not None


async def test_old_answers_end_the_doubt_but_the_chain_is_not_followed(bench: Bench) -> None:
    """What the lost commits had sent is mined: going on behind it would send the same requests once more."""
    before = await one_sent(bench, QUICK)
    bench.chain.mine(2)
    await before.turn(2)
    await lose_what_follows(bench, before, requests=1)
    bench.chain.mine(2)
    asked = _Asked(bench, old_answers=3)
    after = bench.node(name="after", chain=cast("Chain", asked))
    await after.turn()
    assert not after.lane.doubts_history
    await after.turn_for(ADOPT_AFTER_S + LOOK_EVERY_S)
    assert "lost commits" in (bench.database.cursors[bench.signer].reason or "")
    assert bench.sent_nonces() == [0, 1]


async def test_a_wish_that_writes_the_cursor_does_not_end_the_doubt(bench: Bench) -> None:
    await one_sent(bench, QUICK)
    later = await bench.request()
    bench.database.fail_over(bench.database.copied())
    bench.clock.advance(60)
    after = bench.node(name="after")
    await bench.ask("pause")
    await bench.ask("unpause")
    await after.turn()
    after.lane.reconciled = False  # as after a row that moved
    await after.turn(2)
    assert (after.lane.doubts_history, bench.state(later)) == (True, State.QUEUED)


async def test_the_same_history_gives_no_reason_to_wait(bench: Bench) -> None:
    before = await one_sent(bench, replace(QUICK, max_in_flight=4))
    later = await bench.request()
    await before.release()
    after = bench.node(name="after")
    await after.turn()
    assert bench.state(later) is State.SUBMITTED
