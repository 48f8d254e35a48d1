"""The composition root: settings in, a running node out. Nothing else knows which adapter stands behind a port."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TypedDict
from urllib.parse import urlsplit
from uuid import UUID, uuid4

from fencepost.adapters.evm.chain import EvmChain
from fencepost.adapters.evm.encoding import decode_signed
from fencepost.adapters.evm.heads import watch_heads
from fencepost.adapters.evm.rpc import JsonRpc
from fencepost.adapters.http.forward import HttpForward
from fencepost.adapters.postgres import migrate
from fencepost.adapters.postgres.database import History, is_failure, open_pools
from fencepost.adapters.postgres.ledger import PostgresLedger
from fencepost.adapters.postgres.nodes import soonest_expiry_s
from fencepost.adapters.postgres.pool import Pool
from fencepost.adapters.postgres.wakeups import Wakeups
from fencepost.adapters.signers import KeyRing, load_keys
from fencepost.application.accept import Accept
from fencepost.application.forwarding import Passes
from fencepost.application.heads import ChainWatch
from fencepost.application.hooks import Handler, StuckDecision, StuckHook
from fencepost.application.intake import Intake
from fencepost.application.lane import Lane, Policy
from fencepost.application.ports import Header
from fencepost.application.waiting import Waiting
from fencepost.domain.ids import Address, TxHash
from fencepost.domain.lease import Term
from fencepost.domain.managed import ManagedTx
from fencepost.domain.transaction import Fees, UnsignedTx
from fencepost.errors import MigrationError, RpcError, SettingError
from fencepost.nonce.opening import open_nonce_service
from fencepost.nonce.service import NonceService
from fencepost.runtime.beside import beside
from fencepost.runtime.clock import MonotonicClock
from fencepost.runtime.membership import Membership
from fencepost.runtime.metrics import Metrics
from fencepost.runtime.node import Node, Pace
from fencepost.runtime.observing import NodeObserver
from fencepost.runtime.routing import Router
from fencepost.settings import Settings
from fencepost.settings.declaration import SignerPolicy
from fencepost.wiring_nodes import advertised_url, among_others, leave, member, open_forwarding

RPC_TIMEOUT_S = 10.0
MOST_RPC_BODY_BYTES = 64 * 1024 * 1024
DRAIN_WITHIN_S = 1.0
# Besides those that are waited for: a crowd of lanes gets to a receipt late, and reads its block if the view has lost it.
BLOCKS_KEPT = 2048


@dataclass(slots=True)
class Running:
    """The parts of a node that the doors (API, command line, in-process use) talk to."""

    settings: Settings
    node: Node
    pool: Pool
    ledger: PostgresLedger
    chains: dict[int, EvmChain]
    default_chain_id: int
    keys: KeyRing
    accept: Accept
    waiting: Waiting
    observer: NodeObserver
    handlers: dict[UUID, Handler]
    nonces: NonceService | None = None  # if nonce_service.enabled
    passes: Passes | None = None  # if routing.secret is given
    forward: HttpForward | None = None  # if routing.forward


Door = Callable[[Running], AbstractAsyncContextManager[None]]


@asynccontextmanager
async def no_door(_running: Running) -> AsyncIterator[None]:
    """For a node inside somebody's process."""
    yield


async def wait_for_a_person(_tx: ManagedTx) -> StuckDecision:
    """The stuck hook that stands until somebody gives another: mark it, keep it, send nothing more by itself."""
    return "mark"


def node_name(settings: Settings, *, url: str | None) -> str:
    """As configured; else by its port, which no other server on this machine has, or by its process."""
    if settings.node.id:
        return settings.node.id
    own = f":{urlsplit(url).port}" if url else f"-{os.getpid()}-{uuid4().hex[:4]}"
    return socket.gethostname() + own


@asynccontextmanager
async def open_node(
    settings: Settings,
    *,
    dsn: str,
    more_private_keys: Sequence[str] = (),
    stuck_hook: StuckHook = wait_for_a_person,
    url: str | None = None,
    door: Door = no_door,
) -> AsyncIterator[Running]:
    """A node at work. `dsn` and the chains' URLs must be there: whoever embeds servers has started them.

    `url` is where its API can be reached, if it has one. `door` opens it: before other nodes hear of this one, so that
    nobody is sent to a closed door; and it closes after the leases are given back, so that nobody is cut off.
    """
    metrics = Metrics(signer_labels=settings.metrics.signer_labels)
    await _require_schema(settings, dsn)
    async with AsyncExitStack() as stack:
        keys = await load_keys(**key_sources(settings, more_private_keys))
        stack.push_async_callback(keys.aclose)
        chains, heads, default_chain_id = await _open_chains(settings, stack, metrics)
        name, incarnation, clock = node_name(settings, url=url), uuid4(), MonotonicClock()
        history = History()
        pools = await stack.enter_async_context(
            open_pools(
                dsn,
                size=settings.database.pool_size,
                connect_timeout_s=settings.database.connect_timeout_s,
                lease_duration_s=settings.lease.duration_s,
                application=f"fencepost {name}"[:60],
                history=history,
            )
        )
        pool = pools.work
        ledger = PostgresLedger(
            pool,
            clock=clock,
            node=name,
            incarnation=incarnation,
            lease_duration_s=settings.lease.duration_s,
            skew_allowance_s=settings.lease.skew_allowance_s,
            renewing=pools.renewing,
            moving=pools.moving,
        )
        waiting = Waiting(ledger)
        observer = NodeObserver(name, metrics, on_changed=waiting.changed)
        intake = Intake(observer, settings.intake.max_queued, settings.intake.max_queued_per_signer)
        watches = {chain_id: _watch(settings, chain) for chain_id, chain in chains.items()}
        me = member(
            settings, name=name, incarnation=incarnation, chain_ids=chains, addresses=keys.addresses()
        )
        router = Router(me, grace_s=settings.routing.grace_s)
        handlers: dict[UUID, Handler] = {}
        lane_policy = cache(partial(policy_for, settings))  # nearly all lanes share one

        def make_lane(term: Term) -> Lane:
            chain_id = term.signer.chain_id
            return Lane(
                term=term,
                policy=lane_policy(settings.signer_policy(term.signer.address)),
                ledger=ledger,
                chain=chains[chain_id],
                watch=watches[chain_id],
                keys=keys,
                clock=clock,
                observer=observer,
                stuck_hook=stuck_hook,
                handlers=handlers,
                decode=_decode,
                incarnation=incarnation,
            )

        node = Node(
            name=name,
            incarnation=incarnation,
            ledger=ledger,
            clock=clock,
            observer=observer,
            watches=watches,
            heads={
                chain_id: partial(heads[chain_id], nudge=watch.block_expected)
                for chain_id, watch in watches.items()
            },
            addresses=frozenset(keys.addresses()),
            pace=Pace(
                renew_s=settings.lease.renew_interval_s,
                idle_release_s=settings.lease.idle_release_s,
                skew_allowance_s=settings.lease.skew_allowance_s,
                handover_budget_s=settings.routing.handover_budget_s,
            ),
            make_lane=make_lane,
            workers=settings.lanes.workers,
            router=router,
            soonest_expiry=partial(soonest_expiry_s, pools.moving, incarnation),
            is_database_failure=is_failure,
        )
        wakeups = Wakeups(
            pool,
            dsn,
            urgent=pools.moving,
            on_hint=node.hint,
            on_requested=node.requested,
            on_freed=node.freed,
        )
        running = Running(
            settings=settings,
            node=node,
            pool=pool,
            ledger=ledger,
            chains=chains,
            default_chain_id=default_chain_id,
            keys=keys,
            accept=Accept(ledger, keys, frozenset(chains), wakeups.hint, intake, wakeups.requested),
            waiting=waiting,
            observer=observer,
            handlers=handlers,
        )
        if settings.nonce_service.enabled:
            running.nonces = await stack.enter_async_context(
                open_nonce_service(settings, pool=pool, chains=chains, clock=clock, node=name)
            )
        running.passes, running.forward = open_forwarding(settings, pool)
        if running.forward is not None:
            stack.push_async_callback(running.forward.close)
        await _see_chains(watches.values())
        async with (
            _hearing(wakeups, within_s=settings.database.connect_timeout_s),
            door(running),
            among_others(
                settings,
                node=node,
                pools=pools,
                wakeups=wakeups,
                router=router,
                observer=observer,
                intake=intake,
                history=history,
                url=advertised_url(settings, url=url),
            ) as membership,
            _at_work(node, membership, waiting),
        ):
            yield running
        with suppress(TimeoutError):  # what hangs there ends with its connection
            async with asyncio.timeout(DRAIN_WITHIN_S):
                await ledger.drain()


async def _see_chains(watches: Iterable[ChainWatch]) -> None:
    """Before others hand signers over to us: what can't be seen now is seen when its node answers."""
    for watch in watches:
        with suppress(RpcError):
            await watch.refresh()


async def _require_schema(settings: Settings, dsn: str) -> None:
    timeout_s = settings.database.connect_timeout_s
    if settings.database.migrate_on_start:
        await migrate.apply(dsn, timeout_s=timeout_s)
    elif missing := [
        status for status in await migrate.status(dsn, timeout_s=timeout_s) if not status.is_applied
    ]:
        raise MigrationError(
            f"{len(missing)} migrations are missing and database.migrate_on_start is off: run fencepost migrate"
        )


@asynccontextmanager
async def _hearing(wakeups: Wakeups, *, within_s: float) -> AsyncIterator[None]:
    async with beside(wakeups.run(), name="wakeups"):
        await wakeups.until_heard(within_s=within_s)
        yield


@asynccontextmanager
async def _at_work(node: Node, membership: Membership, waiting: Waiting) -> AsyncIterator[None]:
    """The node's loops, until the body ends; then whoever waits is told, steps are finished and leases given back."""
    async with beside(node.run(), name="node") as work:
        try:
            yield
        finally:
            waiting.stop()
            await leave(membership)
            await node.stop()
            await work


class KeySources(TypedDict):
    private_keys: Sequence[str]
    key_file: Path | None
    keystore_dir: Path | None
    password_file: Path | None
    remote_url: str | None


def key_sources(settings: Settings, more_private_keys: Sequence[str]) -> KeySources:
    """Where the settings say that keys are, as `load_keys` takes it."""

    def path(text: str) -> Path | None:
        return Path(text) if text else None

    return KeySources(
        private_keys=[*settings.keys.private_keys, *more_private_keys],
        key_file=path(settings.keys.file),
        keystore_dir=path(settings.keys.keystore_dir),
        password_file=path(settings.keys.keystore_password_file),
        remote_url=settings.keys.remote_url or None,
    )


async def _open_chains(
    settings: Settings, stack: AsyncExitStack, metrics: Metrics
) -> tuple[dict[int, EvmChain], dict[int, Callable[..., AsyncGenerator[Header, None]]], int]:
    """Every chain answers, and is the one that the settings say; a WebSocket URL among its nodes tells new heads."""
    chains: dict[int, EvmChain] = {}
    heads: dict[int, Callable[..., AsyncGenerator[Header, None]]] = {}
    default_chain_id = 0
    for name, chain in settings.chains.items():
        sockets = [url for url in chain.rpc_urls if url.startswith(("ws://", "wss://"))]
        rpcs = [
            JsonRpc(
                url,
                timeout_s=RPC_TIMEOUT_S,
                max_body_bytes=MOST_RPC_BODY_BYTES,
                singles_at_once=settings.confirmations.receipt_workers,
                on_call=metrics.rpc_call,
            )
            for url in chain.rpc_urls
            if url not in sockets
        ]
        if not rpcs:
            raise SettingError(
                f"chains.{name}.rpc_urls needs an http or https URL: a WebSocket only tells new heads"
            )
        evm = EvmChain(rpcs)
        stack.push_async_callback(evm.close)
        chain_id = await evm.verify_chain_id(chain.id)
        chains[chain_id] = evm
        heads[chain_id] = partial(
            watch_heads, evm, poll_interval_s=chain.poll_interval_s, ws_url=sockets[0] if sockets else None
        )
        if name == settings.default_chain:
            default_chain_id = chain_id
    return chains, heads, default_chain_id


def _watch(settings: Settings, chain: EvmChain) -> ChainWatch:
    required = settings.confirmations.required
    if isinstance(required, int):
        return ChainWatch(chain, keep=2 * required + BLOCKS_KEPT)
    return ChainWatch(chain, settled_tag=required)


def policy_for(settings: Settings, of_signer: SignerPolicy) -> Policy:
    fees, bump = settings.fees, settings.fees.bump
    return Policy(
        strict=of_signer.mode == "strict",
        start_from=of_signer.start_from,
        max_in_flight=of_signer.max_in_flight,
        chain_query=settings.nonce.chain_query,
        failover_loses_commits=settings.database.failover_loses_commits,
        state_timeout_s=settings.nonce.state_timeout_s,
        resubmit_enabled=settings.resubmit.enabled,
        resubmit_interval_s=settings.resubmit.interval_s,
        resubmit_max_attempts=settings.resubmit.max_attempts,
        required=settings.confirmations.required,
        stale_receipt_timeout_s=settings.confirmations.stale_receipt_timeout_s,
        fetch_receipt_upon_entry=settings.confirmations.fetch_receipt_upon_entry,
        fixed_fees=Fees(fee_cap_wei=fees.fixed_fee_cap_wei, tip_wei=fees.fixed_tip_wei)
        if fees.source == "fixed"
        else None,
        fee_cap_wei=fees.cap_wei,
        bump_enabled=bump.enabled,
        bump_percent=bump.percent,
        bump_after_resubmits=bump.after_resubmits,
        gas_factor=settings.gas.estimate_factor,
        refuse_reverting=settings.gas.refuse_reverting,
        history_max_entries=settings.history.max_entries,
        read_ahead=settings.lanes.read_ahead,
    )


def _decode(raw: bytes) -> tuple[Address, UnsignedTx, TxHash]:
    decoded = decode_signed(raw)
    return decoded.sender, decoded.tx, decoded.hash
