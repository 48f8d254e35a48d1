"""A database without its last commits: sent bytes may exist at nonces above the cursor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, cast

import pytest

from fakes.bench import QUICK, STRICT, Bench, BenchNode
from fencepost.application.lane import LaneSettings
from fencepost.application.nonce_sync import (
    ADOPT_AFTER_S,
    CHECK_INTERVAL_S,
    LAG_RETRY_S,
    POOL_WAIT_S,
    REFUSALS_BEFORE_PROTECT,
)
from fencepost.application.ports import YOUNG_HISTORY_S, Chain, KeyPort
from fencepost.application.track import SUSPICION_INTERVAL_S
from fencepost.domain.ids import Address
from fencepost.domain.states import CursorState, State
from fencepost.domain.transaction import SignedTx, UnsignedTx
from fencepost.domain.transaction_state import Kind
from fencepost.errors import SigningRefused

PIPELINED = replace(QUICK, max_in_flight=4)
BOTH = pytest.mark.parametrize("policy", [PIPELINED, STRICT])


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def one_sent(bench: Bench, policy: LaneSettings) -> BenchNode:
    node = bench.node(policy, name="before")
    await bench.request()
    await node.turn()
    return node


async def lose_what_follows(bench: Bench, node: BenchNode, *, requests: int) -> list[SignedTx]:
    """Keep the acceptance of some requests and lose the rest; return what was sent for them."""
    txs = await bench.requests(requests)
    replica = bench.database.copied()
    await node.turn()
    bench.database.fail_over(replica)
    assert {bench.state(tx_id) for tx_id in txs} == {State.QUEUED}
    bench.clock.advance(60)  # the lease in the replica expires
    return bench.chain.sent[-requests:]


def fillers(bench: Bench) -> list[int]:
    return sorted(tx.held_nonce() for tx in bench.database.txs.values() if tx.kind is Kind.FILLER)


async def turn_late(bench: Bench, node: BenchNode, turns: int = 1) -> None:
    """Take turns, each as long after the previous one as a doubtful cursor requires."""
    for _ in range(turns):
        bench.clock.advance(LAG_RETRY_S)
        await node.turn()


def forget(bench: Bench, lost: list[SignedTx]) -> None:
    """Remove them from every pool that answers; they arrive later from another one."""
    for signed in lost:
        bench.chain.drop(signed.hash)


async def test_lost_bytes_that_arrive_late_are_not_sent_a_second_time(bench: Bench) -> None:
    before = await one_sent(bench, QUICK)
    lost = await lose_what_follows(bench, before, requests=2)
    forget(bench, lost)
    after = bench.node(name="after")
    await after.turn(3)
    assert bench.sent_nonces() == [0, 1, 2, 0]  # known bytes are sent again, and nothing new

    await bench.chain.send(lost)
    bench.chain.mine(2)
    await after.turn()
    await after.turn_for(2 * ADOPT_AFTER_S)
    assert {(tx.state, tx.hash) for tx in bench.database.txs.values() if tx.nonce} == {
        (State.CONFIRMED, signed.hash) for signed in lost
    }
    assert bench.sent_nonces() == [0, 1, 2, 0, 1, 2]  # the last two are the late ones themselves


@BOTH
async def test_the_lane_waits_for_lost_bytes_in_the_pool(bench: Bench, policy: LaneSettings) -> None:
    before = await one_sent(bench, policy)
    bench.chain.mine(2)
    await before.turn()
    (lost,) = await lose_what_follows(bench, before, requests=1)
    after = bench.node(policy, name="after")
    again_s = await after.turn()
    assert again_s == CHECK_INTERVAL_S
    await after.turn_for(2 * ADOPT_AFTER_S)
    assert bench.sent_nonces() == [0, 1]
    bench.chain.mine(2)
    await after.turn_for(2 * ADOPT_AFTER_S)
    assert {(tx.state, tx.hash) for tx in bench.database.txs.values() if tx.nonce == 1} == {
        (State.CONFIRMED, lost.hash)
    }
    assert bench.sent_nonces() == [0, 1]


@BOTH
async def test_lost_bytes_that_stay_in_the_pool_protect(bench: Bench, policy: LaneSettings) -> None:
    before = await one_sent(bench, policy)
    bench.chain.mine(2)
    await before.turn()
    await lose_what_follows(bench, before, requests=1)
    after = bench.node(policy, name="after")
    await after.turn()
    await after.turn_for(ADOPT_AFTER_S + POOL_WAIT_S)
    reason = bench.database.cursors[bench.signer].reason or ""
    assert "lost commits" in reason
    assert "pool" in reason
    assert bench.sent_nonces() == [0, 1]


@BOTH
async def test_fillers_take_a_window_of_nonces_and_then_requests_continue(
    bench: Bench, policy: LaneSettings
) -> None:
    before = await one_sent(bench, policy)
    bench.chain.mine(2)
    await before.turn()
    forget(bench, await lose_what_follows(bench, before, requests=1))
    after = bench.node(policy, name="after")
    await after.turn(2)
    waiting = [1] if policy.strict else [1, 2, 3, 4]
    assert fillers(bench) == waiting
    assert bench.sent_nonces() == [0, 1, *waiting]
    bench.chain.mine(1)  # in a block, but not deep enough to count
    await turn_late(bench, after)
    assert fillers(bench) == waiting
    assert bench.sent_nonces() == [0, 1, *waiting]
    bench.chain.mine(1)
    await turn_late(bench, after, 2)
    assert not after.lane.suspicion.doubts_history
    assert bench.sent_nonces() == [0, 1, *waiting, waiting[-1] + 1]
    assert "FillDoubt" in bench.events(None)


async def test_lost_bytes_above_a_gap_are_never_mined(bench: Bench) -> None:
    """The pool forgot the lowest of the lost bytes, and so shows none of those above."""
    before = await one_sent(bench, PIPELINED)
    bench.chain.mine(2)
    await before.turn()
    lost = await lose_what_follows(bench, before, requests=3)
    forget(bench, lost[:2])
    after = bench.node(PIPELINED, name="after")
    await after.turn(2)
    # The rest wait at the nonce of a filler, which is rejected: an operator decides.
    assert bench.database.cursors[bench.signer].state is CursorState.PROTECT
    assert fillers(bench) == [1, 2, 3, 4]


async def test_lost_bytes_that_win_against_a_filler_protect(bench: Bench) -> None:
    before = await one_sent(bench, PIPELINED)
    bench.chain.mine(2)
    await before.turn()
    lost = await lose_what_follows(bench, before, requests=3)
    forget(bench, lost)
    after = bench.node(replace(PIPELINED, stale_receipt_timeout_s=SUSPICION_INTERVAL_S), name="after")
    await after.turn(2)
    for tx in [tx for tx in bench.database.txs.values() if tx.kind is Kind.FILLER and tx.nonce == 3]:
        bench.chain.drop(tx.latest.signed.hash)
    await bench.chain.send(lost[2:])  # from an endpoint that is not configured
    bench.chain.mine(3)
    await after.turn_for(4 * SUSPICION_INTERVAL_S, every_s=SUSPICION_INTERVAL_S)
    cursor = bench.database.cursors[bench.signer]
    assert cursor.state is CursorState.PROTECT
    assert f"nonce 3 was consumed by a transaction that is not ours: {lost[2].hash}" in (cursor.reason or "")
    assert bench.sent_nonces()[-1:] == [3]  # no request has a nonce


@BOTH
async def test_the_lane_waits_until_all_known_nonces_are_consumed(bench: Bench, policy: LaneSettings) -> None:
    before = await one_sent(bench, policy)
    later = await bench.request()
    bench.database.fail_over(bench.database.copied())
    assert before.lane.unmined
    bench.clock.advance(60)
    after = bench.node(policy, name="after")
    await after.turn(2)
    assert (after.lane.suspicion.doubts_history, bench.state(later), fillers(bench)) == (
        True,
        State.QUEUED,
        [],
    )
    bench.chain.mine(2)
    await turn_late(bench, after, 2)
    bench.chain.mine(2)
    await turn_late(bench, after, 2)
    assert (after.lane.suspicion.doubts_history, bench.state(later)) == (False, State.SUBMITTED)
    assert bench.tx(later).nonce == 1 + policy.window


async def test_a_lagging_endpoint_is_read_again(bench: Bench) -> None:
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
    await turn_late(bench, after, 2)
    assert fillers(bench)
    bench.chain.mine(2)
    await turn_late(bench, after, 2)
    assert bench.state(later) is State.SUBMITTED


class _Asked:
    """A chain as a lagging endpoint shows it: its first answers about nonces are old and late."""

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


async def test_a_read_longer_than_the_following_pause_is_not_the_last(bench: Bench) -> None:
    before = await one_sent(bench, QUICK)
    bench.chain.mine(2)
    await before.turn(2)
    await bench.request()
    bench.database.fail_over(bench.database.copied())
    bench.clock.advance(60)
    asked = _Asked(bench, takes_s=LAG_RETRY_S, old_answers=9)
    after = bench.node(name="after", chain=cast("Chain", asked))
    assert await after.turn() is not None


async def test_old_answers_cost_fillers_and_no_request(bench: Bench) -> None:
    """The bytes of the lost commits are mined: continuing behind them would send the same requests again."""
    before = await one_sent(bench, PIPELINED)
    bench.chain.mine(2)
    await before.turn(2)
    await lose_what_follows(bench, before, requests=1)
    bench.chain.mine(2)
    asked = _Asked(bench, old_answers=8)
    after = bench.node(PIPELINED, name="after", chain=cast("Chain", asked))
    await after.turn(2)
    assert fillers(bench) == [1, 2, 3, 4]
    await after.turn_for(4 * SUSPICION_INTERVAL_S, every_s=SUSPICION_INTERVAL_S)
    assert "not ours" in (bench.database.cursors[bench.signer].reason or "")
    assert set(bench.sent_nonces()[2:]) == {1, 2, 3, 4}


async def test_the_doubt_outlives_its_lane_across_later_writes(bench: Bench) -> None:
    await one_sent(bench, PIPELINED)
    later = await bench.request()
    bench.database.fail_over(bench.database.copied())
    bench.clock.advance(60)
    after = bench.node(PIPELINED, name="after")
    await bench.ask("pause")
    await bench.ask("unpause")
    await after.turn()
    after.lane.reconciled = False  # as after a changed row
    await after.turn(2)
    assert (after.lane.suspicion.doubts_history, bench.state(later)) == (True, State.QUEUED)
    await after.release()  # as after a crash: the cursor was written in this history
    bench.chain.mine(2)
    third = bench.node(PIPELINED, name="third")
    await turn_late(bench, third, 2)
    assert (fillers(bench), bench.state(later)) == ([1, 2, 3, 4], State.QUEUED)


@BOTH
async def test_waiting_fillers_delay_the_next_owner_as_well(bench: Bench, policy: LaneSettings) -> None:
    before = await one_sent(bench, policy)
    bench.chain.mine(2)
    await before.turn()
    later = await bench.request()
    bench.database.fail_over(bench.database.copied())
    bench.clock.advance(60)
    after = bench.node(policy, name="after")
    await after.turn()  # stored, and never sent
    made = fillers(bench)
    assert len(made) == policy.window
    await after.release()
    third = bench.node(policy, name="third")
    await turn_late(bench, third, 2)
    assert (third.lane.suspicion.doubts_history, bench.state(later), fillers(bench)) == (
        True,
        State.QUEUED,
        made,
    )
    bench.chain.mine(2)
    await turn_late(bench, third, 2)
    assert (bench.tx(later).nonce, fillers(bench)) == (made[-1] + 1, made)


async def test_an_operator_decision_does_not_end_the_doubt(bench: Bench) -> None:
    """An operator sees what pools show: bytes above a gap are invisible."""
    before = await one_sent(bench, PIPELINED)
    bench.chain.mine(2)
    await before.turn()
    lost = await lose_what_follows(bench, before, requests=3)
    forget(bench, lost[1:2])
    after = bench.node(PIPELINED, name="after")
    await after.turn()
    await after.turn_for(ADOPT_AFTER_S + POOL_WAIT_S)
    assert bench.database.cursors[bench.signer].state is CursorState.PROTECT
    bench.chain.mine(2)
    await bench.ask("unprotect", decision="adopt")
    await turn_late(bench, after, 3)
    assert [tx.state for tx in bench.database.txs.values() if tx.hash == lost[0].hash] == [State.CONFIRMED]
    assert fillers(bench) == [2, 3, 4, 5]  # the lost bytes wait at nonce 3


async def test_without_possible_commit_loss_nothing_is_doubted(bench: Bench) -> None:
    policy = replace(PIPELINED, failover_loses_commits=False)
    await one_sent(bench, policy)
    later = await bench.request()
    bench.database.fail_over(bench.database.copied())
    bench.clock.advance(60)
    after = bench.node(policy, name="after")
    await after.turn()
    assert (bench.state(later), fillers(bench)) == (State.SUBMITTED, [])


async def test_a_copy_is_doubted_even_without_lossy_fail_overs(bench: Bench) -> None:
    policy = replace(PIPELINED, failover_loses_commits=False)
    before = await one_sent(bench, policy)
    bench.chain.mine(2)
    await before.turn()
    later = await bench.request()
    bench.database.restore(bench.database.copied())
    bench.clock.advance(60)
    first = bench.node(policy, name="first")
    await first.turn(2)
    assert (bench.state(later), fillers(bench)) == (State.QUEUED, [1, 2, 3, 4])
    await first.release()
    second = bench.node(policy, name="second")  # the doubt outlives its lane
    await second.turn(2)
    assert bench.state(later) is State.QUEUED
    bench.chain.mine(2)
    await turn_late(bench, second, 2)
    assert (bench.state(later), bench.tx(later).nonce) == (State.SUBMITTED, 5)


async def test_a_cursor_newer_than_its_copy_is_doubted_even_without_lossy_fail_overs(
    bench: Bench,
) -> None:
    policy = replace(PIPELINED, failover_loses_commits=False)
    await bench.request()
    bench.database.restore(bench.database.copied())
    await bench.node(policy).turn()
    assert bench.database.cursors[bench.signer].next_nonce == 4
    assert fillers(bench) == [0, 1, 2, 3]


# ---- a signer whose cursor was lost as a whole


async def lose_the_beginning(bench: Bench, policy: LaneSettings) -> None:
    """Keep the acceptance of the signer's first request; lose its send and its nonce."""
    before = bench.node(policy, name="before")
    await bench.request()
    replica = bench.database.copied()
    await before.turn()
    bench.database.fail_over(replica)
    assert bench.signer not in bench.database.cursors
    bench.clock.advance(60)


@pytest.mark.parametrize("policy", [PIPELINED, replace(PIPELINED, start_from="chain"), STRICT])
async def test_a_possibly_forgotten_signer_does_not_begin_behind_its_own_bytes(
    bench: Bench, policy: LaneSettings
) -> None:
    await lose_the_beginning(bench, policy)
    bench.chain.mine(2)
    after = bench.node(policy, name="after")
    await after.turn()
    await after.turn_for(2 * ADOPT_AFTER_S)
    (tx,) = bench.database.txs.values()
    assert (tx.state, tx.nonce, tx.hash) == (State.CONFIRMED, 0, bench.chain.sent[0].hash)
    assert bench.sent_nonces() == [0]


@BOTH
async def test_a_lagging_endpoint_at_the_start_of_a_forgotten_sequence_costs_fillers(
    bench: Bench, policy: LaneSettings
) -> None:
    await lose_the_beginning(bench, policy)
    bench.chain.mine(2)
    asked = _Asked(bench, old_answers=8)
    after = bench.node(policy, name="after", chain=cast("Chain", asked))
    await after.turn(2)
    assert fillers(bench) == list(range(policy.window))
    await after.turn_for(4 * SUSPICION_INTERVAL_S, every_s=SUSPICION_INTERVAL_S)
    assert bench.database.cursors[bench.signer].state is CursorState.PROTECT
    assert {tx.kind for tx in bench.database.txs.values() if tx.nonce is not None} == {Kind.FILLER}


@BOTH
async def test_a_new_signer_long_after_a_fail_over_begins_immediately(
    bench: Bench, policy: LaneSettings
) -> None:
    bench.database.fail_over(bench.database.copied())
    bench.clock.advance(YOUNG_HISTORY_S)
    first = await bench.request()
    await bench.node(policy).turn()
    assert (bench.tx(first).nonce, fillers(bench)) == (0, [])


async def test_an_unchanged_history_causes_no_wait(bench: Bench) -> None:
    before = await one_sent(bench, replace(QUICK, max_in_flight=4))
    later = await bench.request()
    await before.release()
    after = bench.node(name="after")
    await after.turn()
    assert bench.state(later) is State.SUBMITTED


async def test_a_resolved_doubt_ends_within_the_term(bench: Bench) -> None:
    before = await one_sent(bench, PIPELINED)
    bench.chain.mine(2)
    await before.turn()
    forget(bench, await lose_what_follows(bench, before, requests=1))
    after = bench.node(PIPELINED, name="after")
    await after.turn()
    assert after.lane.suspicion.has_doubted
    for _ in range(4):
        bench.chain.mine(2)
        await turn_late(bench, after, 2)
    assert not after.lane.suspicion.doubts_history
    assert not after.lane.suspicion.has_doubted


class _NoFillers(KeyPort):
    """A key store that signs no transfers to oneself until it may."""

    def __init__(self, keys: KeyPort) -> None:
        self._keys = keys
        self.may_sign = False

    def addresses(self) -> Sequence[Address]:
        return self._keys.addresses()

    async def sign(self, address: Address, txs: Sequence[UnsignedTx]) -> Sequence[SignedTx]:
        if not self.may_sign and any(tx.call.to == address for tx in txs):
            raise SigningRefused("the receiver is not on the list")
        return await self._keys.sign(address, txs)


@BOTH
async def test_rejected_filler_signatures_call_an_operator(bench: Bench, policy: LaneSettings) -> None:
    before = await one_sent(bench, policy)
    bench.chain.mine(2)
    await before.turn(2)
    await bench.request()
    bench.database.fail_over(bench.database.copied())
    bench.clock.advance(60)
    keys = _NoFillers(bench.keys)
    after = bench.node(policy, name="after", keys=keys)
    sent = len(bench.chain.sent)
    await after.turn()
    await turn_late(bench, after, REFUSALS_BEFORE_PROTECT)
    cursor = bench.database.cursors[bench.signer]
    assert cursor.state is CursorState.PROTECT
    assert "the receiver is not on the list" in (cursor.reason or "")
    assert cursor.is_doubted
    keys.may_sign = True
    await bench.ask("unprotect", decision="keep")
    await after.turn()
    await turn_late(bench, after, 2)
    assert fillers(bench) == list(range(1, 1 + policy.window))
    assert len(bench.chain.sent) == sent + policy.window
