"""`open_fencepost` runs a real node over memory: sends, waits, handlers, reorgs, PROTECT and take-overs work."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from uuid import UUID

import pytest

from fakes.no_observer import check_waits_without_polling, silence_observers
from fakes.raw_http import until
from fencepost import Call, Fencepost, ManagedTx, NonceContext, TxsChanged, UnsignedTx
from fencepost.domain.states import CursorState, State
from fencepost.errors import InvalidRequest, RequestConflict, SettingError, Stopping
from fencepost.testing import InMemoryChain, InMemoryDatabase, LostResponse, open_fencepost

QUICK = {"confirmations.required": "1"}
SINK = "0x" + "5e" * 20


async def finished(fencepost: Fencepost, tx_id: UUID) -> ManagedTx:
    tx = await fencepost.wait_for(tx_id, "finished", timeout_s=20)
    assert tx is not None
    return tx


async def test_a_request_is_mined_once_however_often_it_is_submitted() -> None:
    chain = InMemoryChain()
    async with open_fencepost(chain=chain, options=QUICK) as fencepost:
        (me,) = fencepost.addresses
        tx_id = await fencepost.create(signer=me, request_id="order-7", to=SINK, value_wei=1)
        assert await fencepost.create(signer=me, request_id="order-7", to=SINK, value_wei=1) == tx_id
        with pytest.raises(RequestConflict):
            await fencepost.create(signer=me, request_id="order-7", to=SINK, value_wei=2)
        tx = await finished(fencepost, tx_id)
        assert (tx.state, tx.nonce) == (State.CONFIRMED, 0)
        assert await fencepost.by_request(me, "order-7") == tx
    assert {sent.hash for sent in chain.sent} == {tx.hash}


async def test_a_lost_answer_does_not_repeat_a_transaction() -> None:
    chain = InMemoryChain()
    chain.script_next_sends(LostResponse.AFTER)
    async with open_fencepost(chain=chain, options=QUICK) as fencepost:
        (me,) = fencepost.addresses
        first, second = [await fencepost.create(signer=me, to=SINK, value_wei=n) for n in (1, 2)]
        assert [(await finished(fencepost, tx_id)).nonce for tx_id in (first, second)] == [0, 1]


async def test_a_handler_gets_the_nonce() -> None:
    async with open_fencepost(options=QUICK) as fencepost:
        (me,) = fencepost.addresses

        async def build(context: NonceContext) -> UnsignedTx:
            return UnsignedTx(31_337, context.nonce, Call(to=me, value_wei=7), 21_000, context.fees)

        tx = await finished(fencepost, await fencepost.with_nonce(me, build))
    assert (tx.state, tx.nonce) == (State.CONFIRMED, 0)


async def test_nothing_is_mined_unless_the_test_mines() -> None:
    chain = InMemoryChain()
    async with open_fencepost(chain=chain, block_time_s=None, options=QUICK) as fencepost:
        (me,) = fencepost.addresses
        tx_id = await fencepost.create(signer=me, to=SINK, value_wei=1)
        tx = await fencepost.wait_for(tx_id, "submitted", timeout_s=20)
        assert tx is not None
        assert tx.state is State.SUBMITTED
        chain.mine(2)
        assert (await finished(fencepost, tx_id)).state is State.CONFIRMED


async def test_a_reorg_before_the_confirmations_delays_the_end() -> None:
    chain = InMemoryChain()
    async with open_fencepost(
        chain=chain, block_time_s=None, options={"confirmations.required": "3"}
    ) as fencepost:
        (me,) = fencepost.addresses
        tx_id = await fencepost.create(signer=me, to=SINK, value_wei=1)
        await fencepost.wait_for(tx_id, "submitted", timeout_s=20)
        chain.mine(2)
        await fencepost.wait_for(tx_id, "mined", timeout_s=20)
        chain.reorg(2)
        chain.mine(5)
        tx = await finished(fencepost, tx_id)
    assert tx.state is State.CONFIRMED
    assert tx.mined is not None
    assert chain.is_canonical(tx.mined.block.number, tx.mined.block.hash)


async def test_a_key_that_is_used_outside_puts_its_signer_into_protect() -> None:
    chain, database = InMemoryChain(), InMemoryDatabase()
    async with open_fencepost(chain=chain, database=database, options=QUICK) as fencepost:
        (me,) = fencepost.addresses
        await finished(fencepost, await fencepost.create(signer=me, to=SINK, value_wei=1))
        chain.add_foreign_tx(me)
        await fencepost.create(signer=me, to=SINK, value_wei=2)
        signer = fencepost.signer(me)
        await until(lambda: database.cursors[signer].state is CursorState.PROTECT)


async def test_a_second_node_continues_with_the_same_rows() -> None:
    chain, database = InMemoryChain(), InMemoryDatabase()
    nonces = []
    for number in range(2):
        async with open_fencepost(chain=chain, database=database, options=QUICK) as fencepost:
            (me,) = fencepost.addresses
            tx_id = await fencepost.create(signer=me, request_id=f"r{number}", to=SINK, value_wei=1)
            nonces.append((await finished(fencepost, tx_id)).nonce)
    assert nonces == [0, 1]


async def test_bad_input_and_bad_settings_are_rejected() -> None:
    async with open_fencepost() as fencepost:
        with pytest.raises(InvalidRequest):
            await fencepost.create(signer="0x12", to=SINK)
        with pytest.raises(AttributeError, match="pool"):
            _ = fencepost.running.pool
    with pytest.raises(SettingError):
        async with open_fencepost(options={"no.such": "1"}):
            pass


async def test_waits_end_when_the_block_ends() -> None:
    waits: list[Callable[[], Awaitable[object]]] = []
    async with open_fencepost(block_time_s=None) as fencepost:
        (me,) = fencepost.addresses
        tx_id = await fencepost.create(signer=me, to=SINK)
        waits.append(lambda: fencepost.wait_for(tx_id, "finished", timeout_s=20))
    with pytest.raises(Stopping):
        await waits[0]()


async def test_the_environment_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FENCEPOST_CONFIRMATIONS_REQUIRED", "nonsense")
    async with open_fencepost() as fencepost:
        assert len(fencepost.addresses) == 1


async def test_without_an_observer_waits_end_at_the_commit_and_transactions_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    silence_observers(monkeypatch)
    async with open_fencepost(options=QUICK) as fencepost:
        await check_waits_without_polling(fencepost, monkeypatch)


async def test_a_program_subscribes_to_the_commits_of_its_node() -> None:
    published: list[TxsChanged] = []
    async with open_fencepost(options=QUICK) as fencepost:
        (me,) = fencepost.addresses
        unsubscribe = fencepost.subscribe(published.append)
        tx_id = await fencepost.create(signer=me, to=SINK)
        tx = await finished(fencepost, tx_id)
        unsubscribe()
        seen = len(published)
        await finished(fencepost, await fencepost.create(signer=me, to=SINK))
        assert len(published) == seen
    changes = [change for event in published for change in event.changes]
    assert {change.before.tx_id for change in changes} == {tx_id}
    assert changes[0].before.state is State.QUEUED
    assert changes[-1].after.state is tx.state is State.CONFIRMED
