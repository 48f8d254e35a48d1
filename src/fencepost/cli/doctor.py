"""`fencepost doctor`: is everything as a node needs it? A table, and exit code 0 or 1."""

from __future__ import annotations

import asyncio
import json
import platform
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal

import asyncpg
import click
from rich.text import Text

from fencepost.adapters.evm.chain import EvmChain
from fencepost.adapters.evm.rpc import JsonRpc
from fencepost.adapters.postgres import migrate
from fencepost.adapters.postgres.database import CONNECT_ERRORS, OLDEST_SERVER, unusable
from fencepost.adapters.signers import load_keys
from fencepost.cli.options import settings_options
from fencepost.cli.tables import console, table
from fencepost.dev.surroundings import surroundings
from fencepost.errors import FencepostError
from fencepost.settings import Loaded, Settings
from fencepost.wiring import key_sources

Verdict = Literal["ok", "warn", "fail"]

OLDEST_PYTHON = (3, 11)
MOST_CLOCK_DIFFERENCE_S = 1.0
RPC_TIMEOUT_S = 5.0
MOST_RPC_BODY_BYTES = 1024 * 1024
_STYLES = {"ok": "green", "warn": "yellow", "fail": "red"}


@dataclass(frozen=True, slots=True)
class Check:
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
        async with surroundings(settings, report=lambda _: None) as around:
            checks += [check async for check in _database(around.dsn, settings)]
            checks += [check async for check in _chains(around.settings, around.private_keys)]
    except FencepostError as error:
        checks.append(Check("surroundings", "fail", str(error)))
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
    told = f"{len(missing)} to apply: fencepost migrate" if missing else "up to date"
    yield Check("migrations", "warn" if missing else "ok", told)


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
            f"{', '.join(off)} off: a crash of the server may lose what was acknowledged",
        )
    return Check("durability", "ok", "fsync, synchronous_commit and full_page_writes are on")


async def _clock(connection: asyncpg.Connection[asyncpg.Record]) -> Check:
    began_s = time.time()
    there_s = float(await connection.fetchval("SELECT extract(epoch FROM clock_timestamp())"))
    difference_s = there_s - (began_s + time.time()) / 2
    far = abs(difference_s) > MOST_CLOCK_DIFFERENCE_S
    note = " (harmless for correctness; logs will not line up)" if far else ""
    return Check("clock", "warn" if far else "ok", f"{difference_s * 1000:+.1f} ms to the database{note}")


async def _chains(settings: Settings, more_keys: tuple[str, ...]) -> AsyncIterator[Check]:
    try:
        keys = await load_keys(**key_sources(settings, more_keys))
    except FencepostError as error:
        yield Check("keys", "fail", str(error))
        return
    addresses = keys.addresses()
    await keys.aclose()
    found = f"{len(addresses)} signer{'s' if len(addresses) != 1 else ''}"
    yield Check(
        "keys",
        "ok" if addresses else "warn",
        found if addresses else "no signer: set FENCEPOST_KEY_… or keys.file",
    )
    for name, configured in settings.chains.items():
        chain = EvmChain(
            [
                JsonRpc(url, timeout_s=RPC_TIMEOUT_S, max_body_bytes=MOST_RPC_BODY_BYTES)
                for url in configured.rpc_urls
            ]
        )
        try:
            chain_id = await chain.verify_chain_id(configured.id)
            head = await chain.head()
            yield Check(f"chain {name}", "ok", f"id {chain_id}, block {head.number}")
            for address in addresses:
                balance_wei = await chain.balance_wei(address)
                verdict: Verdict = "ok" if balance_wei else "warn"
                yield Check("balance", verdict, f"{address} has {balance_wei / 10**18:.6f} ether")
        except FencepostError as error:
            yield Check(f"chain {name}", "fail", str(error))
        finally:
            await chain.close()
