"""A fork that undid finished transactions is not forgotten: not during a database outage, not when its lease holder dies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID, uuid4

import pytest

from fakes.bench import CHAIN_ID, QUICK, Bench
from fakes.rounds import run_alone
from fencepost.application.ports import Header
from fencepost.application.reconcile import RECENT_FINISHED
from fencepost.domain.confirmations import BlockRef
from fencepost.domain.ids import Address, Signer
from fencepost.domain.states import State
from fencepost.runtime import head_follower
from fencepost.runtime.head_follower import ENDED_BLOCKS_PAGE
from fencepost.runtime.lease_acquirer import HELD_BY_OTHER_S
from fencepost.testing import InMemoryLedger


class _Unreachable(InMemoryLedger):
    """A ledger that does not answer while it is down."""

    down: bool = False

    async def signers_finished_since(
        self, chain_id: int, block_number: int, *, limit: int, after: Signer | None = None
    ) -> Sequence[Signer]:
        self._require_up()
        return await super().signers_finished_since(chain_id, block_number, limit=limit, after=after)

    async def newest_ended_blocks(
        self, chain_id: int, *, limit: int, below: int | None = None
    ) -> Sequence[BlockRef]:
        self._require_up()
        return await super().newest_ended_blocks(chain_id, limit=limit, below=below)

    async def signers_with_work(
        self, chain_ids: Sequence[int], *, limit: int, after: Signer | None = None
    ) -> Sequence[Signer]:
        self._require_up()
        return await super().signers_with_work(chain_ids, limit=limit, after=after)

    def _require_up(self) -> None:
        if self.down:
            raise ConnectionError("the database is gone")


async def test_undone_transactions_are_reopened_once_the_database_answers() -> None:
    bench = Bench()
    ledger = _Unreachable(bench.database, node="node", incarnation=uuid4())
    node = bench.node(ledger=ledger)
    tx_id = await bench.request()
    await node.turn()
    bench.chain.mine(2)
    await node.turn(2)
    assert bench.state(tx_id) is State.CONFIRMED
    await node.release()

    ledger.down = True
    bench.chain.reorg(2)
    with pytest.raises(ConnectionError):
        await node.node.heads_once(CHAIN_ID)  # the view has advanced: this fork is seen once
    ledger.down = False
    await node.node.heads_once(CHAIN_ID)
    ledger.down = True
    with pytest.raises(ConnectionError):
        await node.node.acquire_once()
    ledger.down = False
    assert await node.node.acquire_once() == 1
    await run_alone(node.lane)
    assert bench.state(tx_id) is not State.CONFIRMED


async def test_undone_transactions_are_reopened_after_their_lease_holder_died() -> None:
    bench = Bench()
    holder, other = bench.node(name="holder"), bench.node(name="other")
    await other.node.heads_once(CHAIN_ID)
    tx_id = await bench.request()
    await holder.turn()
    bench.chain.mine(2)
    await holder.turn(2)
    await other.node.heads_once(CHAIN_ID)
    assert bench.state(tx_id) is State.CONFIRMED

    bench.chain.reorg(2)
    await other.node.heads_once(CHAIN_ID)
    assert await other.node.acquire_once() == 0  # the lease is held: its holder will reopen them, if it lives
    bench.clock.advance(60.0)
    assert await other.node.acquire_once() == 1
    await run_alone(other.lane)
    assert bench.state(tx_id) is not State.CONFIRMED


@pytest.mark.parametrize("is_included_again", [True, False])
async def test_transactions_undone_while_no_node_ran_are_reopened_by_the_first_node_that_starts(
    is_included_again: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    bench = Bench()
    before = bench.node(name="before")
    tx_id = await bench.request()
    await before.turn()
    bench.chain.mine(2)
    await before.turn(2)
    assert bench.state(tx_id) is State.CONFIRMED
    await before.release()

    bench.chain.reorg(2, keep=[bench.tx(tx_id).latest.signed.hash] if is_included_again else [])
    after = bench.node(name="after")
    await after.node.heads_once(CHAIN_ID)  # its view starts here and shows no fork
    assert await after.node.acquire_once() == 1
    await run_alone(after.lane)
    assert bench.events(tx_id).count("Fork") == 1


async def test_a_fork_below_the_start_of_a_view_is_found() -> None:
    bench = Bench()
    before = bench.node(name="before")
    tx_id = await bench.request()
    await before.turn()
    bench.chain.mine(3)
    await before.turn(2)
    assert bench.state(tx_id) is State.CONFIRMED
    await before.release()
    after = bench.node(name="after")
    await after.node.heads_once(CHAIN_ID)  # its view starts at the head: finished transactions lie below
    bench.chain.reorg(3)
    await after.node.heads_once(CHAIN_ID)
    assert await after.node.acquire_once() == 1
    await run_alone(after.lane)
    assert bench.events(tx_id).count("Fork") == 1


async def test_transactions_undone_by_an_earlier_fork_are_found_below_a_canonical_block() -> None:
    bench = Bench()
    before = bench.node(name="before")
    undone = await bench.request()
    await before.turn()
    bench.chain.mine(2)
    await before.turn(2)
    row = bench.tx(undone)
    bench.chain.reorg(2, keep=[row.latest.signed.hash])
    await bench.request()
    await before.turn()
    bench.chain.mine(2)
    await before.turn(2)
    await before.release()
    bench.database.txs[undone] = row  # as if the node that saw the fork had died before it wrote anything
    after = bench.node(name="after")
    await after.node.heads_once(CHAIN_ID)
    assert await after.node.acquire_once() == 1


async def test_a_start_acquires_no_signer_whose_blocks_are_canonical() -> None:
    bench = Bench()
    before = bench.node(name="before")
    await bench.request()
    await before.turn()
    bench.chain.mine(2)
    await before.turn(2)
    await before.release()
    after = bench.node(name="after")
    await after.node.heads_once(CHAIN_ID)
    assert await after.node.acquire_once() == 0


async def test_a_start_repeats_its_search_after_a_database_failure() -> None:
    bench = Bench()
    before = bench.node(name="before")
    await bench.request()
    await before.turn()
    bench.chain.mine(2)
    await before.turn(2)
    await before.release()
    bench.chain.reorg(2)
    ledger = _Unreachable(bench.database, node="after", incarnation=uuid4())
    after = bench.node(ledger=ledger)
    ledger.down = True
    with pytest.raises(ConnectionError):
        await after.node.heads_once(CHAIN_ID)
    ledger.down = False
    await after.node.heads_once(CHAIN_ID)
    assert await after.node.acquire_once() == 1


@pytest.mark.parametrize("count", [3, 16, 40, 150])
async def test_a_new_owner_reopens_everything_undone_without_a_notification(count: int) -> None:
    """Blocks hold many transactions of one signer: a read of the newest few is not enough."""
    bench = Bench()
    wide = replace(QUICK, max_in_flight=256)
    standing = await bench.request()
    before = bench.node(wide, name="before")
    await before.turn()
    bench.chain.mine(2)
    await before.turn(2)
    tx_ids = await bench.requests(count)
    await before.turn()
    bench.chain.mine(2)
    await before.turn(2)
    assert {bench.state(tx_id) for tx_id in tx_ids} == {State.CONFIRMED}
    await before.release()

    bench.chain.reorg(2)
    after = bench.node(wide, name="after")
    await after.turn()
    assert State.CONFIRMED not in {bench.state(tx_id) for tx_id in tx_ids}
    assert bench.state(standing) is State.CONFIRMED


async def test_undone_transactions_are_found_below_many_that_finished_later() -> None:
    """The fork comes during a step that finishes others, and the lane is lost before it checks the fork."""
    bench = Bench()
    wide = replace(QUICK, max_in_flight=4 * RECENT_FINISHED)
    holder, other = bench.node(wide, name="holder"), bench.node(wide, name="other")
    undone = await bench.requests(2)
    await holder.turn()
    bench.chain.mine(2)
    await holder.turn(2)
    await other.node.heads_once(CHAIN_ID)
    assert {bench.state(tx_id) for tx_id in undone} == {State.CONFIRMED}

    bench.chain.reorg(2, keep=[bench.tx(tx_id).latest.signed.hash for tx_id in undone])
    for node in (holder, other):
        await node.node.heads_once(CHAIN_ID)
    holder.lane.blocks.forked_at = None  # its step had begun before
    later = await bench.requests(2 * RECENT_FINISHED)
    await holder.turn()
    bench.chain.mine(2)
    await holder.turn(2)
    assert {bench.state(tx_id) for tx_id in later} == {State.CONFIRMED}
    await holder.release()

    bench.clock.advance(HELD_BY_OTHER_S)
    await other.turn()
    assert [bench.events(tx_id).count("Fork") for tx_id in undone] == [1, 1]


def finished_by_other_signer(bench: Bench, like: UUID, *, blocks: Sequence[Header]) -> None:
    """Store a row per block of a signer without a key here, finished in that block."""
    tx = bench.tx(like)
    assert tx.mined is not None
    other = Signer(CHAIN_ID, Address("0x" + "0b" * 20))
    for header in blocks:
        mined = tx.mined.changed(block=BlockRef(header.number, header.hash))
        row = tx.changed(
            tx_id=uuid4(), signer=other, seq=tx.seq + header.number, nonce=header.number, mined=mined
        )
        bench.database.txs[row.tx_id] = row


@pytest.mark.parametrize("pages", [1, 3])
async def test_a_deep_fork_while_no_node_ran_is_followed_to_a_canonical_block(pages: int) -> None:
    """The newest blocks all belong to another signer; our undone request lies below them."""
    bench = Bench()
    before = bench.node(name="before")
    standing, undone = (await before.ended(1))[0], (await before.ended(1))[0]
    depth = pages * ENDED_BLOCKS_PAGE + 1
    bench.chain.mine(depth)
    finished_by_other_signer(bench, undone, blocks=bench.chain.newest(depth))
    await before.release()
    bench.chain.reorg(depth + 2, keep=[bench.tx(undone).latest.signed.hash])
    after = bench.node(name="after")
    await after.node.heads_once(CHAIN_ID)
    assert await after.node.acquire_once() == 1
    await run_alone(after.lane)
    assert (bench.events(undone).count("Fork"), bench.events(standing).count("Fork")) == (1, 0)


async def test_every_signer_is_checked_when_no_block_is_canonical(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(head_follower, "MAX_ENDED_BLOCKS_PAGES", 1)
    bench = Bench()
    before = bench.node(name="before")
    (undone,) = await before.ended(1)
    bench.chain.mine(ENDED_BLOCKS_PAGE + 1)
    finished_by_other_signer(bench, undone, blocks=bench.chain.newest(ENDED_BLOCKS_PAGE + 1))
    await before.release()
    bench.chain.reorg(bench.chain.height)
    after = bench.node(name="after")
    await after.node.heads_once(CHAIN_ID)
    assert await after.node.acquire_once() == 1
    assert "all signers are checked" in caplog.text


async def test_the_signers_of_a_fork_are_read_in_pages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(head_follower, "SIGNERS_PAGE", 2)
    bench = Bench()
    node = bench.node()
    (tx_id,) = await node.ended(1)
    tx = bench.tx(tx_id)
    signers = [Signer(CHAIN_ID, Address(f"0x{number:040x}")) for number in range(5)]
    for signer in signers:
        row = tx.changed(tx_id=uuid4(), signer=signer)
        bench.database.txs[row.tx_id] = row
    shown: list[Signer] = []
    follower = replace(node.node.head_follower, on_undone=lambda signer, _block: shown.append(signer))
    bench.chain.reorg(2)
    await follower.once(CHAIN_ID)
    assert sorted(shown) == sorted([*signers, bench.signer])
