"""Check the schema, open the pools of a process, and build its ledger."""

from __future__ import annotations

from contextlib import AsyncExitStack
from uuid import UUID

from fencepost.adapters.postgres import migrate
from fencepost.adapters.postgres.database import DatabaseHistory, Pools, open_pools
from fencepost.adapters.postgres.ledger import PostgresLedger
from fencepost.adapters.postgres.rights import require_rights
from fencepost.application.ports import Clock
from fencepost.errors import MigrationError
from fencepost.settings import Settings


async def require_schema(settings: Settings, dsn: str) -> None:
    """Apply missing migrations, or raise `MigrationError` if `database.migrate_on_start` is off; check the rights."""
    timeout_s = settings.database.connect_timeout_s
    if settings.database.migrate_on_start:
        await migrate.apply(dsn, timeout_s=timeout_s)
    elif missing := [
        status for status in await migrate.status(dsn, timeout_s=timeout_s) if not status.is_applied
    ]:
        raise MigrationError(
            f"{len(missing)} migrations are missing and database.migrate_on_start is off: run fencepost migrate"
        )
    await require_rights(dsn, timeout_s=timeout_s)


async def open_database(
    settings: Settings, stack: AsyncExitStack, *, dsn: str, name: str, history: DatabaseHistory
) -> Pools:
    return await stack.enter_async_context(
        open_pools(
            dsn,
            size=settings.database.pool_size,
            connect_timeout_s=settings.database.connect_timeout_s,
            lease_duration_s=settings.lease.duration_s,
            application=f"fencepost {name}"[:60],
            history=history,
        )
    )


def build_ledger(
    settings: Settings, pools: Pools, clock: Clock, *, name: str, incarnation: UUID
) -> PostgresLedger:
    return PostgresLedger(
        pools.work,
        clock=clock,
        node=name,
        incarnation=incarnation,
        lease_duration_s=settings.lease.duration_s,
        skew_allowance_s=settings.lease.skew_allowance_s,
        renewing=pools.renewing,
        moving=pools.moving,
    )
