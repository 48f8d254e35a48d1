"""Open a `Fencepost` that runs a real node over an in-memory ledger and chain.

Requests, nonces, leases, signatures, confirmations and operator commands behave as with PostgreSQL and a chain. What is
missing: other processes, spending policies, the nonce service, and everything that only SQL or an RPC endpoint can do.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast
from uuid import UUID, uuid4

from fencepost import settings as settings_module
from fencepost.adapters.evm.head_source import watch_heads
from fencepost.adapters.signers.local import LocalKeys
from fencepost.application.accept import RequestAcceptor
from fencepost.application.chain_view import ChainView
from fencepost.application.hooks import Handler, StuckHook
from fencepost.application.lane import Lane
from fencepost.application.lane_parts import LanePorts
from fencepost.application.tx_events import TxEvents
from fencepost.application.tx_waiter import TxWaiter
from fencepost.bootstrap.lane_settings import decode_raw, lane_settings_for, mark_stuck
from fencepost.domain.lease import Term
from fencepost.events.reader import EventReader
from fencepost.facade import Fencepost, NodeParts
from fencepost.runtime.clock import MonotonicClock
from fencepost.runtime.head_follower import HeadFeed
from fencepost.runtime.node import LoopIntervals, Node
from fencepost.runtime.observer import NodeObserver
from fencepost.settings import Settings
from fencepost.tasks.background_task import background_task
from fencepost.testing.chain import InMemoryChain
from fencepost.testing.database import InMemoryDatabase
from fencepost.testing.event_log import InMemoryEventLog
from fencepost.testing.ledger import InMemoryLedger

if TYPE_CHECKING:
    from fencepost.bootstrap.node import RunningNode

# A key for tests. Anyone can use it: never send anything of value to its address.
TEST_PRIVATE_KEY: Final = "0x" + "01" * 32
BLOCK_TIME_S: Final = 0.02
HEAD_POLL_INTERVAL_S: Final = 0.01
LEASE_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class InMemoryNode:
    """The parts of a node that `Fencepost` uses; it has no pool, no endpoints and no nonce service."""

    settings: Settings
    node: Node
    ledger: InMemoryLedger
    chains: Mapping[int, InMemoryChain]
    default_chain_id: int
    keys: LocalKeys
    acceptor: RequestAcceptor
    tx_events: TxEvents
    tx_waiter: TxWaiter
    observer: NodeObserver
    handlers: dict[UUID, Handler]
    events: EventReader
    explainer: None = None  # there are no queries in memory


@asynccontextmanager
async def open_fencepost(
    *,
    private_keys: Sequence[str] = (TEST_PRIVATE_KEY,),
    chain: InMemoryChain | None = None,
    database: InMemoryDatabase | None = None,
    block_time_s: float | None = BLOCK_TIME_S,
    options: Mapping[str, str] | None = None,
    stuck_hook: StuckHook | None = None,
) -> AsyncIterator[Fencepost]:
    """Open a `Fencepost` over memory, and close it when the block ends.

    Pass a `chain` to look at it or to mine, reorganise and fail sends in it; pass a `database` to open two nodes over the
    same rows, or one after the other. `block_time_s=None` mines nothing by itself. `options` are settings by their keys, as
    in `Fencepost.open`; neither the environment nor a settings file is read.
    """
    used_chain = chain or InMemoryChain()
    flags = {"rpc_url": "http://in-memory.invalid", "chain_id": str(used_chain.chain_id), **(options or {})}
    settings = settings_module.load(toml_path=Path(os.devnull), environ={}, flags=flags).settings
    running = _build(settings, used_chain, database, private_keys, stuck_hook or mark_stuck)
    async with AsyncExitStack() as stack:
        if block_time_s is not None:
            miner = background_task(_mine_for_ever(used_chain, block_time_s), name="miner")
            await stack.enter_async_context(miner)
        work = await stack.enter_async_context(background_task(running.node.run(), name="node"))
        try:
            parts: NodeParts = running  # checked by mypy; the facade uses no other part
            yield Fencepost(cast("RunningNode", parts))
        finally:
            running.tx_waiter.stop()
            running.events.hint()
            await running.node.stop()
            await work


def _build(
    settings: Settings,
    chain: InMemoryChain,
    database: InMemoryDatabase | None,
    private_keys: Sequence[str],
    stuck_hook: StuckHook,
) -> InMemoryNode:
    clock, incarnation = MonotonicClock(), uuid4()
    name = f"in-memory-{incarnation.hex[:8]}"
    rows = database or InMemoryDatabase()
    ledger = InMemoryLedger(
        rows,
        node=name,
        incarnation=incarnation,
        lease_duration_s=LEASE_S,
        skew_allowance_s=0.0,
        clock=rows.clock if isinstance(rows.clock, MonotonicClock) else clock,
    )
    keys, handlers, view = LocalKeys.from_hex(private_keys), dict[UUID, Handler](), ChainView(chain)
    tx_events, observer = TxEvents(), NodeObserver(name)
    waiter = TxWaiter(ledger, tx_events)

    def make_lane(term: Term) -> Lane:
        return Lane(
            term=term,
            settings=lane_settings_for(settings, settings.signer_settings(term.signer.address)),
            ports=LanePorts(
                ledger=ledger,
                chain=chain,
                chain_view=view,
                keys=keys,
                clock=clock,
                observer=observer,
                stuck_hook=stuck_hook,
                handlers=handlers,
                decode=decode_raw,
                incarnation=incarnation,
                events=tx_events,
            ),
        )

    node = Node(
        name=name,
        incarnation=incarnation,
        ledger=ledger,
        clock=clock,
        observer=observer,
        chain_views={chain.chain_id: view},
        heads={chain.chain_id: _head_feed(chain, view)},
        addresses=frozenset(keys.addresses()),
        intervals=LoopIntervals(renew_interval_s=LEASE_S / 4, idle_release_s=settings.lease.idle_release_s),
        make_lane=make_lane,
        workers=settings.lanes.workers,
    )

    return InMemoryNode(
        settings=settings,
        node=node,
        ledger=ledger,
        chains={chain.chain_id: chain},
        default_chain_id=chain.chain_id,
        keys=keys,
        acceptor=RequestAcceptor(ledger, keys, frozenset({chain.chain_id}), node.hint),
        tx_events=tx_events,
        tx_waiter=waiter,
        observer=observer,
        handlers=handlers,
        events=_event_reader(rows, waiter),
    )


def _head_feed(chain: InMemoryChain, view: ChainView) -> HeadFeed:
    return partial(
        watch_heads, chain, poll_interval_s=HEAD_POLL_INTERVAL_S, block_expected=view.block_expected
    )


def _event_reader(rows: InMemoryDatabase, waiter: TxWaiter) -> EventReader:
    log = InMemoryEventLog(rows)
    return EventReader(log, poll_interval_s=HEAD_POLL_INTERVAL_S, is_stopped=lambda: waiter.is_stopped)


async def _mine_for_ever(chain: InMemoryChain, block_time_s: float) -> None:
    while True:
        await asyncio.sleep(block_time_s)
        chain.mine()
