"""What people ask of a lane: cancel, suspend, resume, resubmit, bump, pause, protect and their opposites."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fakes.bench import CHAIN_ID, GWEI, QUICK, STRICT, Bench, decode
from fencepost.application.step import step
from fencepost.domain.managed import Purpose
from fencepost.domain.states import CursorState, State
from fencepost.errors import RpcUnavailable, SignerProtected
from fencepost.lab.sim.chain import Lost


@pytest.fixture
def bench() -> Bench:
    return Bench()


# ---- cancel


async def test_cancelled_before_its_nonce_it_never_has_one(bench: Bench) -> None:
    node = bench.node(STRICT)
    first, second, third = await bench.requests(3)
    await node.turn()
    wish = await bench.ask("cancel", second, reason="changed my mind")
    await node.turn()
    assert (bench.state(second), bench.tx(second).error) == (State.CANCELLED, "changed my mind")
    assert bench.database.outcome(wish) == "dropped before it had a nonce"
    bench.chain.mine(2)
    await node.turn(2)
    assert (bench.state(first), bench.tx(third).nonce) == (State.CONFIRMED, 1)


async def test_cancelled_after_its_nonce_a_filler_takes_it(bench: Bench) -> None:
    node = bench.node()
    tx_id = await bench.request()
    await node.turn()
    await bench.ask("cancel", tx_id)
    await node.turn()
    tx = bench.tx(tx_id)
    assert (tx.ending, tx.latest.purpose) == (State.CANCELLED, Purpose.FILLER)
    assert bench.chain.pool == {tx.latest.signed.hash}
    again = await bench.ask("cancel", tx_id)
    await node.turn()
    assert bench.database.outcome(again) == "it is being cancelled already"
    bench.chain.mine(2)
    await node.turn(2)
    assert (bench.state(tx_id), bench.tx(tx_id).error) == (State.CANCELLED, "cancelled by eve")
    assert decode(tx.latest.signed.raw)[1].nonce == 0


async def test_a_cancel_that_loses_the_race_is_a_confirmation(bench: Bench) -> None:
    node = bench.node()
    tx_id = await bench.request()
    await node.turn()
    original = bench.tx(tx_id).latest.signed.hash
    await bench.ask("cancel", tx_id)
    bench.chain.fault_next_sends(Lost.BEFORE)
    await node.turn()
    bench.chain.mine(2, only=[original])
    bench.clock.advance(1)
    await node.turn(2)
    tx = bench.tx(tx_id)
    assert (tx.state, tx.hash, tx.error) == (State.CONFIRMED, original, None)


async def test_what_is_mined_or_ended_is_not_cancelled(bench: Bench) -> None:
    node = bench.node()
    tx_id = await bench.request()
    await node.turn()
    bench.chain.mine()
    await node.turn()
    mined = await bench.ask("cancel", tx_id)
    await node.turn()
    assert bench.database.outcome(mined) == "it is mined already"
    bench.chain.mine()
    await node.turn()
    ended = await bench.ask("cancel", tx_id)
    await node.turn()
    assert bench.database.outcome(ended) == "it has ended: CONFIRMED"


async def test_a_wish_for_a_transaction_that_is_not_there_is_answered(bench: Bench) -> None:
    node = bench.node()
    tx_id = await bench.request()
    wish = await bench.ask(
        "cancel", (await bench.accepting.ledger.load_queue(bench.signer, limit=1))[0].tx_id
    )
    ghost = await bench.ask("cancel", type(tx_id)(int=7))
    odd = await bench.ask("resume", tx_id)
    await node.turn()
    assert bench.database.outcome(wish) == "dropped before it had a nonce"
    assert bench.database.outcome(ghost) == "no such transaction of this signer"
    assert bench.database.outcome(odd) == "it has ended: CANCELLED"


# ---- suspend and resume


async def test_suspended_in_the_queue_it_waits_while_others_pass(bench: Bench) -> None:
    node = bench.node()
    tx_id, other = await bench.requests(2)
    await bench.ask("suspend", tx_id)
    await node.turn()
    assert (bench.state(tx_id), bench.tx(other).nonce) == (State.SUSPENDED, 0)
    await bench.ask("resume", tx_id)
    await node.turn()
    assert (bench.state(tx_id), bench.tx(tx_id).nonce) == (State.SUBMITTED, 1)


async def test_suspended_with_a_nonce_it_is_not_sent_and_the_lane_does_not_spin(bench: Bench) -> None:
    node = bench.node()
    tx_id = await bench.request()
    await node.turn()
    await bench.ask("suspend", tx_id)
    await node.turn()
    sent = len(bench.chain.sent)
    for _ in range(3):
        bench.clock.advance(120)
        again_s = await node.turn()
        assert again_s is None or again_s > 0
    assert len(bench.chain.sent) == sent
    await bench.ask("resume", tx_id)
    await node.turn()
    assert (bench.state(tx_id), len(bench.chain.sent)) == (State.SUBMITTED, sent + 1)


async def test_mined_while_suspended_it_ends_after_the_resume(bench: Bench) -> None:
    node = bench.node()
    tx_id = await bench.request()
    await node.turn()
    await bench.ask("suspend", tx_id)
    await node.turn()
    bench.chain.mine(4)
    await node.turn(2)
    assert bench.state(tx_id) is State.SUSPENDED
    await bench.ask("resume", tx_id)
    await node.turn(2)
    assert bench.state(tx_id) is State.CONFIRMED
    assert len(bench.chain.sent) == 1


async def test_a_suspended_one_may_be_cancelled(bench: Bench) -> None:
    node = bench.node()
    queued, out = await bench.requests(2)
    await bench.ask("suspend", queued)
    await node.turn()
    await bench.ask("suspend", out)
    await node.turn()
    await bench.ask("cancel", queued)
    await bench.ask("cancel", out)
    await node.turn()
    assert bench.state(queued) is State.CANCELLED
    bench.chain.mine(2)
    await node.turn(2)
    assert bench.state(out) is State.CANCELLED


# ---- resubmit and bump


async def test_resubmit_sends_the_same_bytes_now(bench: Bench) -> None:
    node = bench.node(replace(QUICK, resubmit_enabled=False))
    tx_id = await bench.request()
    await node.turn()
    await bench.ask("resubmit", tx_id)
    await node.turn()
    assert [signed.hash for signed in bench.chain.sent] == [bench.tx(tx_id).latest.signed.hash] * 2


async def test_bump_replaces_at_a_better_price(bench: Bench) -> None:
    node = bench.node()
    tx_id = await bench.request()
    await node.turn()
    wish = await bench.ask("bump", tx_id)
    await node.turn()
    assert len(bench.tx(tx_id).attempts) == 2
    assert bench.chain.pool == {bench.tx(tx_id).latest.signed.hash}
    assert (bench.database.outcome(wish) or "").startswith("attempt 2 pays ")


async def test_bump_at_the_cap_is_answered(bench: Bench) -> None:
    node = bench.node(replace(QUICK, fee_cap_wei=3 * GWEI))
    tx_id = await bench.request()
    await node.turn()
    wish = await bench.ask("bump", tx_id)
    await node.turn()
    assert "cap" in (bench.database.outcome(wish) or "")
    assert len(bench.tx(tx_id).attempts) == 1


async def test_a_wish_that_a_silent_node_held_up_is_carried_out_later(bench: Bench) -> None:
    node = bench.node()
    tx_id = await bench.request()
    await node.turn()
    await bench.ask("bump", tx_id)
    node.node.hint(bench.signer)
    bench.chain.offline = True
    with pytest.raises(RpcUnavailable):
        await step(node.lane)
    bench.chain.offline = False
    await step(node.lane)
    assert len(bench.tx(tx_id).attempts) == 2


# ---- the signer


async def test_a_paused_signer_finishes_what_has_a_nonce(bench: Bench) -> None:
    node = bench.node(STRICT)
    first, second = await bench.requests(2)
    await node.turn()
    await bench.ask("pause", reason="maintenance")
    bench.chain.mine(3)
    await node.turn(3)
    assert (bench.state(first), bench.state(second)) == (State.CONFIRMED, State.QUEUED)
    await bench.request()  # it still takes requests
    await bench.ask("unpause")
    await node.turn()
    assert bench.state(second) is State.SUBMITTED


async def test_a_protected_signer_takes_and_sends_nothing_until_a_person_decides(bench: Bench) -> None:
    node = bench.node()
    tx_id = await bench.request()
    await node.turn()
    await bench.ask("protect", reason="audit")
    await node.turn()
    assert bench.database.cursors[bench.signer].reason == "audit"
    with pytest.raises(SignerProtected):
        await bench.request()
    bench.clock.advance(600)
    await node.turn(2)
    assert len(bench.chain.sent) == 1
    undecided = await bench.ask("unprotect")
    await node.turn()
    assert "decision" in (bench.database.outcome(undecided) or "")
    assert bench.database.cursors[bench.signer].state is CursorState.PROTECT
    await bench.ask("unprotect", decision="keep")
    await node.turn(2)
    assert bench.database.cursors[bench.signer].state is CursorState.ACTIVE
    assert len(bench.chain.sent) == 2
    bench.chain.mine(2)
    await node.turn(2)
    assert bench.state(tx_id) is State.CONFIRMED


async def test_adopting_the_chains_nonce_loses_what_a_stranger_replaced(bench: Bench) -> None:
    node = bench.node()
    lost, kept = await bench.requests(2)
    await node.turn()
    bench.chain.stranger(bench.signer.address, nonce=0)
    bench.chain.mine(only=bench.chain.pool - {bench.tx(kept).latest.signed.hash})
    for _ in range(4):
        bench.clock.advance(61)
        await node.turn()
    assert node.lane.is_protected
    await bench.ask("unprotect", decision="adopt")
    await node.turn(2)
    assert bench.state(lost) is State.FAILED
    assert "not ours" in (bench.tx(lost).error or "")
    later = await bench.request()
    await node.turn()
    bench.chain.mine(2)
    await node.turn(2)
    assert (bench.state(kept), bench.state(later)) == (State.CONFIRMED, State.CONFIRMED)
    assert bench.tx(later).nonce == 2


async def test_adopting_loses_nothing_of_ours_that_was_mined_a_moment_ago(bench: Bench) -> None:
    node = bench.node()
    lost, mined = await bench.requests(2)
    await node.turn()
    bench.chain.stranger(bench.signer.address, nonce=0)
    bench.chain.mine(only=bench.chain.pool - {bench.tx(mined).latest.signed.hash})
    for _ in range(4):
        bench.clock.advance(61)
        await node.turn()
    assert node.lane.is_protected
    bench.chain.mine(2)
    await bench.ask("unprotect", decision="adopt")  # before the lane has seen the block
    await node.turn(2)
    assert (bench.state(lost), bench.state(mined)) == (State.FAILED, State.CONFIRMED)


async def test_adopting_begins_behind_the_stranger(bench: Bench) -> None:
    for _ in range(3):
        bench.chain.stranger(bench.signer.address)
        bench.chain.mine()
    node = bench.node(STRICT)
    tx_id = await bench.request()
    await node.turn()
    assert node.lane.is_protected
    await bench.ask("unprotect", decision="adopt")
    await node.turn()
    cursor = bench.database.cursors[bench.signer]
    assert (cursor.state, cursor.start_nonce) == (CursorState.ACTIVE, 3)
    assert (bench.state(tx_id), bench.tx(tx_id).nonce) == (State.SUBMITTED, 3)


async def test_keeping_ours_when_a_stranger_has_the_nonce_protects_again(bench: Bench) -> None:
    node = bench.node()
    await bench.request()
    await node.turn()
    bench.chain.stranger(bench.signer.address, nonce=0)
    bench.chain.mine()
    for decision in ("", "keep"):
        if decision:
            await bench.ask("unprotect", decision=decision)
        for _ in range(5):
            bench.clock.advance(61)
            await node.turn()
        assert node.lane.is_protected


async def test_wishes_that_do_not_apply_are_answered(bench: Bench) -> None:
    node = bench.node()
    await bench.request()
    await node.turn()
    wishes = [await bench.ask(command) for command in ("unpause", "unprotect")]
    await node.turn()
    assert [bench.database.outcome(wish) for wish in wishes] == [
        "unpause does not apply: the signer is ACTIVE",
        "unprotect does not apply: the signer is ACTIVE",
    ]


async def test_more_wishes_than_one_answer_holds_are_all_carried_out(bench: Bench) -> None:
    node = bench.node()
    wishes = [await bench.ask("unpause") for _ in range(230)]
    again_s = await node.turn()
    for _ in range(4):
        if again_s is None:
            break
        again_s = await step(node.lane)
    assert all(bench.database.outcome(wish) is not None for wish in wishes)
    assert node.lane.is_idle


@pytest.mark.parametrize("wish", ["cancel", "bump", "resubmit"])
async def test_a_protected_signer_gets_no_new_bytes(bench: Bench, wish: str) -> None:
    node = bench.node()
    tx_id = await bench.request()
    await node.turn()
    await bench.ask("protect", reason="strange")
    await node.turn()
    attempts = len(bench.tx(tx_id).attempts)
    asked = await bench.ask(wish, tx_id=tx_id)
    await node.turn()
    outcome = bench.database.asked[asked].outcome
    assert outcome is not None
    assert "protected" in outcome
    assert len(bench.tx(tx_id).attempts) == attempts


async def test_a_new_request_makes_nobody_look_for_wishes_and_a_wish_does(bench: Bench) -> None:
    node = bench.node()
    await bench.request()
    await node.turn()
    assert not node.lane.commands_may_wait
    tx_id = await bench.request()
    assert node.node.requested(bench.signer)
    assert not node.lane.commands_may_wait
    await step(node.lane)
    assert bench.tx(tx_id).nonce == 1
    node.node.hint(bench.signer)
    assert node.lane.commands_may_wait


async def test_a_request_for_a_signer_that_nobody_holds_is_a_hint_like_any(bench: Bench) -> None:
    node = bench.node()
    tx_id = await bench.request()
    assert not node.node.requested(bench.signer)
    await node.node.heads_once(CHAIN_ID)
    await node.node.seek_once()
    await step(node.lane)
    assert bench.tx(tx_id).nonce == 0
