"""Store operator commands in PostgreSQL: `sql/commands.sql`."""

from __future__ import annotations

import msgspec

from fencepost.adapters.postgres.pool import Pool
from fencepost.adapters.postgres.queries import sql
from fencepost.application.ports import Actor, CommandStore, NewCommand


class PostgresCommands(CommandStore):
    def __init__(self, pool: Pool, *, node: str) -> None:
        self._pool = pool
        self._node = node

    async def submit(self, command: NewCommand, actor: Actor) -> int:
        async with self._pool.acquire() as connection, connection.transaction():
            await connection.execute(sql("command_lock"), command.signer.chain_id, command.signer.address)
            return int(
                await connection.fetchval(
                    sql("command_insert_audited"),
                    command.signer.chain_id,
                    command.signer.address,
                    command.tx_id,
                    command.command,
                    msgspec.json.encode(command.detail).decode(),
                    actor.name,
                    command.reason,
                    actor.key_id,
                    command.action,
                    self._node,
                )
            )
