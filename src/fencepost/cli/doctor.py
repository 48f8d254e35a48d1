"""Implement `fencepost doctor`: check what a node needs. Exit code 1 if a check fails."""

from __future__ import annotations

import asyncio
import json
import platform
import sys
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Literal

import asyncpg
import click
from rich.text import Text

from fencepost.adapters.evm.chain import EvmChain
from fencepost.adapters.evm.rpc import JsonRpc, masked
from fencepost.adapters.postgres import migrate
from fencepost.adapters.postgres.database import CONNECT_ERRORS, OLDEST_SERVER, unusable
from fencepost.adapters.postgres.rights import require_rights
from fencepost.adapters.signers import load_keys
from fencepost.bootstrap.chains import chain_id_missing
from fencepost.bootstrap.keys import key_sources
from fencepost.cli.options import settings_options
from fencepost.cli.rendering import console, table
from fencepost.dev.embedded import embedded_services
from fencepost.domain.ids import BlockHash
from fencepost.errors import ChainSilent, FencepostError
from fencepost.settings import Loaded, Settings

Verdict = Literal["ok", "warn", "fail"]
GenesisByChain = Mapping[int, BlockHash]

OLDEST_PYTHON = (3, 11)
MAX_CLOCK_DIFFERENCE_S = 1.0
RPC_TIMEOUT_S = 5.0
MAX_RPC_BODY_BYTES = 1024 * 1024
_STYLES = {"ok": "green", "warn": "yellow", "fail": "red"}


@dataclass(frozen=True, slots=True)
class Check:
    """Hold the result of one check."""

    name: str
    verdict: Verdict
    detail: str


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@settings_options
def doctor(*, as_json: bool, loaded: Loaded) -> int:
    """Check Python, the database, the chain, the clock and the signers' balances."""
    checks = asyncio.run(_examine(loaded.settings))
    if as_json:
        rows = [{"check": check.name, "verdict": check.verdict, "detail": check.detail} for check in checks]
        click.echo(json.dumps(rows, indent=2))
    else:
        _print_table(checks)
    return 1 if any(check.verdict == "fail" for check in checks) else 0


def _print_table(checks: list[Check]) -> None:
    rows = [(check.name, Text(check.verdict, _STYLES[check.verdict]), check.detail) for check in checks]
    console().print(table(("check", "verdict", "detail"), rows))


async def _examine(settings: Settings) -> list[Check]:
    checks = [_python()]
    try:
        async with embedded_services(settings, report=lambda _: None) as embedded:
            checks += [check async for check in _database(embedded.dsn, settings)]
            genesis = await _stored_genesis(embedded.dsn, settings)
            checks += [check async for check in _chains(embedded.settings, embedded.private_keys, genesis)]
    except FencepostError as error:
        checks.append(Check("embedded servers", "fail", str(error)))
    return checks


def _python() -> Check:
    ok = sys.version_info[:2] >= OLDEST_PYTHON
    return Check("python", "ok" if ok else "fail", platform.python_version())


async def _database(dsn: str, settings: Settings) -> AsyncIterator[Check]:
    try:
        connection = await asyncpg.connect(dsn, timeout=settings.database.connect_timeout_s)
    except CONNECT_ERRORS as error:
        yield Check("database", "fail", str(unusable(error)))
        return
    try:
        old = connection.get_server_version().major < OLDEST_SERVER
        version = await connection.fetchval("SELECT current_setting('server_version')")
        yield Check("database", "fail" if old else "ok", f"PostgreSQL {version}")
        yield await _durability(connection)
        yield await _clock(connection)
    finally:
        await connection.close()
    try:
        missing = [status for status in await migrate.status(dsn) if not status.is_applied]
    except FencepostError as error:
        yield Check("migrations", "fail", str(error))
        return
    detail = f"{len(missing)} to apply: run fencepost migrate" if missing else "up to date"
    yield Check("migrations", "warn" if missing else "ok", detail)
    if not missing:
        yield await _rights(dsn, settings)


async def _rights(dsn: str, settings: Settings) -> Check:
    try:
        await require_rights(dsn, timeout_s=settings.database.connect_timeout_s)
    except FencepostError as error:
        return Check("rights", "fail", str(error))
    return Check("rights", "ok", "the database role has every right that a node needs")


async def _durability(connection: asyncpg.Connection[asyncpg.Record]) -> Check:
    off = [
        name
        for name in ("fsync", "synchronous_commit", "full_page_writes")
        if await connection.fetchval("SELECT current_setting($1)", name) == "off"
    ]
    if off:
        return Check(
            "durability",
            "fail",
            f"{', '.join(off)} off: a crash of PostgreSQL may lose acknowledged requests; switch it on",
        )
    return Check("durability", "ok", "fsync, synchronous_commit and full_page_writes are on")


async def _clock(connection: asyncpg.Connection[asyncpg.Record]) -> Check:
    began_s = time.time()
    database_s = float(await connection.fetchval("SELECT extract(epoch FROM clock_timestamp())"))
    difference_s = database_s - (began_s + time.time()) / 2
    far = abs(difference_s) > MAX_CLOCK_DIFFERENCE_S
    note = " (leases use the database's clock and stay correct; log times differ)" if far else ""
    return Check(
        "clock", "warn" if far else "ok", f"{difference_s * 1000:+.1f} ms to the database's clock{note}"
    )


async def _stored_genesis(dsn: str, settings: Settings) -> GenesisByChain:
    """Read the first block of each chain that this database has used; nothing if the database can't say it yet."""
    try:
        connection = await asyncpg.connect(dsn, timeout=settings.database.connect_timeout_s)
    except CONNECT_ERRORS:
        return {}  # the check of the database reports it
    try:
        rows = await connection.fetch("SELECT chain_id, genesis_hash FROM chain_identity")
    except (asyncpg.UndefinedTableError, asyncpg.InsufficientPrivilegeError):
        return {}  # the checks of migrations and rights report it
    finally:
        await connection.close()
    return {row["chain_id"]: BlockHash(row["genesis_hash"]) for row in rows}


def _open_chain(*urls: str, genesis: GenesisByChain) -> EvmChain:
    async def stored_or_reported(chain_id: int, reported: BlockHash) -> BlockHash:
        return genesis.get(chain_id, reported)

    return EvmChain(
        [JsonRpc(url, timeout_s=RPC_TIMEOUT_S, max_body_bytes=MAX_RPC_BODY_BYTES) for url in urls],
        confirm_genesis=stored_or_reported,
    )


async def _endpoint(name: str, url: str, chain_id: int, genesis: GenesisByChain) -> Check:
    """Check one endpoint of several: a node runs without it, so only one that serves another chain is a failure."""
    check, chain = f"endpoint of {name}", _open_chain(url, genesis=genesis)
    try:
        await chain.verify_chain_id(chain_id)
        head = await chain.head()
    except ChainSilent as error:
        return Check(check, "warn", f"{masked(url)}: {error}")
    except FencepostError as error:
        return Check(check, "fail", str(error))
    finally:
        await chain.close()
    return Check(check, "ok", f"{masked(url)}, block {head.number}")


async def _chains(
    settings: Settings, more_keys: tuple[str, ...], genesis: GenesisByChain
) -> AsyncIterator[Check]:
    try:
        keys = await load_keys(**key_sources(settings, more_keys))
    except FencepostError as error:
        yield Check("keys", "fail", str(error))
        return
    addresses = keys.addresses()
    await keys.aclose()
    count = f"{len(addresses)} signer{'s' if len(addresses) != 1 else ''}"
    yield Check(
        "keys",
        "ok" if addresses else "warn",
        count if addresses else "no signer: set FENCEPOST_KEY_… or keys.file",
    )
    for name, configured in settings.chains.items():
        chain = _open_chain(*configured.rpc_urls, genesis=genesis)
        try:
            if not configured.id:
                raise await chain_id_missing(name, chain)
            chain_id = await chain.verify_chain_id(configured.id)
            head = await chain.head()
            yield Check(f"chain {name}", "ok", f"id {chain_id}, block {head.number}")
            if len(configured.rpc_urls) > 1:  # the chain is usable if one of them is
                for url in configured.rpc_urls:
                    yield await _endpoint(name, url, chain_id, genesis)
            for address in addresses:
                balance_wei = await chain.balance_wei(address)
                verdict: Verdict = "ok" if balance_wei else "warn"
                yield Check("balance", verdict, f"{address} has {balance_wei / 10**18:.6f} ether")
        except FencepostError as error:
            yield Check(f"chain {name}", "fail", str(error))
        finally:
            await chain.close()
