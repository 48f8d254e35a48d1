"""A database that came back without its last commits: bytes of ours may be out at nonces that we don't know of."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, cast

import pytest

from fakes.bench import QUICK, STRICT, Bench, BenchNode
from fencepost.application.lane import Policy
from fencepost.application.ports import YOUNG_HISTORY_S, Chain
from fencepost.application.sequence import ADOPT_AFTER_S, LAG_RETRY_S, LOOK_EVERY_S
from fencepost.application.track import SUSPICION_APART_S
from fencepost.domain.ids import Address
from fencepost.domain.managed import Kind
from fencepost.domain.states import CursorState, State
from fencepost.domain.transaction import SignedTx

PIPELINED = replace(QUICK, max_in_flight=4)
BOTH = pytest.mark.parametrize("policy", [PIPELINED, STRICT])


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


def fillers(bench: Bench) -> list[int]:
    return sorted(tx.held_nonce() for tx in bench.database.txs.values() if tx.kind is Kind.FILLER)


async def turn_late(bench: Bench, node: BenchNode, turns: int = 1) -> None:
    """Each as long after the one before as a look in doubt asks for."""
    for _ in range(turns):
        bench.clock.advance(LAG_RETRY_S)
        await node.turn()


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
async def test_fillers_take_as_many_nonces_as_were_allowed_to_wait_and_then_it_goes_on(
    bench: Bench, policy: Policy
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
    assert not after.lane.doubts_history
    assert bench.sent_nonces() == [0, 1, *waiting, waiting[-1] + 1]
    assert "FillDoubt" in bench.events(None)


async def test_what_was_lost_above_a_gap_is_never_mined(bench: Bench) -> None:
    """The pool that is asked forgot the lowest of the lost bytes, and so shows nothing of those above."""
    before = await one_sent(bench, PIPELINED)
    bench.chain.mine(2)
    await before.turn()
    lost = await lose_what_follows(bench, before, requests=3)
    forget(bench, lost[:2])
    after = bench.node(PIPELINED, name="after")
    await after.turn(2)
    # What is left of them waits at a nonce of a filler, which is refused: a person decides.
    assert bench.database.cursors[bench.signer].state is CursorState.PROTECT
    assert fillers(bench) == [1, 2, 3, 4]


async def test_lost_bytes_that_win_against_a_filler_protect(bench: Bench) -> None:
    before = await one_sent(bench, PIPELINED)
    bench.chain.mine(2)
    await before.turn()
    lost = await lose_what_follows(bench, before, requests=3)
    forget(bench, lost)
    after = bench.node(replace(PIPELINED, stale_receipt_timeout_s=SUSPICION_APART_S), name="after")
    await after.turn(2)
    for tx in [tx for tx in bench.database.txs.values() if tx.kind is Kind.FILLER and tx.nonce == 3]:
        bench.chain.drop(tx.latest.signed.hash)
    await bench.chain.send(lost[2:])  # from a node that nobody asked
    bench.chain.mine(3)
    await after.turn_for(4 * SUSPICION_APART_S, every_s=SUSPICION_APART_S)
    cursor = bench.database.cursors[bench.signer]
    assert (cursor.state, cursor.reason) == (
        CursorState.PROTECT,
        "nonce 3 was consumed by a transaction that is not ours",
    )
    assert bench.sent_nonces()[-1:] == [3]  # no request has got a nonce


@BOTH
async def test_it_waits_until_all_that_is_known_is_consumed(bench: Bench, policy: Policy) -> None:
    before = await one_sent(bench, policy)
    later = await bench.request()
    bench.database.fail_over(bench.database.copied())
    assert before.lane.unmined
    bench.clock.advance(60)
    after = bench.node(policy, name="after")
    await after.turn(2)
    assert (after.lane.doubts_history, bench.state(later), fillers(bench)) == (True, State.QUEUED, [])
    bench.chain.mine(2)
    await turn_late(bench, after, 2)
    bench.chain.mine(2)
    await turn_late(bench, after, 2)
    assert (after.lane.doubts_history, bench.state(later)) == (False, State.SUBMITTED)
    assert bench.tx(later).nonce == 1 + policy.window


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
    await turn_late(bench, after, 2)
    assert fillers(bench)
    bench.chain.mine(2)
    await turn_late(bench, after, 2)
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


async def test_old_answers_cost_fillers_and_no_request(bench: Bench) -> None:
    """What the lost commits had sent is mined: going on behind it would send the same requests once more."""
    before = await one_sent(bench, PIPELINED)
    bench.chain.mine(2)
    await before.turn(2)
    await lose_what_follows(bench, before, requests=1)
    bench.chain.mine(2)
    asked = _Asked(bench, old_answers=5)
    after = bench.node(PIPELINED, name="after", chain=cast("Chain", asked))
    await after.turn(2)
    assert fillers(bench) == [1, 2, 3, 4]
    await after.turn_for(4 * SUSPICION_APART_S, every_s=SUSPICION_APART_S)
    assert "not ours" in (bench.database.cursors[bench.signer].reason or "")
    assert set(bench.sent_nonces()[2:]) == {1, 2, 3, 4}


async def test_the_doubt_outlives_its_lane_whatever_was_written_meanwhile(bench: Bench) -> None:
    await one_sent(bench, PIPELINED)
    later = await bench.request()
    bench.database.fail_over(bench.database.copied())
    bench.clock.advance(60)
    after = bench.node(PIPELINED, name="after")
    await bench.ask("pause")
    await bench.ask("unpause")
    await after.turn()
    after.lane.reconciled = False  # as after a row that moved
    await after.turn(2)
    assert (after.lane.doubts_history, bench.state(later)) == (True, State.QUEUED)
    await after.release()  # as after a crash: the cursor was written in this history
    bench.chain.mine(2)
    third = bench.node(PIPELINED, name="third")
    await turn_late(bench, third, 2)
    assert (fillers(bench), bench.state(later)) == ([1, 2, 3, 4], State.QUEUED)


@BOTH
async def test_fillers_that_wait_hold_the_next_owner_as_well(bench: Bench, policy: Policy) -> None:
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
    assert (third.lane.doubts_history, bench.state(later), fillers(bench)) == (True, State.QUEUED, made)
    bench.chain.mine(2)
    await turn_late(bench, third, 2)
    assert (bench.tx(later).nonce, fillers(bench)) == (made[-1] + 1, made)


async def test_what_a_person_decides_does_not_end_the_doubt(bench: Bench) -> None:
    """A person sees what pools show, as we do: what lies above a gap, nobody sees."""
    before = await one_sent(bench, PIPELINED)
    bench.chain.mine(2)
    await before.turn()
    lost = await lose_what_follows(bench, before, requests=3)
    forget(bench, lost[1:2])
    after = bench.node(PIPELINED, name="after")
    await after.turn()
    await after.turn_for(ADOPT_AFTER_S)
    assert bench.database.cursors[bench.signer].state is CursorState.PROTECT
    bench.chain.mine(2)
    await bench.ask("unprotect", decision="adopt")
    await turn_late(bench, after, 2)
    assert fillers(bench) == [2, 3, 4, 5]  # and the lost bytes wait at 3


async def test_where_no_commit_can_be_lost_nothing_is_doubted(bench: Bench) -> None:
    policy = replace(PIPELINED, failover_loses_commits=False)
    await one_sent(bench, policy)
    later = await bench.request()
    bench.database.fail_over(bench.database.copied())
    bench.clock.advance(60)
    after = bench.node(policy, name="after")
    await after.turn()
    assert (bench.state(later), fillers(bench)) == (State.SUBMITTED, [])


# ---- a signer whose cursor was lost as a whole


async def lose_the_beginning(bench: Bench, policy: Policy) -> None:
    """Of the signer's first request the acceptance is kept; that it was sent, and where, is lost."""
    before = bench.node(policy, name="before")
    await bench.request()
    replica = bench.database.copied()
    await before.turn()
    bench.database.fail_over(replica)
    assert bench.signer not in bench.database.cursors
    bench.clock.advance(60)


@pytest.mark.parametrize("policy", [PIPELINED, replace(PIPELINED, start_from="chain"), STRICT])
async def test_a_signer_that_may_be_forgotten_is_not_begun_behind_its_own_bytes(
    bench: Bench, policy: Policy
) -> None:
    await lose_the_beginning(bench, policy)
    bench.chain.mine(2)
    after = bench.node(policy, name="after")
    await after.turn()
    await after.turn_for(ADOPT_AFTER_S + LOOK_EVERY_S)
    assert "lost commits" in (bench.database.cursors[bench.signer].reason or "")
    assert bench.sent_nonces() == [0]


@BOTH
async def test_a_node_that_lags_where_a_forgotten_sequence_begins_costs_fillers(
    bench: Bench, policy: Policy
) -> None:
    await lose_the_beginning(bench, policy)
    bench.chain.mine(2)
    asked = _Asked(bench, old_answers=4)
    after = bench.node(policy, name="after", chain=cast("Chain", asked))
    await after.turn(2)
    assert fillers(bench) == list(range(policy.window))
    await after.turn_for(4 * SUSPICION_APART_S, every_s=SUSPICION_APART_S)
    assert bench.database.cursors[bench.signer].state is CursorState.PROTECT
    assert {tx.kind for tx in bench.database.txs.values() if tx.nonce is not None} == {Kind.FILLER}


@BOTH
async def test_a_signer_that_is_new_long_after_a_fail_over_begins_at_once(
    bench: Bench, policy: Policy
) -> None:
    bench.database.fail_over(bench.database.copied())
    bench.clock.advance(YOUNG_HISTORY_S)
    first = await bench.request()
    await bench.node(policy).turn()
    assert (bench.tx(first).nonce, fillers(bench)) == (0, [])


async def test_the_same_history_gives_no_reason_to_wait(bench: Bench) -> None:
    before = await one_sent(bench, replace(QUICK, max_in_flight=4))
    later = await bench.request()
    await before.release()
    after = bench.node(name="after")
    await after.turn()
    assert bench.state(later) is State.SUBMITTED
