"""Open the chains of the settings: their endpoints, sources of new heads, and views."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path

from fencepost.adapters.evm.chain import EvmChain
from fencepost.adapters.evm.head_source import watch_heads
from fencepost.adapters.evm.node_errors import Row, load_rows
from fencepost.adapters.evm.rpc import JsonRpc
from fencepost.adapters.postgres.database import (
    confirm_genesis,
)
from fencepost.adapters.postgres.pool import Pool
from fencepost.application.chain_view import ChainView
from fencepost.application.ports import Header
from fencepost.bootstrap.fees import history_query_of
from fencepost.errors import ChainSilent, ChainUnusable, RpcError, SettingError
from fencepost.runtime.metrics import Metrics
from fencepost.settings import Settings

_log = logging.getLogger(__name__)

RPC_TIMEOUT_S = 10.0
MAX_RPC_BODY_BYTES = 64 * 1024 * 1024
CHAIN_START_TIMEOUT_S = 3.0  # at the start; a chain that takes longer is retried while the node runs
# In addition to the blocks until finality: many busy lanes fetch receipts late, and a block that is no longer in the
# view has to be read again.
BLOCKS_KEPT = 2048


async def open_chains(
    settings: Settings, stack: AsyncExitStack, metrics: Metrics, pool: Pool
) -> tuple[dict[int, EvmChain], dict[int, Callable[..., AsyncGenerator[Header, None]]], int]:
    """Open every chain, and reject one that differs from the settings or the database.

    A chain that does not answer is opened all the same: its requests wait until it does. A WebSocket URL among the
    endpoints is used for new heads.
    """
    patterns = error_rows_of(settings)
    chains: dict[int, EvmChain] = {}
    heads: dict[int, Callable[..., AsyncGenerator[Header, None]]] = {}
    for name, chain in settings.chains.items():
        sockets = [url for url in chain.rpc_urls if url.startswith(("ws://", "wss://"))]
        rpcs = [
            JsonRpc(
                url,
                timeout_s=RPC_TIMEOUT_S,
                max_body_bytes=MAX_RPC_BODY_BYTES,
                max_parallel_calls=settings.confirmations.receipt_workers,
                on_call=metrics.rpc_call,
            )
            for url in chain.rpc_urls
            if url not in sockets
        ]
        if not rpcs:
            raise SettingError(
                f"chains.{name}.rpc_urls needs an http or https URL: a WebSocket URL is used for new heads only"
            )
        evm = EvmChain(
            rpcs,
            patterns=patterns,
            confirm_genesis=partial(confirm_genesis, pool),
            on_hedge=metrics.rpc_hedged_call,
            history_query=history_query_of(settings.fees),
        )
        stack.push_async_callback(evm.close)
        if not chain.id:
            raise await chain_id_missing(name, evm)
        chains[chain.id] = evm
        heads[chain.id] = partial(
            watch_heads, evm, poll_interval_s=chain.poll_interval_s, ws_url=sockets[0] if sockets else None
        )
    await asyncio.gather(
        *(_identify(name, chains[chain.id], chain.id) for name, chain in settings.chains.items())
    )
    return chains, heads, settings.chains[settings.default_chain].id


def error_rows_of(settings: Settings) -> tuple[Row, ...]:
    """Read the operator's rules for error texts of endpoints; without a file there are none."""
    return load_rows(Path(settings.errors.file)) if settings.errors.file else ()


async def _identify(name: str, chain: EvmChain, chain_id: int) -> None:
    chain.expect(chain_id)
    try:
        async with asyncio.timeout(CHAIN_START_TIMEOUT_S):
            await chain.verify_chain_id(chain_id)
    except (ChainSilent, TimeoutError) as error:
        _log.warning(
            "chain %s (%s) does not answer: requests for it are accepted and wait until it does (%s)",
            name,
            chain_id,
            str(error) or f"no answer within {CHAIN_START_TIMEOUT_S:.0f} s",
        )


async def chain_id_missing(name: str, chain: EvmChain) -> SettingError:
    """Return the error for a chain without an id: it names the id that the endpoints report, and how to set it.

    The id is not taken from the endpoints by itself: only the operator knows which chain is meant.
    """
    try:
        async with asyncio.timeout(CHAIN_START_TIMEOUT_S):
            reported = await chain.reported_chain_id()
    except (ChainUnusable, TimeoutError):
        return SettingError(
            f"chains.{name}.id is required: set the id of the chain (FENCEPOST_CHAIN_ID for the default chain,"
            " or chain_id= of Fencepost.open). Its endpoints do not report which chain they serve"
        )
    return SettingError(
        f"chains.{name}.id is required: the endpoint reports chain {reported}. If that is the chain you mean, set"
        f" chains.{name}.id = {reported} (for the default chain FENCEPOST_CHAIN_ID={reported},"
        f" --chain-id={reported}, or chain_id={reported} of Fencepost.open)"
    )


def build_chain_view(settings: Settings, chain: EvmChain) -> ChainView:
    required = settings.confirmations.required
    if isinstance(required, int):
        view = ChainView(chain, keep=2 * required + BLOCKS_KEPT)
    else:
        view = ChainView(chain, settled_tag=required)
    view.rejects_dynamic_fees = settings.fees.source == "legacy"
    return view


async def start_chain_views(chain_views: Iterable[ChainView]) -> None:
    """Start the chain views before other nodes hand signers over. A silent chain starts when its endpoints answer."""

    async def start_view(chain_view: ChainView) -> None:
        with suppress(RpcError, TimeoutError):
            async with asyncio.timeout(CHAIN_START_TIMEOUT_S):
                await chain_view.refresh()

    await asyncio.gather(*map(start_view, chain_views))
