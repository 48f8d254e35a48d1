"""Implement `fencepost keys …`: create, list and revoke API keys directly in the database.

Access to the database already grants everything, so these commands need no API key. They create the first one.
"""

from __future__ import annotations

import asyncio
import getpass
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import click

from fencepost.adapters.evm.encoding import parse_checked_address
from fencepost.adapters.postgres import migrate
from fencepost.adapters.postgres.api_keys import PostgresKeyStore
from fencepost.adapters.postgres.database import open_pool
from fencepost.application.api_keys import ApiKey, KeyStore, RevokeOutcome, Scope, mint
from fencepost.cli.node_client import NO, OK, print_json
from fencepost.cli.options import settings_options
from fencepost.cli.rendering import console, table
from fencepost.cli.tx_rendering import local_time
from fencepost.dev.embedded import database
from fencepost.domain.ids import Address
from fencepost.errors import InvalidRequest, MigrationError
from fencepost.settings import Loaded

MAX_NAME_CHARS = 100
AUDIT_NODE = "command line"  # stored in the audit log in place of a node's name


@click.group()
def keys() -> None:
    """Manage API keys. Once a key exists, every API call needs one, even after all keys are revoked."""


@keys.command()
@click.argument("name")
@click.option("--scope", "scopes", multiple=True, required=True, type=click.Choice([scope.value for scope in Scope]),
              help="What the key may do; may be repeated.")  # fmt: skip
@click.option(
    "--signer",
    "signers",
    multiple=True,
    metavar="ADDRESS",
    help="Restrict the key to this signer; may be repeated.",
)
@click.option("--rate", type=click.FloatRange(0, 1_000_000, min_open=True), help="Maximum calls per second.")
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
    """Create a key. Its token is shown only now."""
    if not name.strip() or len(name) > MAX_NAME_CHARS or not name.isprintable():
        raise InvalidRequest(
            f"the name of a key must have 1 to {MAX_NAME_CHARS} printable characters", field="name"
        )
    new, token = mint(
        name,
        scopes=frozenset(Scope(scope) for scope in scopes),
        signers=frozenset(map(_address, signers)) if signers else None,
        rate_per_s=rate,
    )

    async def add() -> ApiKey:
        async with _store(loaded) as store:
            return await store.add(new, actor=_actor())

    created = asyncio.run(add())
    if as_json:
        print_json({**_plain(created), "token": token})
        return
    click.echo(token)
    click.echo(
        f"Created key {created.id} ({name}). The token is not shown again; send it as a Bearer token.",
        err=True,
    )


@keys.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@settings_options
def list_(*, as_json: bool, loaded: Loaded) -> None:
    """List all keys. Tokens are not stored and cannot be shown."""

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
            local_time(key.created_at),
            local_time(key.revoked_at),
        )
        for key in found
    ]
    console().print(table(("key", "name", "scopes", "signers", "rate", "created", "revoked"), rows))


@keys.command()
@click.argument("key_id")
@click.option("--force", is_flag=True, help="Revoke the key even if it is the last one with the scope admin.")
@settings_options
def revoke(*, key_id: str, force: bool, loaded: Loaded) -> int:
    """Revoke a key. Nodes reject it within seconds, and keep rejecting callers without a key."""

    async def revoked() -> RevokeOutcome:
        async with _store(loaded) as store:
            return await store.revoke(key_id, actor=_actor(), force=force)

    match asyncio.run(revoked()):
        case RevokeOutcome.REVOKED:
            click.echo(f"{key_id} is revoked")
            return OK
        case RevokeOutcome.LAST_ADMIN:
            click.echo(
                f"fencepost: {key_id} is the last admin key and was not revoked: create another one first,"
                " or use --force (nodes keep rejecting callers without a key)",
                err=True,
            )
        case RevokeOutcome.UNKNOWN:
            click.echo(f"fencepost: no active key has the id {key_id[:40]!r}", err=True)
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
            yield PostgresKeyStore(pool, node=AUDIT_NODE)


def _address(text: str) -> Address:
    try:
        return parse_checked_address(text)
    except ValueError as error:
        raise InvalidRequest(str(error), field="signer") from None


def _actor() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # the user id has no name, as in many containers
        return AUDIT_NODE


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
