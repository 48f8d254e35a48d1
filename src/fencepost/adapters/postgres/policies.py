"""What signers may do, on PostgreSQL: `sql/policy.sql`. Wei pass as text, because they do not fit a bigint."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date

from fencepost.adapters.postgres.pool import Pool
from fencepost.adapters.postgres.queries import sql
from fencepost.adapters.postgres.rows import Row
from fencepost.application.operate import Actor
from fencepost.application.policy import Limits, Policies
from fencepost.domain.ids import Address, Signer


class PostgresPolicies(Policies):
    def __init__(self, pool: Pool, *, node: str) -> None:
        self._pool = pool
        self._node = node

    async def all(self) -> Mapping[Signer, Limits]:
        return {
            Signer(row["chain_id"], Address(row["signer"])): _limits(row)
            for row in await self._pool.fetch(sql("policies_list"))
        }

    async def put(self, signer: Signer, limits: Limits, actor: Actor) -> None:
        await self._pool.execute(
            sql("policy_put"),
            signer.chain_id,
            signer.address,
            None if limits.receivers is None else sorted(limits.receivers),
            None if limits.selectors is None else sorted(limits.selectors),
            None if limits.value_wei_max is None else str(limits.value_wei_max),
            None if limits.daily_wei_max is None else str(limits.daily_wei_max),
            actor.name,
            actor.key_id,
            self._node,
        )

    async def remove(self, signer: Signer, actor: Actor) -> bool:
        gone = await self._pool.fetchval(
            sql("policy_remove"), signer.chain_id, signer.address, actor.name, actor.key_id, self._node
        )
        return gone is not None

    async def take(self, signer: Signer, wei: int, *, most_wei: int) -> date | None:
        day: date | None = await self._pool.fetchval(
            sql("spend_take"), signer.chain_id, signer.address, str(wei), str(most_wei)
        )
        return day

    async def give_back(self, signer: Signer, wei: int, day: date) -> None:
        await self._pool.execute(sql("spend_give_back"), signer.chain_id, signer.address, str(wei), day)

    async def spent_today_wei(self, signer: Signer) -> int:
        return int(await self._pool.fetchval(sql("spend_today"), signer.chain_id, signer.address) or 0)


def _limits(row: Row) -> Limits:
    return Limits(
        receivers=None if row["receivers"] is None else frozenset(Address(one) for one in row["receivers"]),
        selectors=None if row["selectors"] is None else frozenset(row["selectors"]),
        value_wei_max=None if row["value_wei_max"] is None else int(row["value_wei_max"]),
        daily_wei_max=None if row["daily_wei_max"] is None else int(row["daily_wei_max"]),
    )
