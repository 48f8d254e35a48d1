"""Operator commands: cancel, suspend, resume, resubmit, bump, pause, protect and their opposites."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from uuid import UUID

import pytest

from fakes.bench import CHAIN_ID, GWEI, QUICK, STRICT, Bench, BenchNode, decode, transfer
from fakes.rounds import run_alone
from fencepost.application.lane import LaneSettings, protect
from fencepost.application.operator_commands import COMMAND_PAUSE_S, MAX_COMMAND_TRIES
from fencepost.application.ports import KeyPort
from fencepost.domain.ids import Address, TxHash
from fencepost.domain.states import CursorState, State
from fencepost.domain.transaction import SignedTx, UnsignedTx
from fencepost.domain.transaction_state import Purpose, Receipt
from fencepost.errors import RpcUnavailable, SignerProtected, SigningError, SigningRefused
from fencepost.testing import LostResponse


@pytest.fixture
def bench() -> Bench:
    return Bench()


# ---- cancel


async def test_a_request_cancelled_before_its_nonce_never_gets_one(bench: Bench) -> None:
    node = bench.node(STRICT)
    first, second, third = await bench.requests(3)
    await node.turn()
    command_name = await bench.ask("cancel", second, reason="changed my mind")
    await node.turn()
    assert (bench.state(second), bench.tx(second).error) == (State.CANCELLED, "changed my mind")
    assert bench.database.outcome(command_name) == "dropped before it had a nonce"
    bench.chain.mine(2)
    await node.turn(2)
    assert (bench.state(first), bench.tx(third).nonce) == (State.CONFIRMED, 1)


async def test_a_filler_takes_the_nonce_of_a_cancelled_transaction(bench: Bench) -> None:
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


async def test_a_cancel_that_loses_the_race_ends_in_a_confirmation(bench: Bench) -> None:
    node = bench.node()
    tx_id = await bench.request()
    await node.turn()
    original = bench.tx(tx_id).latest.signed.hash
    await bench.ask("cancel", tx_id)
    bench.chain.script_next_sends(LostResponse.BEFORE)
    await node.turn()
    bench.chain.mine(2, only=[original])
    bench.clock.advance(1)
    await node.turn(2)
    tx = bench.tx(tx_id)
    assert (tx.state, tx.hash, tx.error) == (State.CONFIRMED, original, None)


async def test_a_mined_or_finished_transaction_is_not_cancelled(bench: Bench) -> None:
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


async def test_a_command_for_an_unknown_transaction_is_answered(bench: Bench) -> None:
    node = bench.node()
    tx_id = await bench.request()
    command_name = await bench.ask(
        "cancel", (await bench.accepting.ledger.load_queue(bench.signer, limit=1))[0].tx_id
    )
    ghost = await bench.ask("cancel", type(tx_id)(int=7))
    odd = await bench.ask("resume", tx_id)
    await node.turn()
    assert bench.database.outcome(command_name) == "dropped before it had a nonce"
    assert bench.database.outcome(ghost) == "no such transaction of this signer"
    assert bench.database.outcome(odd) == "it has ended: CANCELLED"


# ---- suspend and resume


async def test_a_request_suspended_in_the_queue_lets_others_pass(bench: Bench) -> None:
    node = bench.node()
    tx_id, other = await bench.requests(2)
    await bench.ask("suspend", tx_id)
    await node.turn()
    assert (bench.state(tx_id), bench.tx(other).nonce) == (State.SUSPENDED, 0)
    await bench.ask("resume", tx_id)
    await node.turn()
    assert (bench.state(tx_id), bench.tx(tx_id).nonce) == (State.SUBMITTED, 1)


async def test_a_suspended_transaction_with_a_nonce_is_not_sent_and_the_lane_does_not_spin(
    bench: Bench,
) -> None:
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


async def test_a_transaction_mined_while_suspended_finishes_after_the_resume(bench: Bench) -> None:
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


async def test_a_suspended_transaction_may_be_cancelled(bench: Bench) -> None:
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


async def test_resubmit_sends_the_same_bytes_immediately(bench: Bench) -> None:
    node = bench.node(replace(QUICK, resubmit_enabled=False))
    tx_id = await bench.request()
    await node.turn()
    await bench.ask("resubmit", tx_id)
    await node.turn()
    assert [signed.hash for signed in bench.chain.sent] == [bench.tx(tx_id).latest.signed.hash] * 2


async def test_bump_replaces_at_a_higher_price(bench: Bench) -> None:
    node = bench.node()
    tx_id = await bench.request()
    await node.turn()
    command_name = await bench.ask("bump", tx_id)
    await node.turn()
    assert len(bench.tx(tx_id).attempts) == 2
    assert bench.chain.pool == {bench.tx(tx_id).latest.signed.hash}
    assert (bench.database.outcome(command_name) or "").startswith("attempt 2 pays ")


async def test_bump_at_the_cap_is_answered(bench: Bench) -> None:
    node = bench.node(replace(QUICK, fee_cap_wei=3 * GWEI))
    tx_id = await bench.request()
    await node.turn()
    command_name = await bench.ask("bump", tx_id)
    await node.turn()
    assert "cap" in (bench.database.outcome(command_name) or "")
    assert len(bench.tx(tx_id).attempts) == 1


async def test_a_command_delayed_by_a_silent_endpoint_runs_later(bench: Bench) -> None:
    node = bench.node()
    tx_id = await bench.request()
    await node.turn()
    await bench.ask("bump", tx_id)
    node.node.hint(bench.signer)
    bench.chain.offline = True
    again_s = await run_alone(node.lane)
    assert again_s is not None
    assert again_s > 0
    bench.chain.offline = False
    bench.clock.advance(again_s)
    await run_alone(node.lane)
    assert len(bench.tx(tx_id).attempts) == 2


async def test_a_command_delayed_for_long_by_a_silent_endpoint_is_answered(bench: Bench) -> None:
    node = bench.node()
    tx_id = await bench.request()
    await node.turn()
    command_name = await bench.ask("bump", tx_id)
    node.node.hint(bench.signer)
    bench.chain.offline = True
    for _ in range(MAX_COMMAND_TRIES):
        bench.clock.advance(COMMAND_PAUSE_S * 2**MAX_COMMAND_TRIES)
        await node.node.renew_once()
        node.lane.blocks.receipt_checked_at_s = (
            bench.clock.now_s()
        )  # it makes no other call to the silent endpoint
        with suppress(RpcUnavailable):
            await run_alone(node.lane)
    assert (bench.database.outcome(command_name) or "").startswith("not done: ")


class _Refusing(KeyPort):
    """A signing service that rejects fillers and everything else without value."""

    def __init__(self, keys: KeyPort, error: SigningError) -> None:
        self._keys = keys
        self.error: SigningError | None = error

    def addresses(self) -> Sequence[Address]:
        return self._keys.addresses()

    async def sign(self, address: Address, txs: Sequence[UnsignedTx]) -> Sequence[SignedTx]:
        if self.error is not None and any(tx.call.value_wei == 0 for tx in txs):
            raise self.error
        return await self._keys.sign(address, txs)


@pytest.mark.parametrize("error", [SigningRefused("policy: no"), SigningError("no answer")])
async def test_a_command_that_cannot_be_signed_is_answered_and_tracking_does_not_wait(
    bench: Bench, error: SigningError
) -> None:
    node = bench.node(keys=_Refusing(bench.keys, error))
    mined, waiting = [await bench.request(transfer(value_wei=n)) for n in (1, 2)]
    await node.turn()
    bench.chain.mine(2, only={bench.tx(mined).latest.signed.hash})
    command_name = await bench.ask("cancel", waiting)
    await node.turn()
    assert bench.state(mined) is State.CONFIRMED
    await node.turn_for(COMMAND_PAUSE_S * 2**MAX_COMMAND_TRIES, every_s=0.5)
    assert str(error) in (bench.database.outcome(command_name) or "")
    later = await bench.request(transfer(value_wei=3))
    await node.turn()
    assert bench.state(later) is State.SUBMITTED


async def test_an_open_command_can_be_withdrawn(bench: Bench) -> None:
    keys = _Refusing(bench.keys, SigningError("no answer"))
    node = bench.node(keys=keys)
    tx_id = await bench.request(transfer(value_wei=1))
    await node.turn()
    command_name = await bench.ask("cancel", tx_id)
    await node.turn()
    assert bench.database.outcome(command_name) is None
    withdrawal = await bench.ask("withdraw", commandId=command_name)
    late = await bench.ask("withdraw", commandId=command_name + 1_000)
    keys.error = None
    bench.clock.advance(COMMAND_PAUSE_S)
    await node.turn()
    assert bench.database.outcome(command_name) == "withdrawn by eve"
    assert bench.database.outcome(withdrawal) == "withdrawn"
    assert "done already" in (bench.database.outcome(late) or "")
    assert bench.tx(tx_id).ending is None


# ---- the signer


async def test_a_paused_signer_finishes_transactions_with_a_nonce(bench: Bench) -> None:
    node = bench.node(STRICT)
    first, second = await bench.requests(2)
    await node.turn()
    await bench.ask("pause", reason="maintenance")
    bench.chain.mine(3)
    await node.turn(3)
    assert (bench.state(first), bench.state(second)) == (State.CONFIRMED, State.QUEUED)
    await bench.request()  # it still accepts requests
    await bench.ask("unpause")
    await node.turn()
    assert bench.state(second) is State.SUBMITTED


async def test_a_protected_signer_accepts_and_sends_nothing_until_an_operator_decides(bench: Bench) -> None:
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


async def test_adopting_the_chain_nonce_supersedes_a_request_that_a_foreign_transaction_replaced(
    bench: Bench,
) -> None:
    node = bench.node()
    lost, kept = await bench.requests(2)
    await node.turn()
    bench.chain.add_foreign_tx(bench.signer.address, nonce=0)
    bench.chain.mine(only=bench.chain.pool - {bench.tx(kept).latest.signed.hash})
    for _ in range(4):
        bench.clock.advance(61)
        await node.turn()
    assert node.lane.is_protected
    await bench.ask("unprotect", decision="adopt")
    await node.turn(2)
    assert bench.state(lost) is State.SUBMITTED
    bench.chain.mine(only=())
    await node.turn()
    assert bench.state(lost) is State.FAILED
    assert "not ours" in (bench.tx(lost).error or "")
    later = await bench.request()
    await node.turn()
    bench.chain.mine(2)
    await node.turn(2)
    assert (bench.state(kept), bench.state(later)) == (State.CONFIRMED, State.CONFIRMED)
    assert bench.tx(later).nonce == 2


async def test_adopting_keeps_our_transaction_that_was_just_mined(bench: Bench) -> None:
    node = bench.node()
    lost, mined = await bench.requests(2)
    await node.turn()
    bench.chain.add_foreign_tx(bench.signer.address, nonce=0)
    bench.chain.mine(only=bench.chain.pool - {bench.tx(mined).latest.signed.hash})
    for _ in range(4):
        bench.clock.advance(61)
        await node.turn()
    assert node.lane.is_protected
    bench.chain.mine(2)
    await bench.ask("unprotect", decision="adopt")  # before the lane has seen the block
    await node.turn(2)
    bench.chain.mine()
    await node.turn()
    assert (bench.state(lost), bench.state(mined)) == (State.FAILED, State.CONFIRMED)


async def test_adopting_begins_behind_the_foreign_transaction(bench: Bench) -> None:
    for _ in range(3):
        bench.chain.add_foreign_tx(bench.signer.address)
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


async def test_keeping_our_cursor_protects_again_if_a_foreign_transaction_has_the_nonce(bench: Bench) -> None:
    node = bench.node()
    await bench.request()
    await node.turn()
    bench.chain.add_foreign_tx(bench.signer.address, nonce=0)
    bench.chain.mine()
    for decision in ("", "keep"):
        if decision:
            await bench.ask("unprotect", decision=decision)
        for _ in range(5):
            bench.clock.advance(61)
            await node.turn()
        assert node.lane.is_protected


async def test_inapplicable_commands_are_answered(bench: Bench) -> None:
    node = bench.node()
    await bench.request()
    await node.turn()
    command_ids = [await bench.ask(command) for command in ("unpause", "unprotect")]
    await node.turn()
    assert [bench.database.outcome(command_name) for command_name in command_ids] == [
        "unpause does not apply: the signer is not paused",
        "unprotect does not apply: the signer is ACTIVE",
    ]


async def test_more_commands_than_one_read_returns_are_all_carried_out(bench: Bench) -> None:
    node = bench.node()
    command_ids = [await bench.ask("unpause") for _ in range(230)]
    again_s = await node.turn()
    for _ in range(4):
        if again_s is None:
            break
        again_s = await run_alone(node.lane)
    assert all(bench.database.outcome(command_name) is not None for command_name in command_ids)
    assert node.lane.is_idle


@pytest.mark.parametrize("command_name", ["cancel", "bump", "resubmit"])
async def test_a_protected_signer_signs_no_new_bytes(bench: Bench, command_name: str) -> None:
    node = bench.node()
    tx_id = await bench.request()
    await node.turn()
    await bench.ask("protect", reason="strange")
    await node.turn()
    attempts = len(bench.tx(tx_id).attempts)
    asked = await bench.ask(command_name, tx_id=tx_id)
    await node.turn()
    outcome = bench.database.commands[asked].outcome
    assert outcome is not None
    assert "protected" in outcome
    assert len(bench.tx(tx_id).attempts) == attempts


async def test_only_a_command_hint_makes_the_lane_read_commands(bench: Bench) -> None:
    node = bench.node()
    await bench.request()
    await node.turn()
    assert not node.lane.commands.may_wait
    tx_id = await bench.request()
    assert node.node.requested(bench.signer)
    assert not node.lane.commands.may_wait
    await run_alone(node.lane)
    assert bench.tx(tx_id).nonce == 1
    node.node.hint(bench.signer)
    assert node.lane.commands.may_wait


async def test_a_request_for_a_free_signer_is_an_ordinary_hint(bench: Bench) -> None:
    node = bench.node()
    tx_id = await bench.request()
    assert not node.node.requested(bench.signer)
    await node.node.heads_once(CHAIN_ID)
    await node.node.acquire_once()
    await run_alone(node.lane)
    assert bench.tx(tx_id).nonce == 0


async def test_a_pause_outlasts_protect(bench: Bench) -> None:
    node = bench.node()
    await node.ended(1)
    await bench.ask("pause", reason="maintenance")
    await bench.ask("protect", reason="audit")
    await node.turn()
    asked = await bench.ask("unprotect", decision="keep")
    await node.turn(2)
    outcome = bench.database.outcome(asked) or ""
    assert outcome.startswith("active, keep: the next nonce stays ")
    assert outcome.endswith("; the signer is still paused")
    tx_id = await bench.request()
    await node.turn(2)
    assert bench.state(tx_id) is State.QUEUED
    cursor = bench.database.cursors[bench.signer]
    assert (cursor.state, cursor.pause) == (CursorState.ACTIVE, "maintenance")
    await bench.ask("unpause")
    await node.turn(2)
    assert bench.state(tx_id) is State.SUBMITTED


async def test_a_pause_outlasts_an_alarm(bench: Bench) -> None:
    node = bench.node()
    tx_id = await bench.request()
    await bench.ask("pause")
    await node.turn()
    await protect(node.lane, "a precondition is broken")
    await bench.ask("unprotect", decision="keep")
    await node.turn(2)
    assert (bench.state(tx_id), node.lane.is_protected) == (State.QUEUED, False)


async def test_a_protected_signer_can_be_paused_and_resumed(bench: Bench) -> None:
    node = bench.node()
    await node.ended(1)
    await bench.ask("protect", reason="audit")
    await node.turn()
    paused, again = await bench.ask("pause"), await bench.ask("pause")
    await node.turn()
    assert (bench.database.outcome(paused), node.lane.is_protected) == ("paused", True)
    assert "paused already" in (bench.database.outcome(again) or "")
    resumed = await bench.ask("unpause")
    await node.turn()
    assert (bench.database.outcome(resumed), node.lane.is_protected) == ("protect", True)


# ---- unprotect while a suspended transaction holds a nonce: no gap, and nothing twice


async def suspended(bench: Bench, node: BenchNode) -> UUID:
    """Suspend a transaction that has a nonce and was sent."""
    tx_id = await bench.request()
    await node.turn()
    await bench.ask("suspend", tx_id)
    await node.turn()
    assert bench.state(tx_id) is State.SUSPENDED
    return tx_id


async def adopted(bench: Bench, node: BenchNode) -> None:
    command = await bench.ask("unprotect", decision="adopt")
    await node.turn(2)
    assert (bench.database.outcome(command) or "").startswith("active, adopt: the next nonce is ")


@pytest.mark.parametrize("policy", [QUICK, STRICT])
async def test_a_suspended_transaction_with_a_foreign_nonce_is_lost_and_the_next_follows(
    bench: Bench, policy: LaneSettings
) -> None:
    node = bench.node(policy)
    held = await suspended(bench, node)
    await bench.ask("protect", reason="the key was used outside")
    await node.turn()
    bench.chain.add_foreign_tx(bench.signer.address, nonce=0)
    bench.chain.add_foreign_tx(bench.signer.address)
    bench.chain.mine()
    await adopted(bench, node)
    bench.chain.mine()
    await node.turn()
    assert bench.state(held) is State.FAILED
    assert "not ours" in (bench.tx(held).error or "")
    later = await bench.request()
    await node.turn()
    bench.chain.mine(2)
    await node.turn(2)
    assert (bench.state(later), bench.tx(later).nonce) == (State.CONFIRMED, 2)


async def test_a_suspended_unsent_transaction_keeps_its_nonce(bench: Bench) -> None:
    node = bench.node()
    bench.chain.script_next_sends(LostResponse.BEFORE)
    held = await suspended(bench, node)
    await bench.ask("protect", reason="let me look")
    await node.turn()
    await adopted(bench, node)
    later = await bench.request()
    await node.turn()
    assert (bench.state(held), bench.tx(held).nonce, bench.tx(later).nonce) == (State.SUSPENDED, 0, 1)
    await bench.ask("resume", held)
    await node.turn()
    bench.chain.mine(2)
    await node.turn(2)
    assert (bench.state(held), bench.state(later)) == (State.CONFIRMED, State.CONFIRMED)


async def test_a_mined_transaction_with_a_late_receipt_is_not_lost(bench: Bench) -> None:
    node = bench.node()
    held = await suspended(bench, node)
    await bench.ask("protect", reason="let me look")
    await node.turn()
    bench.chain.mine(2)
    receipts = bench.chain.receipts

    async def none_yet(hashes: Sequence[TxHash]) -> Sequence[Receipt | None]:
        return [None for _ in hashes]

    bench.chain.receipts = none_yet  # type: ignore[method-assign]  # a node whose receipts lag
    await adopted(bench, node)
    assert bench.state(held) is State.SUSPENDED
    bench.chain.receipts = receipts  # type: ignore[method-assign]  # they are there now
    await bench.ask("resume", held)
    await node.turn(2)
    assert bench.state(held) is State.CONFIRMED
    assert bench.database.cursors[bench.signer].state is CursorState.ACTIVE


async def test_a_transaction_resumed_before_the_decision_is_lost_under_the_next_owner(bench: Bench) -> None:
    node = bench.node()
    held = await suspended(bench, node)
    await bench.ask("protect", reason="the key was used outside")
    await node.turn()
    bench.chain.add_foreign_tx(bench.signer.address, nonce=0)
    bench.chain.mine()
    sent = len(bench.chain.sent)
    await bench.ask("resume", held)
    await node.turn()
    assert bench.state(held) is State.SUBMITTED
    await node.release()
    other = bench.node(name="other")
    await adopted(bench, other)
    bench.chain.mine()
    await other.turn()
    assert bench.state(held) is State.FAILED
    assert len(bench.chain.sent) == sent
