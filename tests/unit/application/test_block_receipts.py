"""Receipts of a block with mostly our transactions are read once for all lanes; otherwise by hash."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from fakes.bench import QUICK, Bench
from fencepost.application import block_receipts
from fencepost.application.block_receipts import MIN_OWN_TXS, BlockReceipts
from fencepost.application.ports import Block, Chain
from fencepost.domain.states import State
from fencepost.errors import RpcUnavailable

COUNT = MIN_OWN_TXS + 4


class _Heard:
    """A chain that records calls and can answer them differently."""

    def __init__(self, chain: Chain) -> None:
        self._chain = chain
        self.asked: list[str] = []
        self.otherwise: dict[str, Callable[..., Any]] = {}

    def __getattr__(self, name: str) -> Any:
        if name in ("receipts", "block_receipts"):
            self.asked.append(name)
        return self.otherwise.get(name) or getattr(self._chain, name)


class _Place:
    def __init__(self) -> None:
        self.bench = Bench()
        self.heard = _Heard(self.bench.chain)
        self.chain = cast("Chain", self.heard)
        self.at = self.bench.node(replace(QUICK, max_in_flight=COUNT), chain=self.chain)
        self.receipts = BlockReceipts()

    async def block(self) -> Block:
        """Mine a new block with `COUNT` transactions of ours."""
        await self.bench.requests(COUNT)
        await self.at.turn()
        block = self.bench.chain.mine()
        assert len(block.tx_hashes) == COUNT
        return block

    async def require_all(self, block: Block) -> None:
        """Assert that each transaction gets its own receipt of this block."""
        found = await self.receipts.fetch(self.chain, block.tx_hashes)
        assert [receipt and receipt.tx_hash for receipt in found] == list(block.tx_hashes)
        assert {receipt.block.hash for receipt in found if receipt} == {block.header.hash}


@pytest.fixture
def place() -> _Place:
    return _Place()


async def test_a_lane_finishes_a_block_with_one_call(place: _Place) -> None:
    tx_ids = await place.bench.requests(COUNT)
    await place.at.turn()
    place.bench.chain.mine(2)
    place.heard.asked.clear()
    await place.at.turn()
    assert {place.bench.state(tx_id) for tx_id in tx_ids} == {State.CONFIRMED}
    assert place.heard.asked == ["block_receipts"]


async def test_concurrent_readers_share_one_call(place: _Place) -> None:
    block = await place.block()
    place.receipts.add_block(block, block.tx_hashes)
    found = await asyncio.gather(
        *(place.receipts.fetch(place.chain, [tx_hash]) for tx_hash in block.tx_hashes)
    )
    assert [receipt.tx_hash for (receipt,) in found if receipt] == list(block.tx_hashes)
    assert place.heard.asked == ["block_receipts"]


@pytest.mark.parametrize("ours", [MIN_OWN_TXS - 1, 0])
async def test_a_few_receipts_are_read_by_hash(place: _Place, ours: int) -> None:
    block = await place.block()
    place.receipts.add_block(block, block.tx_hashes[:ours])
    await place.require_all(block)
    assert place.heard.asked == ["receipts"]


async def test_a_block_with_mostly_foreign_transactions_is_not_read_whole(place: _Place) -> None:
    block = await place.block()
    crowded = block.changed(tx_hashes=(*block.tx_hashes, *(f"0x{other:064x}" for other in range(COUNT + 1))))
    place.receipts.add_block(crowded, block.tx_hashes)
    await place.require_all(block)
    assert place.heard.asked == ["receipts"]


async def test_receipts_of_other_blocks_are_read_in_addition(place: _Place) -> None:
    earlier, block = await place.block(), await place.block()
    place.heard.asked.clear()
    place.receipts.add_block(block, block.tx_hashes)
    found = await place.receipts.fetch(place.chain, [*earlier.tx_hashes[:1], *block.tx_hashes])
    assert [receipt and receipt.block.number for receipt in found] == [earlier.header.number] + [
        block.header.number
    ] * COUNT
    assert place.heard.asked == ["block_receipts", "receipts"]


async def _none(_number: int) -> None:
    return None


async def _fails(_number: int) -> None:
    raise RpcUnavailable("no answer")


async def _hangs(_number: int) -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("answer", [_none, _fails, _hangs])
async def test_an_endpoint_without_block_receipts_is_called_by_hash(
    place: _Place, answer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_receipts, "READ_TIMEOUT_S", 0.05)
    block = await place.block()
    place.heard.otherwise["block_receipts"] = answer
    place.receipts.add_block(block, block.tx_hashes)
    await place.require_all(block)
    await place.require_all(block)
    assert place.heard.asked == ["block_receipts", "receipts", "receipts"]


async def test_receipts_of_another_fork_are_not_used(place: _Place) -> None:
    block = await place.block()
    place.receipts.add_block(block, block.tx_hashes)
    place.bench.chain.reorg(1, keep=block.tx_hashes[:1])
    found = await place.receipts.fetch(place.chain, block.tx_hashes)
    assert place.heard.asked == ["block_receipts", "receipts"]
    assert [receipt is not None for receipt in found] == [True] + [False] * (COUNT - 1)
    assert found[0] is not None
    assert found[0].block.hash != block.header.hash


async def test_a_replaced_block_serves_no_receipts(place: _Place) -> None:
    block = await place.block()
    place.receipts.add_block(block, block.tx_hashes)
    await place.require_all(block)
    place.bench.chain.reorg(1, keep=block.tx_hashes)
    found = await place.receipts.fetch(place.chain, block.tx_hashes)
    assert [receipt and receipt.tx_hash for receipt in found] == list(block.tx_hashes)
    assert block.header.hash not in {receipt.block.hash for receipt in found if receipt}
    assert place.heard.asked == ["block_receipts", "receipts"]


async def test_waiting_readers_continue_when_the_reading_one_is_cancelled(place: _Place) -> None:
    block = await place.block()
    begun = asyncio.Event()

    async def never(_number: int) -> None:
        begun.set()
        await asyncio.Event().wait()

    place.heard.otherwise["block_receipts"] = never
    place.receipts.add_block(block, block.tx_hashes)
    reader = asyncio.create_task(place.require_all(block))
    await begun.wait()
    waiter = asyncio.create_task(place.require_all(block))
    await asyncio.sleep(0)
    reader.cancel()
    async with asyncio.timeout(5):
        await waiter
    assert place.heard.asked == ["block_receipts", "receipts"]


async def test_the_newest_blocks_are_kept(place: _Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_receipts, "MAX_AWAITED", 3 * COUNT)
    blocks = [await place.block() for _ in range(4)]
    for block in blocks:
        place.receipts.add_block(block, block.tx_hashes)
    place.heard.asked.clear()
    await place.require_all(blocks[0])
    assert place.heard.asked == ["receipts"]
    for block in blocks[1:]:
        await place.require_all(block)
    assert place.heard.asked == ["receipts"] + ["block_receipts"] * 3


async def test_a_block_is_forgotten_when_all_its_receipts_were_read(place: _Place) -> None:
    block = await place.block()
    place.receipts.add_block(block, block.tx_hashes)
    first, *others = block.tx_hashes
    await place.receipts.fetch(place.chain, others)
    whole = place.receipts._block_of[first]
    assert list(whole.receipts) == [first]
    await place.receipts.fetch(place.chain, [first])
    assert not place.receipts._block_of
    assert not whole.receipts
