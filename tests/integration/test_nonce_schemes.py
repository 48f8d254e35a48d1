"""The schemes without Redis, and the Redis lock, when something around them fails."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import asyncpg
import pytest

from fakes.ledger_lab import new
from fencepost.application.ports import AcceptOutcome
from fencepost.domain.ids import Signer
from fencepost.errors import HoldLost, NotLeader, RpcUnavailable, SignerUsedOtherwise
from fencepost.nonce.leased import LeasedNonces
from fencepost.nonce.port import Hold
from fencepost.nonce.redis_lock import RedisLock
from fencepost.nonce.segments import SegmentNonces
from integration.stage import until
from nonce_lab import ALICE, BOB, DEAD_AFTER_S, HEAL_AFTER_S, LEASE_S, NonceLab, give, tx_hash

SOMEBODY_WAITS = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
)


# ---- leased


async def test_leased_rejects_a_process_that_does_not_hold_the_lease(lab: NonceLab) -> None:
    owner, other = await lab.open("leased"), await lab.open("leased")
    assert await give(owner) == [0]
    with pytest.raises(NotLeader) as refused:
        await give(other)
    assert refused.value.owner


async def test_leased_fences_a_replaced_owner(lab: NonceLab) -> None:
    old, new_owner = await lab.open("leased"), await lab.open("leased")
    assert isinstance(old, LeasedNonces)
    assert await give(old, 2) == [0, 1]
    before = old._owned[ALICE]
    await lab.pass_time(LEASE_S + 1)
    assert await give(new_owner, 2) == [2, 3]
    before.term = before.term.renewed(lab.clock.now_s())  # paused; by its own clock no time has passed
    assert old._holds_lease(ALICE)
    with pytest.raises(NotLeader):
        await give(old)
    assert await give(new_owner) == [4]
    assert {row["fencing_token"] for row in await lab.slots(ALICE)} == {
        before.term.token,
        new_owner._owned[ALICE].term.token,  # type: ignore[attr-defined]  # it is a LeasedNonces
    }


async def test_leased_drops_its_cache_when_a_batch_fails(lab: NonceLab) -> None:
    port = await lab.open("leased")
    assert isinstance(port, LeasedNonces)
    await give(port)
    token = port._owned[ALICE].term.token
    await lab.pool.execute("ALTER TABLE nonce_slot ADD CONSTRAINT broken CHECK (nonce < 1)")
    with pytest.raises(asyncpg.CheckViolationError):
        await give(port)
    assert ALICE not in port._owned
    await lab.pool.execute("ALTER TABLE nonce_slot DROP CONSTRAINT broken")
    assert await give(port) == [1]
    assert port._owned[ALICE].term.token > token


async def test_leased_continues_above_the_nonce_of_the_chain(lab: NonceLab) -> None:
    port = await lab.open("leased")
    await give(port, 2)
    await port.close()
    lab.seen[ALICE] = 9
    assert await give(await lab.open("leased")) == [9]


async def test_leased_renews_its_term_and_notices_its_end(lab: NonceLab) -> None:
    port, other = await lab.open("leased"), await lab.open("leased")
    await give(port)
    for _ in range(3):
        await lab.pass_time(LEASE_S / 2)
        assert await port.tend_once() == 1
    with pytest.raises(NotLeader):
        await give(other)
    await lab.pass_time(LEASE_S + 1)
    assert await give(other) == [1]
    assert await port.tend_once() == 0


# ---- segments


async def test_segments_delay_callers_while_nothing_can_be_stored(lab: NonceLab) -> None:
    port = await lab.open("segments", block_size=500, unflushed_max=20)
    assert isinstance(port, SegmentNonces)
    await give(port, 20)
    assert len(port._unflushed) == 20
    await lab.pool.execute("ALTER TABLE nonce_slot ADD CONSTRAINT broken CHECK (nonce < 0) NOT VALID")
    with pytest.raises(asyncpg.CheckViolationError):
        await give(port)
    assert len(port._unflushed) == 20, "nothing more than may wait, and nothing of it lost"
    await lab.pool.execute("ALTER TABLE nonce_slot DROP CONSTRAINT broken")
    assert await give(port) == [20]
    assert len(await lab.slots(ALICE)) == 20


async def test_segments_issue_from_memory(lab: NonceLab) -> None:
    port = await lab.open("segments", block_size=50)
    assert await give(port) == [0]
    await lab.pool.execute("ALTER TABLE nonce_slot RENAME TO gone")
    assert await give(port, 40) == list(range(1, 41))
    await lab.pool.execute("ALTER TABLE gone RENAME TO nonce_slot")


async def test_segments_begin_above_everything_after_a_crash_and_reissue_missing_nonces(
    lab: NonceLab,
) -> None:
    crashed = await lab.open("segments", block_size=10)
    assert await give(crashed, 3) == [0, 1, 2]
    await crashed.tend_once()
    assert await give(crashed, 2) == [3, 4]  # never stored
    lab.seen[ALICE] = 1
    port = await lab.open("segments", block_size=10)
    assert await give(port) == [10], "above the block, the rows and the chain"
    await port.tend_once()
    await lab.pass_time(HEAL_AFTER_S + 1)
    assert await port.reclaim_expired(ALICE) == 0, "another process may still own the block"
    await port.tend_once()
    await lab.pass_time(DEAD_AFTER_S - HEAL_AFTER_S)
    assert await port.reclaim_expired(ALICE) == 7
    assert await give(port, 8) == [3, 4, 5, 6, 7, 8, 9, 11]


async def test_segments_fence_an_owner_whose_nonce_block_was_retired(lab: NonceLab) -> None:
    paused, port = await lab.open("segments", block_size=10), await lab.open("segments", block_size=10)
    await give(paused)
    (hold,) = await paused.allocate(ALICE, hold_for_s=60)
    await give(port)
    await port.tend_once()
    await lab.pass_time(DEAD_AFTER_S + 1)
    assert await port.reclaim_expired(ALICE) == 10
    assert await give(paused, 1) == [0], "its block is retired: it reissues a free nonce"
    with pytest.raises(HoldLost):
        await paused.mark_submitted(hold, tx_hash(1))


async def test_segments_take_a_later_nonce_block_when_the_chain_is_ahead(lab: NonceLab) -> None:
    port = await lab.open("segments", block_size=10)
    await give(port, 10)
    lab.seen[ALICE] = 25
    assert await give(port) == [25]


async def test_segments_issue_all_or_nothing(lab: NonceLab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three nonces can be reissued, two more are requested, and the chain does not answer: the three are free again."""
    first = await lab.open("segments", block_size=3)
    for hold in await first.allocate(ALICE, count=3, hold_for_s=60):
        await first.mark_recyclable(hold)
    port = await lab.open("segments", block_size=3)
    assert isinstance(port, SegmentNonces)
    await port.reclaim_expired(ALICE)  # it knows the signer but has no nonce block

    async def unanswered(_signer: Signer) -> int:
        raise RpcUnavailable("no node answers")

    with monkeypatch.context() as outage:
        outage.setattr(port._store, "chain_nonce", unanswered)
        with pytest.raises(RpcUnavailable):
            await port.allocate(ALICE, count=5, hold_for_s=86_400)
    assert {row["state"] for row in await lab.slots(ALICE)} == {"RELEASED"}
    assert await give(port, 5) == [0, 1, 2, 3, 4]


async def test_segments_issue_nothing_of_a_nonce_block_that_was_retired_while_they_waited(
    lab: NonceLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, other = await lab.open("segments", block_size=10), await lab.open("segments", block_size=10)
    assert isinstance(slow, SegmentNonces)
    assert await give(slow, 2) == [0, 1]
    assert await give(other) == [10]  # a row above, so that the missing nonces below can be found
    await slow.tend_once()
    await other.tend_once()
    slow._locals[ALICE].may_have_gaps = True
    look = slow._store.allocate_released
    taken: list[int] = []

    async def slowly(signer: Signer, *, count: int, hold_for_s: float) -> list[Hold]:
        found = await look(signer, count=count, hold_for_s=hold_for_s)
        await lab.pass_time(200)
        await other.reclaim_expired(ALICE)
        taken.extend(await give(other, 20))
        return found

    monkeypatch.setattr(slow._store, "allocate_released", slowly)
    given = await give(slow, 3)
    assert len(taken) == 20
    assert set(range(2, 10)) <= set(taken), "the rest of the block was given by another process"
    assert len({*taken, *given}) == 23, "no nonce twice"


async def test_segments_replace_a_used_up_nonce_block_that_was_retired(lab: NonceLab) -> None:
    port, other = await lab.open("segments", block_size=5), await lab.open("segments", block_size=5)
    assert await give(port, 5) == [0, 1, 2, 3, 4]
    await lab.pool.execute("UPDATE nonce_block SET retired_at = clock_timestamp()")
    assert await give(port, 2) == [5, 6]
    assert await give(other) == [10]


async def test_segments_issue_across_two_nonce_blocks(lab: NonceLab) -> None:
    port, other = await lab.open("segments", block_size=5), await lab.open("segments", block_size=5)
    assert await give(port, 3) == [0, 1, 2]
    assert await give(other) == [5]
    assert await give(port, 4) == [3, 4, 10, 11]
    await port.close()
    assert await give(other, 4) == [6, 7, 8, 9]


# ---- the Redis lock


async def test_only_its_owner_deletes_the_lock(lab: NonceLab) -> None:
    link = lab.link()
    lock = RedisLock(link, ttl_s=5, wait_s=0)
    key = f"fencepost:nonce:lock:{ALICE}"
    async with lock.hold(ALICE) as has_it:
        assert has_it
        async with lock.hold(ALICE) as second_has_it:
            assert not second_has_it
        assert await link.command("EXISTS", key)
        await link.command("SET", key, "the token of another owner")
    assert await link.command("GET", key) == "the token of another owner"


async def test_the_lock_is_held_until_the_transaction_ends(lab: NonceLab) -> None:
    port = await lab.open("postgres+lock")
    await give(port)
    async with lab.pool.acquire() as blocker:
        transaction = blocker.transaction()
        await transaction.start()
        await blocker.execute("SELECT 1 FROM nonce_cursor FOR UPDATE")
        waiting = asyncio.create_task(give(port))
        link = lab.link()
        await until(lambda: link.command("EXISTS", f"fencepost:nonce:lock:{ALICE}"))
        await transaction.rollback()
        assert await waiting == [1]
        assert not await link.command("EXISTS", f"fencepost:nonce:lock:{ALICE}")


# ---- managed or nonce-only: the first use decides


async def test_one_of_two_concurrent_first_uses_wins(lab: NonceLab) -> None:
    """The core's accept waits at the nonce service's uncommitted row, and then sees the kind of the signer."""
    core = lab.core()
    async with lab.pool.acquire() as blocker:
        transaction = blocker.transaction()
        await transaction.start()
        await blocker.execute(
            "INSERT INTO signer_use (chain_id, signer, used_by) VALUES ($1, $2, 'nonce')",
            ALICE.chain_id,
            ALICE.address,
        )
        accepting = asyncio.create_task(core.accept([new(signer=ALICE), new(signer=BOB)]))
        await until(lambda: lab.pool.fetchval(SOMEBODY_WAITS))
        await transaction.commit()
        outcomes = [accepted.outcome for accepted in await accepting]
    assert outcomes == [AcceptOutcome.NONCE_ONLY, AcceptOutcome.CREATED]


async def test_two_nodes_with_a_concurrent_first_use_both_accept(lab: NonceLab) -> None:
    core = lab.core()
    async with lab.pool.acquire() as blocker:
        transaction = blocker.transaction()
        await transaction.start()
        await blocker.execute(
            "INSERT INTO signer_use (chain_id, signer, used_by) VALUES ($1, $2, 'core')",
            ALICE.chain_id,
            ALICE.address,
        )
        accepting = asyncio.create_task(core.accept([new(signer=ALICE)]))
        await until(lambda: lab.pool.fetchval(SOMEBODY_WAITS))
        await transaction.commit()
        (accepted,) = await accepting
    assert accepted.outcome is AcceptOutcome.CREATED
    with pytest.raises(SignerUsedOtherwise):
        await give(await lab.open("leased"))


async def test_the_token_alone_identifies_a_hold(lab: NonceLab) -> None:
    port = await lab.open("leased")
    (hold,) = await port.allocate(ALICE, hold_for_s=60)
    with pytest.raises(HoldLost):
        await port.mark_used(Hold(BOB, hold.nonce, hold.token))
    with pytest.raises(HoldLost):
        await port.mark_used(Hold(ALICE, hold.nonce, uuid4()))
