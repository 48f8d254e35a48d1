"""A large block's receipts are read beside the lanes: whoever has something in it goes on sending meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, cast
from uuid import UUID

import pytest

from fakes.bench import CHAIN_ID, QUICK, Bench
from fencepost.application.allocate import room
from fencepost.application.block_receipts import LEAST_OURS
from fencepost.application.ports import Chain, Header
from fencepost.application.step import step
from fencepost.domain.ids import TxHash
from fencepost.domain.managed import Receipt
from fencepost.domain.states import State
from fencepost.errors import RpcUnavailable

WINDOW = LEAST_OURS


class _SlowBlocks:
    """The chain, but receipts of a block come when they may."""

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
    """A pipelined signer whose window is full, with as much again waiting; the chain is followed in the background."""

    def __init__(self) -> None:
        self.bench = Bench()
        self.chain = _SlowBlocks(self.bench.chain)
        policy = replace(QUICK, max_in_flight=WINDOW)
        self.at = self.bench.node(policy, chain=cast("Chain", self.chain))
        self._heads: asyncio.Queue[Header] = asyncio.Queue()
        self.at.node.following = replace(self.at.node.following, heads={CHAIN_ID: self._feed})
        self.tx_ids: list[UUID] = []

    async def _feed(self) -> AsyncGenerator[Header, None]:
        while True:
            yield await self._heads.get()

    @asynccontextmanager
    async def followed(self) -> AsyncIterator[None]:
        self.tx_ids = await self.bench.requests(3 * WINDOW)
        await self.at.turn()
        assert len(self.bench.chain.sent) == WINDOW
        following = asyncio.create_task(self.at.node.following.run(CHAIN_ID))
        try:
            yield
        finally:
            following.cancel()
            with suppress(asyncio.CancelledError):
                await following

    async def mined(self) -> None:
        """A block with all that was sent, seen by the node."""
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


async def test_the_next_go_out_while_receipts_are_read(place: _Place) -> None:
    await place.mined()
    assert len(place.chain.asked) == 1
    await step(place.at.lane)
    assert len(place.bench.chain.sent) == 2 * WINDOW
    assert State.TRACKING not in place.states()
    place.chain.may_answer.set()
    await place.settle()
    await step(place.at.lane)
    assert place.states()[:WINDOW] == [State.TRACKING] * WINDOW
    assert len(place.chain.asked) == 1


async def test_without_receipts_no_more_than_twice_the_window_is_unrecorded(place: _Place) -> None:
    await place.mined()
    await step(place.at.lane)
    await place.mined()
    await step(place.at.lane)
    assert len(place.bench.chain.sent) == 2 * WINDOW
    assert room(place.at.lane) == 0


async def test_what_is_none_of_its_own_any_more_makes_no_room(place: _Place) -> None:
    """After a fail-over no more than a window of bytes may be out: whatever is left over here must not widen it."""
    place.at.lane.in_block.add(TxHash("0x" + "77" * 32))
    assert room(place.at.lane) == 0


@pytest.mark.parametrize("error", [RpcUnavailable("no answer"), ValueError("nobody expected this")])
async def test_receipts_that_can_not_be_read_so_are_looked_up_by_hash(
    place: _Place, error: Exception
) -> None:
    place.chain.error = error
    place.chain.may_answer.set()
    await place.mined()
    await step(place.at.lane)
    assert place.states()[:WINDOW] == [State.TRACKING] * WINDOW


async def test_a_fork_while_receipts_are_read_takes_the_room_back(place: _Place) -> None:
    await place.mined()
    assert room(place.at.lane) == WINDOW
    place.bench.chain.reorg(1, keep=())
    await place.seen(await place.bench.chain.head())
    assert room(place.at.lane) == 0
    place.chain.may_answer.set()
    await place.settle()
    await step(place.at.lane)
    assert State.TRACKING not in place.states()


async def test_a_lane_that_is_gone_when_receipts_come_is_not_told(place: _Place) -> None:
    await place.mined()
    await place.at.release()
    place.chain.may_answer.set()
    await place.settle()
    await place.at.turn(2)
    assert place.states()[:WINDOW] == [State.TRACKING] * WINDOW
