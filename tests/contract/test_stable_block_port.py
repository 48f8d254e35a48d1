"""One contract for stable blocks in PostgreSQL and in memory, and the loop that writes them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest
import pytest_asyncio
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.ledger_lab import LEASE_S
from fencepost.adapters.postgres.database import open_pool
from fencepost.adapters.postgres.event_log import PostgresEventLog
from fencepost.adapters.postgres.stable_blocks import PostgresStableBlocks
from fencepost.domain.confirmations import BlockRef
from fencepost.domain.ids import BlockHash
from fencepost.events.blocks import MAX_BLOCKS_KEPT, LinkedBlock, StableBlocks, StableBlockStore, StableEntry
from fencepost.events.log import BEGINNING, EventLog
from fencepost.events.reader import EventReader
from fencepost.events.types import Event, EventType
from fencepost.testing import InMemoryDatabase
from fencepost.testing.event_log import InMemoryEventLog
from fencepost.testing.stable_blocks import InMemoryStableBlocks
from integration.stage import open_stage, until

CHAIN_ID = 7


@dataclass(frozen=True, slots=True)
class Lab:
    store: StableBlockStore
    log: EventLog

    async def all(self) -> list[Event]:
        found: list[Event] = []
        reader, after = EventReader(self.log), BEGINNING
        while (page := await reader.page(after)).next != after:
            found += page.events
            after = page.next
        return found

    async def events(self, count: int) -> list[Event]:
        """Read the events once there are so many; other users of the server may delay the newest."""
        found: list[Event] = []

        async def came() -> bool:
            found[:] = await self.all()
            return len(found) >= count

        await until(came)
        return found


def memory_lab() -> Lab:
    database = InMemoryDatabase()
    return Lab(InMemoryStableBlocks(database), InMemoryEventLog(database))


@pytest_asyncio.fixture
async def postgres_lab(dsn: str) -> AsyncIterator[Lab]:
    async with (
        open_stage(dsn),
        open_pool(dsn, size=2, connect_timeout_s=10, lease_duration_s=LEASE_S, application="test") as pool,
    ):
        yield Lab(PostgresStableBlocks(pool, node="n"), PostgresEventLog(pool))


@pytest.fixture(params=["memory", "postgres"])
def lab(request: pytest.FixtureRequest) -> Lab:
    if request.param == "memory":
        return memory_lab()
    made: Lab = request.getfixturevalue("postgres_lab")
    return made


def block(number: int, branch: int = 0) -> BlockRef:
    return BlockRef(number, BlockHash(f"0x{branch:032x}{number:032x}"))


@dataclass(slots=True)
class Chain:
    """A chain whose newest blocks can be replaced."""

    blocks: list[BlockRef] = field(default_factory=lambda: [block(0)])
    branch: int = 0

    def mine(self, count: int) -> None:
        for _ in range(count):
            self.blocks.append(block(len(self.blocks), self.branch))

    def reorg(self, depth: int) -> None:
        """Replace the newest blocks by others, and mine one more."""
        depth = min(depth, len(self.blocks) - 1)
        del self.blocks[len(self.blocks) - depth :]
        self.branch += 1
        self.mine(depth + 1)

    async def read(self, number: int) -> LinkedBlock | None:
        await asyncio.sleep(0)
        if number >= len(self.blocks):
            return None
        return LinkedBlock(self.blocks[number], self.blocks[number - 1].hash if number else BlockHash("0x0"))

    def follower(self, lab: Lab, *, depth: int = 2) -> StableBlocks:
        return StableBlocks(
            CHAIN_ID, depth, lab.store, head=lambda: len(self.blocks) - 1, read_block=self.read
        )


async def test_a_chain_that_is_new_has_no_blocks(lab: Lab) -> None:
    assert list(await lab.store.recent(CHAIN_ID)) == []


async def test_the_first_writer_decides(lab: Lab) -> None:
    store = lab.store
    moves = [
        await store.move(
            CHAIN_ID, expected=None, blocks=[first], entries=[StableEntry(first, "0x1")], depth=2
        )
        for first in (block(5), block(6))
    ]
    assert moves == [True, False]
    for expected in (block(4), block(5, branch=1)):
        entries = [StableEntry(block(6), "0x5")]
        assert not await store.move(
            CHAIN_ID, expected=expected, blocks=[block(5), block(6)], entries=entries, depth=2
        )
    assert list(await store.recent(CHAIN_ID)) == [block(5)]
    (event,) = await lab.events(1)
    assert (event.type, event.chain_id, event.address) == (EventType.BLOCK_STABLE, CHAIN_ID, None)
    assert (event.block, event.parent_hash, event.depth) == (block(5), "0x1", 2)


async def test_blocks_are_stable_at_their_depth_and_a_fork_below_it_is_named(lab: Lab) -> None:
    chain = Chain()
    chain.mine(4)
    follower = chain.follower(lab)
    await follower.turn()
    assert [event.block for event in await lab.events(1)] == [block(2)]
    chain.mine(2)
    chain.reorg(2)  # above the stable blocks: no event about it
    await follower.turn()
    events = await lab.events(4)
    assert [event.type for event in events] == [EventType.BLOCK_STABLE] * 4
    assert [event.block for event in events] == [block(2), block(3), block(4), block(5, 1)]
    chain.reorg(5)
    await chain.follower(lab).turn()  # another node
    fork, *fresh = (await lab.events(9))[4:]
    assert (fork.type, fork.block, fork.replaced) == (
        EventType.BLOCK_REORG,
        block(2),
        (block(3), block(4), block(5, 1)),
    )
    assert [event.block for event in fresh] == [block(3, 2), block(4, 2), block(5, 2), block(6, 2)]


async def test_a_second_node_writes_nothing_twice(lab: Lab) -> None:
    chain = Chain()
    chain.mine(3)
    first, second = chain.follower(lab), chain.follower(lab)
    await first.turn()
    await second.turn()
    chain.mine(3)
    await asyncio.gather(first.turn(), second.turn())
    for follower in (first, second):
        await follower.turn()
    assert [event.block for event in await lab.events(4)] == [block(number) for number in range(1, 5)]


async def test_an_endpoint_that_lags_is_no_fork(lab: Lab) -> None:
    chain = Chain()
    chain.mine(6)
    await chain.follower(lab).turn()
    behind = Chain()
    behind.mine(3)
    lagging = StableBlocks(CHAIN_ID, 2, lab.store, head=lambda: 6, read_block=behind.read)
    await lagging.turn()
    assert [event.type for event in await lab.events(1)] == [EventType.BLOCK_STABLE]


def check_linked(events: list[Event]) -> list[BlockRef]:
    """Apply the events in order, as a consumer does, and return its list of blocks."""
    seen: list[BlockRef] = []
    for event in events:
        if event.type is EventType.BLOCK_REORG:
            assert tuple(seen[len(seen) - len(event.replaced) :]) == event.replaced
            del seen[len(seen) - len(event.replaced) :]
            assert (seen[-1] if seen else None) == event.block
        else:
            assert event.block is not None
            assert not seen or (event.block.number, event.parent_hash) == (seen[-1].number + 1, seen[-1].hash)
            seen.append(event.block)
    return seen


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["mine", "reorg", "turn", "crash"]), st.integers(1, 6), st.integers(0, 1)),
        max_size=40,
    )
)
def test_a_consumer_has_the_stable_chain_whatever_is_interleaved(steps: list[tuple[str, int, int]]) -> None:
    async def run() -> None:
        lab, chain = memory_lab(), Chain()
        chain.mine(30)  # so that no reorg goes below the first stable block
        nodes = [chain.follower(lab), chain.follower(lab)]
        await nodes[0].turn()
        first = len(chain.blocks) - 3
        chain.mine(20)
        for action, size, number in steps:
            match action:
                case "mine":
                    chain.mine(size)
                case "reorg":
                    chain.reorg(min(size, len(chain.blocks) - first - 1))
                case "turn":
                    await nodes[number].turn()
                case _:
                    nodes[number] = chain.follower(lab)
        chain.mine(1)
        for node in (*nodes, *nodes, *nodes):
            await node.turn()
        seen = check_linked(await lab.all())
        assert seen == chain.blocks[first : len(chain.blocks) - 2]

    asyncio.run(run())


async def test_a_long_gap_is_read_in_bounded_turns(lab: Lab) -> None:
    chain = Chain()
    chain.mine(4)
    follower = chain.follower(lab)
    await follower.turn()
    chain.mine(2 * MAX_BLOCKS_KEPT)
    for _ in range(6):
        await follower.turn()
    recent = await lab.store.recent(CHAIN_ID)
    assert (len(recent), recent[-1]) == (MAX_BLOCKS_KEPT, chain.blocks[-3])
    check_linked(await lab.events(2 * MAX_BLOCKS_KEPT + 1))
