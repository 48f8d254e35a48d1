"""A database older than it claims: transactions that are already on the chain are attributed to their requests, not sent again.

A disk snapshot keeps the database's identity, so only the chain's nonce shows that commits are missing.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from uuid import UUID

import pytest

from fakes.bench import QUICK, STRICT, Bench, BenchNode, transfer
from fencepost.application.lane import LaneSettings
from fencepost.application.nonce_sync import (
    ADOPT_AFTER_S,
    SEARCH_INTERVAL_S,
    SEARCHES_BEFORE_PROTECT,
)
from fencepost.application.restore import examine
from fencepost.application.track import SUSPICION_INTERVAL_S
from fencepost.domain.ids import Address, TxHash
from fencepost.domain.lease import Term
from fencepost.domain.states import CursorState, State
from fencepost.domain.transaction import SignedTx
from fencepost.domain.transaction_state import Kind
from fencepost.errors import RpcUnavailable
from fencepost.testing import InMemoryDatabase

PIPELINED = replace(QUICK, max_in_flight=4)
SHARED = replace(PIPELINED, shared_key=True)
BOTH = pytest.mark.parametrize("policy", [PIPELINED, STRICT])
LONG_S = ADOPT_AFTER_S + SEARCHES_BEFORE_PROTECT * SEARCH_INTERVAL_S + 2.0


@pytest.fixture
def bench() -> Bench:
    return Bench()


@dataclass
class Restored:
    bench: Bench
    node: BenchNode
    txs: list[UUID]
    sent: list[SignedTx]  # by the lost database

    @property
    def new_sends(self) -> list[SignedTx]:
        return self.bench.chain.sent[len(self.sent) :]

    def sent_for_requests(self) -> list[TxHash]:
        return [tx.hash for tx in self.new_sends if not self._is_filler(tx.hash)]

    def _is_filler(self, tx_hash: TxHash) -> bool:
        fillers = [tx for tx in self.bench.database.txs.values() if tx.kind is Kind.FILLER]
        return any(tx.attempt_of(tx_hash) is not None for tx in fillers)

    async def until_fillers_have_ended(self) -> None:
        """More lost bytes may exist that no pool shows: fillers take their nonces first."""
        assert self.sent_for_requests() == []
        self.bench.chain.mine(2)
        await self.node.turn_for(4.0)

    @property
    def reason(self) -> str:
        return self.bench.database.cursors[self.bench.signer].reason or ""

    @property
    def is_protected(self) -> bool:
        return self.bench.database.cursors[self.bench.signer].state is CursorState.PROTECT


def put_back(database: InMemoryDatabase, copy: InMemoryDatabase) -> None:
    """Restore a disk snapshot: the same identity, older rows."""
    timeline, began_s = database.timeline, database.history_began_s
    database.fail_over(copy)
    database.timeline, database.history_began_s = timeline, began_s


async def restored(
    bench: Bench, policy: LaneSettings, *, requests: int = 2, before: int = 1, values: list[int] | None = None
) -> Restored:
    """Finish some requests, accept the rest, take the copy, and let the original carry out everything."""
    old = bench.node(policy, name="old")
    if before:
        await old.ended(before)
    wanted = values or [100 + number for number in range(requests)]
    txs = [await bench.request(transfer(value_wei=value)) for value in wanted]
    copy = bench.database.copied()
    for _ in range(len(wanted)):
        await old.turn()
        bench.chain.mine(2)
    await old.turn()
    assert {bench.state(tx_id) for tx_id in txs} == {State.CONFIRMED}
    put_back(bench.database, copy)
    assert {bench.state(tx_id) for tx_id in txs} == {State.QUEUED}
    bench.clock.advance(60)
    return Restored(bench, bench.node(policy, name="new"), txs, list(bench.chain.sent))


@BOTH
@pytest.mark.parametrize("before", [0, 1])
async def test_requests_of_an_older_copy_finish_with_the_transactions_of_the_original(
    bench: Bench, policy: LaneSettings, before: int
) -> None:
    was = await restored(bench, policy, before=before)
    await was.node.turn()
    await was.node.turn_for(LONG_S)
    assert [bench.state(tx_id) for tx_id in was.txs] == [State.CONFIRMED] * 2
    assert [bench.tx(tx_id).hash for tx_id in was.txs] == [tx.hash for tx in was.sent[-2:]]
    assert was.new_sends == []
    assert bench.database.cursors[bench.signer].next_nonce == before + 2
    assert "Attach" in bench.events(was.txs[0])


@BOTH
async def test_unsent_requests_are_sent_behind_attributed_ones(bench: Bench, policy: LaneSettings) -> None:
    was = await restored(bench, policy)
    later = await bench.request(transfer(value_wei=7))
    await was.node.turn()
    await was.node.turn_for(LONG_S)
    await was.until_fillers_have_ended()
    assert (bench.tx(later).nonce, bench.state(later)) == (3 + policy.window, State.SUBMITTED)
    assert was.sent_for_requests() == [bench.tx(later).hash]


@BOTH
async def test_of_equal_requests_only_the_missing_number_is_sent(bench: Bench, policy: LaneSettings) -> None:
    was = await restored(bench, policy, values=[9, 9])
    third = await bench.request(transfer(value_wei=9))
    await was.node.turn()
    await was.node.turn_for(LONG_S)
    await was.until_fillers_have_ended()
    assert [bench.state(tx_id) for tx_id in was.txs] == [State.CONFIRMED] * 2
    assert was.sent_for_requests() == [bench.tx(third).hash]


@BOTH
async def test_an_endpoint_without_old_states_is_searched_by_blocks(
    bench: Bench, policy: LaneSettings
) -> None:
    was = await restored(bench, policy)
    bench.chain.mine(20)
    bench.chain.keeps_state_blocks = 3
    await was.node.turn()
    await was.node.turn_for(LONG_S)
    assert [bench.state(tx_id) for tx_id in was.txs] == [State.CONFIRMED] * 2
    assert was.new_sends == []


@BOTH
async def test_a_search_beyond_its_bound_protects_and_reports_what_was_searched(
    bench: Bench, policy: LaneSettings
) -> None:
    was = await restored(bench, replace(policy, search_blocks=10))
    bench.chain.mine(100)
    bench.chain.keeps_state_blocks = 3
    head = bench.chain.height
    await was.node.turn()
    await was.node.turn_for(LONG_S)
    assert was.is_protected
    assert f"blocks {head - 9} to {head} were searched" in was.reason
    asked = await bench.ask("unprotect", decision="adopt")
    await was.node.turn(2)
    assert "carried out twice" in (bench.database.outcome(asked) or "")
    assert was.is_protected
    assert was.new_sends == []


@BOTH
async def test_unavailable_transaction_bytes_protect(bench: Bench, policy: LaneSettings) -> None:
    was = await restored(bench, policy)
    bench.chain.hides_bytes = True
    await was.node.turn()
    await was.node.turn_for(LONG_S)
    assert was.is_protected
    assert str(was.txs[0]) in was.reason
    asked = await bench.ask("unprotect", decision="adopt")
    await was.node.turn(2)
    assert "carried out twice" in (bench.database.outcome(asked) or "")
    assert was.new_sends == []


async def use_key_outside(bench: Bench) -> TxHash:
    theirs = bench.chain.add_foreign_tx(bench.signer.address)
    bench.chain.mine(2)
    return theirs


@BOTH
async def test_a_foreign_transaction_behind_ours_is_named_and_adopting_sends_nothing_again(
    bench: Bench, policy: LaneSettings
) -> None:
    was = await restored(bench, policy)
    theirs = await use_key_outside(bench)
    later = await bench.request(transfer(value_wei=7))
    await was.node.turn()
    await was.node.turn_for(LONG_S)
    assert was.is_protected
    assert all(part in was.reason for part in (theirs, "block", "to 0x5757"))
    assert [bench.state(tx_id) for tx_id in was.txs] == [State.CONFIRMED] * 2
    await bench.ask("unprotect", decision="adopt")
    await was.node.turn(3)
    await was.until_fillers_have_ended()
    assert was.sent_for_requests() == [bench.tx(later).hash]
    assert bench.tx(later).nonce == 4 + policy.window


@BOTH
async def test_adopting_attributes_transactions_behind_a_foreign_one(
    bench: Bench, policy: LaneSettings
) -> None:
    """A foreign transaction first, then ours: the decision `adopt` must not send ours again."""
    old = bench.node(policy, name="old")
    await old.ended(1)
    tx_id = await bench.request(transfer(value_wei=100))
    copy = bench.database.copied()
    await use_key_outside(bench)
    bench.clock.advance(31)
    await old.turn()
    await old.turn_for(ADOPT_AFTER_S)
    if old.lane.is_protected:
        await bench.ask("unprotect", decision="adopt")
        await old.turn(2)
    bench.chain.mine(2)
    await old.turn(2)
    assert bench.state(tx_id) is State.CONFIRMED
    original = bench.tx(tx_id).hash
    put_back(bench.database, copy)
    bench.clock.advance(60)
    sent = len(bench.chain.sent)
    new = bench.node(policy, name="new")
    await new.turn()
    await new.turn_for(LONG_S)
    assert new.lane.is_protected
    await bench.ask("unprotect", decision="adopt")
    await new.turn(3)
    assert (bench.state(tx_id), bench.tx(tx_id).hash) == (State.CONFIRMED, original)
    assert len(bench.chain.sent) == sent


async def test_with_a_shared_key_ours_is_attributed_and_the_foreign_one_adopted(bench: Bench) -> None:
    was = await restored(bench, SHARED)
    theirs = await use_key_outside(bench)
    later = await bench.request(transfer(value_wei=7))
    await was.node.turn()
    await was.node.turn_for(LONG_S)
    await was.until_fillers_have_ended()
    assert [bench.state(tx_id) for tx_id in was.txs] == [State.CONFIRMED] * 2
    assert was.sent_for_requests() == [bench.tx(later).hash]
    (shown,) = [row for row in bench.database.journal if row.event == "AdoptChainNonce"]
    assert [foreign["hash"] for foreign in shown.detail["foreign"]] == [theirs]


@BOTH
async def test_a_fee_bump_with_a_lost_commit_is_attributed(bench: Bench, policy: LaneSettings) -> None:
    policy = replace(policy, bump_enabled=True, bump_after_resubmits=0, resubmit_interval_s=5.0)
    old = bench.node(policy, name="old")
    tx_id = await bench.request()
    await old.turn()
    copy = bench.database.copied()
    bench.clock.advance(6)
    await old.turn()
    bumped = bench.tx(tx_id).latest.signed
    assert len(bench.tx(tx_id).attempts) == 2
    put_back(bench.database, copy)
    bench.clock.advance(60)
    bench.chain.mine(2, only=[bumped.hash])
    new = bench.node(replace(policy, bump_enabled=False), name="new")
    report = await examine(new.node.make_lane(Term(bench.signer, token=0, renewed_at_s=0.0, duration_s=0.0)))
    assert [(one.tx_hash, one.tx_id) for one in report.attached] == [(bumped.hash, tx_id)]
    assert (report.decisions, report.filled, report.verdict) == ([], policy.window, "attach")
    await new.turn()
    await new.turn_for(6 * SUSPICION_INTERVAL_S, every_s=SUSPICION_INTERVAL_S)
    assert (bench.state(tx_id), bench.tx(tx_id).hash) == (State.CONFIRMED, bumped.hash)
    assert not new.lane.is_protected


async def test_lost_bytes_above_a_gap_are_not_sent_a_second_time(bench: Bench) -> None:
    """No pool shows them, and the database keeps its identity: the attributed ones show that commits are lost."""
    old = bench.node(PIPELINED, name="old")
    await old.ended(1)
    done, dropped, hidden = [await bench.request(transfer(value_wei=value)) for value in (101, 102, 103)]
    copy = bench.database.copied()
    await old.turn()
    lost = {bench.tx(tx_id).held_nonce(): bench.tx(tx_id).latest.signed for tx_id in (done, dropped, hidden)}
    bench.chain.mine(2, only=[lost[1].hash])
    bench.chain.drop(lost[2].hash)
    put_back(bench.database, copy)
    bench.clock.advance(60)
    await bench.ask("cancel", dropped)  # so that the next one moves up
    new = bench.node(PIPELINED, name="new")
    await new.turn()
    await new.turn_for(LONG_S)
    assert bench.tx(done).hash == lost[1].hash
    assert bench.state(hidden) is State.QUEUED
    assert {tx.kind for tx in bench.database.txs.values() if (tx.nonce or 0) > 1} == {Kind.FILLER}


@BOTH
async def test_a_suspended_request_that_was_carried_out_finishes(bench: Bench, policy: LaneSettings) -> None:
    was = await restored(bench, policy, requests=1)
    await bench.ask("suspend", was.txs[0])
    await was.node.turn()
    assert bench.state(was.txs[0]) is State.SUSPENDED
    await was.node.turn_for(LONG_S)
    assert bench.state(was.txs[0]) is State.CONFIRMED
    assert was.new_sends == []


@BOTH
async def test_a_fork_that_undoes_an_attributed_transaction_sends_the_same_bytes(
    bench: Bench, policy: LaneSettings
) -> None:
    old = bench.node(policy, name="old")
    tx_id = await bench.request(transfer(value_wei=5))
    copy = bench.database.copied()
    await old.turn()
    bench.chain.mine()
    put_back(bench.database, copy)
    bench.clock.advance(60)
    new = bench.node(policy, name="new")
    await new.turn()
    await new.turn_for(ADOPT_AFTER_S)
    attached = bench.tx(tx_id).latest.signed
    assert attached == bench.chain.sent[0]
    bench.chain.reorg(1)
    bench.chain.drop(attached.hash)
    await new.turn(2)
    bench.clock.advance(policy.resubmit_interval_s)
    await new.turn(2)
    assert {tx.hash for tx in bench.chain.sent} == {attached.hash}


@BOTH
async def test_a_request_in_a_long_queue_is_found(bench: Bench, policy: LaneSettings) -> None:
    policy = replace(policy, read_ahead=2)
    was = await restored(bench, policy, requests=5)
    await was.node.turn()
    await was.node.turn_for(LONG_S)
    assert {bench.state(tx_id) for tx_id in was.txs} == {State.CONFIRMED}
    assert was.new_sends == []


@BOTH
async def test_the_search_continues_after_a_silent_endpoint(bench: Bench, policy: LaneSettings) -> None:
    """The lane allocates no nonce until it knows which transactions consumed those above the cursor."""
    was = await restored(bench, policy)
    await was.node.turn()
    honest = bench.chain.nonce_at

    async def silent(address: Address, number: int) -> int | None:
        raise RpcUnavailable(f"no answer about {address} at {number}")

    bench.chain.nonce_at = silent  # type: ignore[method-assign]  # it fails in the middle of a search
    for _ in range(30):
        bench.clock.advance(0.25)
        with suppress(RpcUnavailable):
            await was.node.turn()
    assert was.new_sends == []
    bench.chain.nonce_at = honest  # type: ignore[method-assign]  # it is back
    await was.node.turn_for(LONG_S)
    assert {bench.state(tx_id) for tx_id in was.txs} == {State.CONFIRMED}
    assert was.new_sends == []


async def test_a_used_address_names_its_foreign_transactions(bench: Bench) -> None:
    theirs = await use_key_outside(bench)
    node = bench.node(STRICT)
    await bench.request()
    await node.turn()
    assert theirs in (bench.database.cursors[bench.signer].reason or "")


async def test_a_new_signer_with_a_long_history_begins_behind_it(bench: Bench) -> None:
    for _ in range(300):
        bench.chain.add_foreign_tx(bench.signer.address)
        bench.chain.mine()
    node = bench.node(PIPELINED)
    tx_id = await bench.request()
    await node.turn(2)
    assert (bench.state(tx_id), bench.tx(tx_id).nonce) == (State.SUBMITTED, 300)


@BOTH
@pytest.mark.parametrize("before", [0, 1])
async def test_a_cancel_does_not_drop_a_request_that_the_chain_has_carried_out(
    bench: Bench, policy: LaneSettings, before: int
) -> None:
    """An operator who reads CANCELLED may pay again by another way."""
    was = await restored(bench, policy, before=before)
    command = await bench.ask("cancel", was.txs[1])
    await was.node.turn()
    outcome = bench.database.outcome(command) or ""
    assert "the chain has carried it out" in outcome
    assert was.sent[-1].hash in outcome
    await was.node.turn_for(LONG_S)
    assert [bench.state(tx_id) for tx_id in was.txs] == [State.CONFIRMED] * 2
    assert was.new_sends == []


@BOTH
async def test_a_cancel_in_protect_does_not_drop_a_request_above_a_foreign_transaction(
    bench: Bench, policy: LaneSettings
) -> None:
    was = await restored(bench, policy, values=[100, 101, 102])
    dropped = await bench.ask("cancel", was.txs[0])  # its transaction matches nothing from now on
    bench.database.txs[was.txs[0]] = bench.database.txs[was.txs[0]].changed(
        state=State.CANCELLED
    )  # as a version that did not compare would have left it
    await was.node.turn()
    await was.node.turn_for(LONG_S)
    assert bench.database.outcome(dropped) == "it has ended: CANCELLED"
    assert was.is_protected
    assert bench.state(was.txs[2]) is State.QUEUED
    command = await bench.ask("cancel", was.txs[2])
    await was.node.turn()
    assert "decide about the signer first" in (bench.database.outcome(command) or "")
    assert bench.state(was.txs[2]) is State.QUEUED


async def test_a_cancel_in_protect_drops_a_request_that_is_not_on_the_chain(bench: Bench) -> None:
    was = await restored(bench, PIPELINED)
    later = await bench.request(transfer(value_wei=7))
    await bench.ask("protect")
    await was.node.turn()
    command = await bench.ask("cancel", later)
    await was.node.turn()
    assert bench.database.outcome(command) == "dropped before it had a nonce"
    assert bench.state(later) is State.CANCELLED
