"""Start an embedded PostgreSQL and dev chain for a node that has none configured.

Both keep their data under the data folder, so that the next start finds it again. A configured database or chain is used
as it is, and nothing is started for it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from fencepost.dev.anvil import AnvilNode, anvil_node, find_anvil
from fencepost.dev.paths import default_cache_dir, default_data_dir
from fencepost.dev.postgres import embedded_postgres
from fencepost.errors import ChainReplaced, ChainUnusable
from fencepost.settings import ChainSettings, Settings

DEV_CHAIN_ID = 31337
STATE_FILE = "state.json"


@dataclass(frozen=True, slots=True)
class EmbeddedServices:
    settings: Settings  # with the addresses of what was started
    dsn: str
    private_keys: tuple[str, ...]  # of the dev chain's funded accounts
    dev_chain_folder: Path | None = None  # None: the chain is configured

    def explain(self, error: ChainUnusable) -> ChainUnusable:
        """Add what to do about a dev chain that differs from the one in the database: one of the two was replaced."""
        folder = self.dev_chain_folder
        if folder is None or not isinstance(error.__cause__, ChainReplaced):
            return error
        return ChainUnusable(
            f"the dev chain in {folder} was started anew, but the database belongs to the previous one, whose state is lost."
            f" Restore {folder / STATE_FILE} if you have a copy; or start over: remove {folder.parent},"
            " or, with your own database, set database.dsn to an empty one"
        )


def data_folder(settings: Settings) -> Path:
    return Path(settings.embedded.data_dir) if settings.embedded.data_dir else default_data_dir()


@asynccontextmanager
async def database(settings: Settings, *, report: Callable[[str], None]) -> AsyncIterator[str]:
    """Yield the DSN of the configured database, or of an embedded one."""
    if settings.database.dsn:
        yield settings.database.dsn
        return
    report("starting the embedded PostgreSQL")
    async with embedded_postgres(data_folder(settings) / "postgres") as server:
        yield server.dsn


@asynccontextmanager
async def embedded_services(
    settings: Settings, *, report: Callable[[str], None]
) -> AsyncIterator[EmbeddedServices]:
    async with database(settings, report=report) as dsn:
        chain = settings.chains[settings.default_chain]
        if chain.rpc_urls:
            yield EmbeddedServices(settings=settings, dsn=dsn, private_keys=())
            return
        async with _dev_chain(settings, chain, report) as node:
            at_work = replace(chain, id=node.chain_id, rpc_urls=(node.rpc_url,))
            keys = tuple("0x" + key.hex() for key in node.private_keys) if settings.keys.dev_accounts else ()
            yield EmbeddedServices(
                settings=replace(settings, chains={**settings.chains, settings.default_chain: at_work}),
                dsn=dsn,
                private_keys=keys,
                dev_chain_folder=data_folder(settings) / "anvil",
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
        state_file=folder / STATE_FILE,
    ) as node:
        yield node
