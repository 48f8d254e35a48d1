"""What a node needs around it and nobody configured: its own PostgreSQL, its own dev chain.

Both keep their data under the data folder, so that a second start finds everything where it was. Whatever was
configured is used as it is, and nothing is started for it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from fencepost.dev.anvil import AnvilNode, anvil_node, find_anvil
from fencepost.dev.paths import default_cache_dir, default_data_dir
from fencepost.dev.postgres import embedded_postgres
from fencepost.settings import ChainSettings, Settings

DEV_CHAIN_ID = 31337


@dataclass(frozen=True, slots=True)
class Surroundings:
    settings: Settings  # with the addresses of what was started
    dsn: str
    private_keys: tuple[str, ...]  # of the dev chain's funded accounts


def data_folder(settings: Settings) -> Path:
    return Path(settings.embedded.data_dir) if settings.embedded.data_dir else default_data_dir()


@asynccontextmanager
async def database(settings: Settings, *, report: Callable[[str], None]) -> AsyncIterator[str]:
    """The DSN of the configured database, or of an embedded one."""
    if settings.database.dsn:
        yield settings.database.dsn
        return
    report("starting the embedded PostgreSQL")
    async with embedded_postgres(data_folder(settings) / "postgres") as server:
        yield server.dsn


@asynccontextmanager
async def surroundings(settings: Settings, *, report: Callable[[str], None]) -> AsyncIterator[Surroundings]:
    async with database(settings, report=report) as dsn:
        chain = settings.chains[settings.default_chain]
        if chain.rpc_urls:
            yield Surroundings(settings=settings, dsn=dsn, private_keys=())
            return
        async with _dev_chain(settings, chain, report) as node:
            at_work = replace(chain, id=node.chain_id, rpc_urls=(node.rpc_url,))
            keys = tuple("0x" + key.hex() for key in node.private_keys) if settings.keys.dev_accounts else ()
            yield Surroundings(
                settings=replace(settings, chains={**settings.chains, settings.default_chain: at_work}),
                dsn=dsn,
                private_keys=keys,
            )


@asynccontextmanager
async def _dev_chain(
    settings: Settings, chain: ChainSettings, report: Callable[[str], None]
) -> AsyncIterator[AnvilNode]:
    cache_dir = Path(settings.embedded.cache_dir) if settings.embedded.cache_dir else default_cache_dir()
    binary = await find_anvil(cache_dir, report=report)
    report("starting the dev chain")
    folder = data_folder(settings) / "anvil"
    async with anvil_node(
        binary=binary,
        run_dir=folder,
        chain_id=chain.id or DEV_CHAIN_ID,
        block_time_s=settings.embedded.block_time_s,
        state_file=folder / "state.json",
    ) as node:
        yield node
