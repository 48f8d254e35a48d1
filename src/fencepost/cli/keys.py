"""`fencepost keys …`: API keys, made and taken back straight in the database.

Whoever has the database has everything already; so this needs no key of its own, and makes the first one.
"""

from __future__ import annotations

import asyncio
import getpass
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import click

from fencepost.adapters.evm.encoding import parse_checked_address
from fencepost.adapters.postgres import migrate
from fencepost.adapters.postgres.database import open_pool
from fencepost.adapters.postgres.operators import PostgresKeyStore
from fencepost.application.api_keys import ApiKey, KeyStore, Scope, mint
from fencepost.cli.options import settings_options
from fencepost.cli.remote import NO, OK, print_json
from fencepost.cli.tables import console, table
from fencepost.cli.transactions import moment
from fencepost.dev.surroundings import database
from fencepost.domain.ids import Address
from fencepost.errors import InvalidRequest, MigrationError
from fencepost.settings import Loaded

MOST_NAME_CHARS = 100
HERE = "command line"  # where it was done, for the audit


@click.group()
def keys() -> None:
    """API keys. From the first one on, every call to a node needs one."""


@keys.command()
@click.argument("name")
@click.option("--scope", "scopes", multiple=True, required=True, type=click.Choice([scope.value for scope in Scope]),
              help="What it may do; may be repeated.")  # fmt: skip
@click.option(
    "--signer", "signers", multiple=True, metavar="ADDRESS", help="Only for these; may be repeated."
)
@click.option("--rate", type=click.FloatRange(0, 1_000_000, min_open=True), help="Calls a second at most.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@settings_options
def create(
    *,
    name: str,
    scopes: tuple[str, ...],
    signers: tuple[str, ...],
    rate: float | None,
    as_json: bool,
    loaded: Loaded,
) -> None:
    """Make a key. Its token is shown now and never again."""
    if not name.strip() or len(name) > MOST_NAME_CHARS or not name.isprintable():
        raise InvalidRequest(f"a key's name has 1 to {MOST_NAME_CHARS} printable characters", field="name")
    new, token = mint(
        name,
        scopes=frozenset(Scope(scope) for scope in scopes),
        signers=frozenset(map(_address, signers)) if signers else None,
        rate_per_s=rate,
    )

    async def add() -> ApiKey:
        async with _store(loaded) as store:
            return await store.add(new, actor=_actor())

    made = asyncio.run(add())
    if as_json:
        print_json({**_plain(made), "token": token})
        return
    click.echo(token)
    click.echo(f"This is key {made.id} ({name}). It is not shown again; send it as a Bearer token.", err=True)


@keys.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@settings_options
def list_(*, as_json: bool, loaded: Loaded) -> None:
    """All keys, without their tokens, which nobody has."""

    async def read() -> Sequence[ApiKey]:
        async with _store(loaded) as store:
            return await store.keys()

    found = asyncio.run(read())
    if as_json:
        print_json([_plain(key) for key in found])
        return
    rows = [
        (
            key.id,
            key.name,
            " ".join(sorted(key.scopes)),
            "all" if key.signers is None else " ".join(sorted(key.signers)),
            "" if key.rate_per_s is None else f"{key.rate_per_s:g}/s",
            moment(key.created_at),
            moment(key.revoked_at),
        )
        for key in found
    ]
    console().print(table(("key", "name", "scopes", "signers", "rate", "created", "revoked"), rows))


@keys.command()
@click.argument("key_id")
@settings_options
def revoke(*, key_id: str, loaded: Loaded) -> int:
    """Take a key back; nodes stop taking it within seconds."""

    async def take_back() -> bool:
        async with _store(loaded) as store:
            return await store.revoke(key_id, actor=_actor())

    if asyncio.run(take_back()):
        click.echo(f"{key_id} is revoked")
        return OK
    click.echo(f"fencepost: there is no key {key_id[:40]!r} to revoke", err=True)
    return NO


@asynccontextmanager
async def _store(loaded: Loaded) -> AsyncIterator[KeyStore]:
    settings = loaded.settings
    timeout_s = settings.database.connect_timeout_s
    async with database(settings, report=lambda _: None) as dsn:
        if any(not status.is_applied for status in await migrate.status(dsn, timeout_s=timeout_s)):
            raise MigrationError("the database is not up to date: run fencepost migrate")
        async with open_pool(
            dsn,
            size=1,
            connect_timeout_s=timeout_s,
            lease_duration_s=settings.lease.duration_s,
            application="fencepost keys",
        ) as pool:
            yield PostgresKeyStore(pool, node=HERE)


def _address(text: str) -> Address:
    try:
        return parse_checked_address(text)
    except ValueError as error:
        raise InvalidRequest(str(error), field="signer") from None


def _actor() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as containers have them
        return HERE


def _plain(key: ApiKey) -> dict[str, object]:
    return {
        "id": key.id,
        "name": key.name,
        "scopes": sorted(key.scopes),
        "signers": None if key.signers is None else sorted(key.signers),
        "ratePerS": key.rate_per_s,
        "createdAt": key.created_at,
        "revokedAt": key.revoked_at,
    }
