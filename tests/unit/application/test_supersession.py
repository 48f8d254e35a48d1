"""An operator adopts the chain's nonce: a superseded request fails at depth, and a reorg returns its nonce."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from fakes.bench import CHAIN_ID, QUICK, STRICT, Bench, BenchNode
from fencepost.application.lane import LaneSettings
from fencepost.application.track import SUSPICION_INTERVAL_S
from fencepost.domain.states import CursorState, State, SubState

DEEP = replace(QUICK, required=3)
DEEP_STRICT = replace(STRICT, required=3)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def empty_pool(bench: Bench) -> None:
    """Remove everything that a reorg would return to the pool."""
    for tx_hash in bench.chain.pool:
        bench.chain.drop(tx_hash)


async def adopted(bench: Bench, node: BenchNode) -> UUID:
    """Mine a foreign transaction at nonce 0 and let an operator adopt the chain's nonce."""
    tx_id = await bench.request()
    await node.turn()
    bench.chain.drop(bench.tx(tx_id).latest.signed.hash)
    bench.chain.add_foreign_tx(bench.signer.address, nonce=0)
    bench.chain.mine()
    for _ in range(4):
        bench.clock.advance(61)
        await node.turn()
    assert node.lane.is_protected
    command = await bench.ask("unprotect", decision="adopt")
    await node.turn(2)
    outcome = bench.database.outcome(command) or ""
    assert outcome.startswith("active, adopt: the next nonce is ")
    assert "1 transactions lost their nonce" in outcome
    return tx_id


@pytest.mark.parametrize("policy", [DEEP, DEEP_STRICT])
async def test_a_superseded_request_fails_only_at_depth(bench: Bench, policy: LaneSettings) -> None:
    node = bench.node(policy)
    tx_id = await adopted(bench, node)
    sent = len(bench.chain.sent)
    assert (bench.state(tx_id), bench.tx(tx_id).sub_state) == (State.SUBMITTED, SubState.SUPERSEDED)
    bench.chain.mine(2)
    await node.turn(2)
    assert bench.state(tx_id) is State.SUBMITTED
    bench.chain.mine()
    await node.turn()
    assert (bench.state(tx_id), bench.tx(tx_id).sub_state) == (State.FAILED, None)
    assert "not ours" in (bench.tx(tx_id).error or "")
    assert (bench.events(tx_id)[-2:], len(bench.chain.sent)) == (["Supersede", "Lose"], sent)


async def test_requests_behind_a_superseded_one_continue_immediately(bench: Bench) -> None:
    node = bench.node(replace(DEEP, max_in_flight=1))
    await adopted(bench, node)
    later = await bench.request()
    await node.turn()
    assert (bench.state(later), bench.tx(later).nonce) == (State.SUBMITTED, 1)
    assert bench.database.cursors[bench.signer].state is CursorState.ACTIVE


@pytest.mark.parametrize("policy", [DEEP, DEEP_STRICT])
async def test_a_reorg_before_depth_returns_the_nonce(bench: Bench, policy: LaneSettings) -> None:
    node = bench.node(policy)
    tx_id = await adopted(bench, node)
    bench.chain.reorg(1)
    empty_pool(bench)
    again_s = await node.turn()
    assert bench.tx(tx_id).sub_state is SubState.SUPERSEDED  # one read is not enough
    assert again_s is not None
    assert again_s <= SUSPICION_INTERVAL_S
    bench.clock.advance(SUSPICION_INTERVAL_S)
    await node.turn()
    assert (bench.tx(tx_id).sub_state, bench.tx(tx_id).error) == (None, None)
    assert bench.sent_nonces()[-1] == 0
    bench.chain.mine(4)
    await node.turn(2)
    assert bench.state(tx_id) is State.CONFIRMED


async def test_a_lagging_endpoint_returns_no_nonce(bench: Bench) -> None:
    node = bench.node(DEEP)
    tx_id = await adopted(bench, node)
    sent = len(bench.chain.sent)
    bench.chain.mine()
    bench.chain.nonce_lag_blocks = 2
    await node.turn()
    bench.chain.nonce_lag_blocks = 0
    bench.chain.mine()
    await node.turn()
    bench.clock.advance(SUSPICION_INTERVAL_S)
    await node.turn()
    assert (bench.tx(tx_id).sub_state, len(bench.chain.sent)) == (SubState.SUPERSEDED, sent)
    bench.chain.mine(3)
    await node.turn()
    assert bench.state(tx_id) is State.FAILED


async def test_own_bytes_that_a_reorg_mines_instead_are_confirmed(bench: Bench) -> None:
    node = bench.node(DEEP)
    tx_id = await adopted(bench, node)
    bench.chain.reorg(1)
    empty_pool(bench)
    await bench.chain.send([bench.tx(tx_id).latest.signed])  # some pool had kept them
    bench.chain.mine()
    await node.turn()
    assert bench.state(tx_id) is State.TRACKING
    bench.chain.mine(3)
    await node.turn()
    assert (bench.state(tx_id), bench.tx(tx_id).error) == (State.CONFIRMED, None)


@pytest.mark.parametrize("owner", ["same", "new"])
async def test_a_reorg_deeper_than_the_depth_reopens_a_lost_request(bench: Bench, owner: str) -> None:
    node = bench.node(DEEP)
    tx_id = await adopted(bench, node)
    bench.chain.mine(3)
    await node.turn()
    assert bench.state(tx_id) is State.FAILED
    if owner == "new":
        await node.release()
    bench.chain.reorg(4)
    empty_pool(bench)
    if owner == "new":
        node = bench.node(DEEP, name="new")
        await bench.request()
    await node.turn()
    assert (bench.state(tx_id), bench.tx(tx_id).sub_state) == (State.SUBMITTED, SubState.SUPERSEDED)
    bench.clock.advance(SUSPICION_INTERVAL_S)
    await node.turn()
    assert 0 in bench.sent_nonces()[-2:]
    bench.chain.mine(4)
    await node.turn(2)
    assert bench.state(tx_id) is State.CONFIRMED


@pytest.mark.parametrize("is_running", [True, False])
@pytest.mark.parametrize("is_mined", [True, False])
async def test_a_deep_reorg_reopens_a_lost_request_of_a_signer_without_a_lane(
    bench: Bench,
    is_running: bool,  # noqa: FBT001 - a parameter of the test
    is_mined: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    """No request waits for the signer, so only the fork itself can lead a node to it."""
    node = bench.node(DEEP)
    tx_id = await adopted(bench, node)
    bench.chain.mine(3)
    await node.turn()
    assert bench.state(tx_id) is State.FAILED
    await node.release()
    bench.chain.reorg(4)
    empty_pool(bench)
    if is_mined:
        await bench.chain.send([bench.tx(tx_id).latest.signed])
        bench.chain.mine(4)
    if not is_running:
        node = bench.node(DEEP, name="new")
    await node.node.heads_once(CHAIN_ID)
    assert await node.node.acquire_once() == 1
    await node.turn()
    bench.clock.advance(SUSPICION_INTERVAL_S)
    await node.turn()
    bench.chain.mine(4)
    await node.turn(2)
    assert bench.state(tx_id) is State.CONFIRMED


async def test_a_lost_request_whose_nonce_stays_consumed_is_lost_again_after_a_deep_reorg(
    bench: Bench,
) -> None:
    node = bench.node(DEEP)
    tx_id = await adopted(bench, node)
    bench.chain.mine(3)
    await node.turn()
    seen_at = bench.tx(tx_id).lost_at
    assert seen_at is not None
    await node.release()
    bench.chain.reorg(4)
    empty_pool(bench)
    bench.chain.add_foreign_tx(bench.signer.address, nonce=0)
    bench.chain.mine(4)
    node = bench.node(DEEP, name="new")
    await node.node.heads_once(CHAIN_ID)
    assert await node.node.acquire_once() == 1
    await node.turn()
    assert bench.tx(tx_id).sub_state is SubState.SUPERSEDED
    bench.chain.mine(4)
    await node.turn(2)
    tx = bench.tx(tx_id)
    assert (tx.state, tx.mined) == (State.FAILED, None)
    assert tx.lost_at not in (None, seen_at)
    await node.release()
    after = bench.node(DEEP, name="after")
    await after.node.heads_once(CHAIN_ID)
    assert await after.node.acquire_once() == 0  # its evidence is canonical: there is nothing to check


async def test_a_lost_request_that_was_mined_after_a_deep_reorg_is_confirmed(bench: Bench) -> None:
    node = bench.node(DEEP)
    tx_id = await adopted(bench, node)
    bench.chain.mine(3)
    await node.turn()
    assert bench.state(tx_id) is State.FAILED
    bench.chain.reorg(4)
    empty_pool(bench)
    await bench.chain.send([bench.tx(tx_id).latest.signed])
    bench.chain.mine(4)
    await node.turn(2)
    assert bench.state(tx_id) is State.CONFIRMED


@pytest.mark.parametrize("command", ["cancel", "bump", "resubmit"])
async def test_commands_for_a_superseded_request_report_why_they_do_nothing(
    bench: Bench, command: str
) -> None:
    node = bench.node(DEEP)
    tx_id = await adopted(bench, node)
    asked = await bench.ask(command, tx_id)
    await node.turn()
    assert "not ours has its nonce" in (bench.database.outcome(asked) or "")
    assert bench.tx(tx_id).sub_state is SubState.SUPERSEDED


async def test_a_suspended_superseded_request_finishes_when_it_is_resumed(bench: Bench) -> None:
    node = bench.node(DEEP)
    tx_id = await adopted(bench, node)
    await bench.ask("suspend", tx_id)
    await node.turn()
    bench.chain.mine(5)
    await node.turn(2)
    assert bench.state(tx_id) is State.SUSPENDED
    await bench.ask("resume", tx_id)
    await node.turn()
    bench.chain.mine()
    await node.turn()
    assert bench.state(tx_id) is State.FAILED
