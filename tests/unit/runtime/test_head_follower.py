"""The head follower reads the receipts of a large block in the background while lanes continue to send."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, cast
from uuid import UUID

import pytest

from fakes.bench import CHAIN_ID, QUICK, Bench
from fakes.rounds import run_alone
from fencepost.application.allocate import window_capacity
from fencepost.application.block_receipts import MIN_OWN_TXS
from fencepost.application.ports import Chain, Header
from fencepost.domain.ids import TxHash
from fencepost.domain.states import State
from fencepost.domain.transaction_state import Receipt
from fencepost.errors import RpcUnavailable

WINDOW = MIN_OWN_TXS


class _SlowBlocks:
    """A chain whose block receipts come on demand."""

    def __init__(self, chain: Chain) -> None:
        self._chain = chain
        self.asked: list[int] = []
        self.may_answer = asyncio.Event()
        self.error: Exception | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._chain, name)

    async def block_receipts(self, number: int) -> Sequence[Receipt] | None:
        self.asked.append(number)
        await self.may_answer.wait()
        if self.error is not None:
            raise self.error
        return await self._chain.block_receipts(number)


class _Place:
    """A pipelined signer with a full window and more requests waiting; the head follower runs in the background."""

    def __init__(self) -> None:
        self.bench = Bench()
        self.chain = _SlowBlocks(self.bench.chain)
        policy = replace(QUICK, max_in_flight=WINDOW)
        self.at = self.bench.node(policy, chain=cast("Chain", self.chain))
        self._heads: asyncio.Queue[Header] = asyncio.Queue()
        self.at.node.head_follower = replace(self.at.node.head_follower, heads={CHAIN_ID: self._feed})
        self.tx_ids: list[UUID] = []

    async def _feed(self) -> AsyncGenerator[Header, None]:
        while True:
            yield await self._heads.get()

    @asynccontextmanager
    async def followed(self) -> AsyncIterator[None]:
        self.tx_ids = await self.bench.requests(3 * WINDOW)
        await self.at.turn()
        assert len(self.bench.chain.sent) == WINDOW
        head_follower = asyncio.create_task(self.at.node.head_follower.run(CHAIN_ID))
        try:
            yield
        finally:
            head_follower.cancel()
            with suppress(asyncio.CancelledError):
                await head_follower

    async def mined(self) -> None:
        """Mine a block with everything that was sent, and let the node see it."""
        block = self.bench.chain.mine()
        await self.seen(block.header)

    async def seen(self, head: Header) -> None:
        self._heads.put_nowait(head)
        await self.settle()

    async def settle(self) -> None:
        for _ in range(50):
            await asyncio.sleep(0)

    def states(self) -> list[State]:
        return [self.bench.state(tx_id) for tx_id in self.tx_ids]


@pytest.fixture
async def place() -> AsyncIterator[_Place]:
    place = _Place()
    async with place.followed():
        yield place


async def test_the_next_transactions_are_sent_while_receipts_are_read(place: _Place) -> None:
    await place.mined()
    assert len(place.chain.asked) == 1
    await run_alone(place.at.lane)
    assert len(place.bench.chain.sent) == 2 * WINDOW
    assert State.TRACKING not in place.states()
    place.chain.may_answer.set()
    await place.settle()
    await run_alone(place.at.lane)
    assert place.states()[:WINDOW] == [State.TRACKING] * WINDOW
    assert len(place.chain.asked) == 1


async def test_at_most_two_windows_are_in_flight_without_receipts(place: _Place) -> None:
    await place.mined()
    await run_alone(place.at.lane)
    await place.mined()
    await run_alone(place.at.lane)
    assert len(place.bench.chain.sent) == 2 * WINDOW
    assert window_capacity(place.at.lane) == 0


async def test_an_unknown_mined_hash_frees_no_window_capacity(place: _Place) -> None:
    """After a fail-over at most a window of bytes may be in flight: leftovers must not widen it."""
    place.at.lane.blocks.mined_hashes.add(TxHash("0x" + "77" * 32))
    assert window_capacity(place.at.lane) == 0


@pytest.mark.parametrize("error", [RpcUnavailable("no answer"), ValueError("an unexpected error")])
async def test_unreadable_block_receipts_are_read_by_hash(place: _Place, error: Exception) -> None:
    place.chain.error = error
    place.chain.may_answer.set()
    await place.mined()
    await run_alone(place.at.lane)
    assert place.states()[:WINDOW] == [State.TRACKING] * WINDOW


async def test_a_fork_while_receipts_are_read_takes_the_capacity_back(place: _Place) -> None:
    await place.mined()
    assert window_capacity(place.at.lane) == WINDOW
    place.bench.chain.reorg(1, keep=())
    await place.seen(await place.bench.chain.head())
    assert window_capacity(place.at.lane) == 0
    place.chain.may_answer.set()
    await place.settle()
    await run_alone(place.at.lane)
    assert State.TRACKING not in place.states()


async def test_receipts_for_a_released_lane_are_dropped(place: _Place) -> None:
    await place.mined()
    await place.at.release()
    place.chain.may_answer.set()
    await place.settle()
    await place.at.turn(2)
    assert place.states()[:WINDOW] == [State.TRACKING] * WINDOW
