"""Store spending policies and daily budgets in PostgreSQL: `sql/policy.sql`.

Wei amounts are passed as text, because they do not fit a bigint.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final
from uuid import UUID

from msgspec import json

from fencepost.adapters.postgres.pool import Pool
from fencepost.adapters.postgres.queries import sql
from fencepost.adapters.postgres.rows import Row
from fencepost.application.ports import Actor
from fencepost.application.spending_policy import Limits, SpendingPolicies
from fencepost.domain.ids import Address, Signer

# Ended transactions that one statement settles.
MAX_SETTLED_AT_ONCE: Final = 500
_QUANTITY: Final = re.compile(r"0x[0-9a-fA-F]{1,64}")


class PostgresPolicies(SpendingPolicies):
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
            None if limits.gas_max is None else str(limits.gas_max),
            None if limits.fee_cap_max_wei is None else str(limits.fee_cap_max_wei),
            actor.name,
            actor.key_id,
            self._node,
        )

    async def remove(self, signer: Signer, actor: Actor) -> bool:
        deleted = await self._pool.fetchval(
            sql("policy_remove"), signer.chain_id, signer.address, actor.name, actor.key_id, self._node
        )
        return deleted is not None

    async def reserve(
        self, signer: Signer, tx_id: UUID, *, value_wei: int, wei: int, force: bool = False
    ) -> bool:
        return bool(
            await self._pool.fetchval(
                sql("spend_reserve"),
                signer.chain_id,
                signer.address,
                tx_id,
                str(value_wei),
                str(wei),
                force,
            )
        )

    async def release(self, signer: Signer, tx_id: UUID) -> None:
        await self._settle(signer, [(tx_id, None)])

    async def settle(self, signer: Signer) -> int:
        settled = 0
        while True:
            ended = await self._pool.fetch(
                sql("spend_ended"), signer.chain_id, signer.address, MAX_SETTLED_AT_ONCE
            )
            settled += await self._settle(signer, [(row["tx_id"], _cost_wei(row)) for row in ended])
            if len(ended) < MAX_SETTLED_AT_ONCE:
                return settled

    async def _settle(self, signer: Signer, costs: Sequence[tuple[UUID, int | None]]) -> int:
        if not costs:
            return 0
        count: int = await self._pool.fetchval(
            sql("spend_settle"),
            signer.chain_id,
            signer.address,
            [tx_id for tx_id, _ in costs],
            [None if cost is None else str(cost) for _, cost in costs],
        )
        return count

    async def spent_today_wei(self, signer: Signer) -> int:
        return int(await self._pool.fetchval(sql("spend_today"), signer.chain_id, signer.address) or 0)


def _cost_wei(row: Row) -> int:
    """Compute what an ended transaction cost: 0 unless it is mined; its value counts only if it succeeded."""
    if not row["is_mined"]:
        return 0
    receipt = json.decode(row["receipt"] or "{}")
    gas = quantity_of(receipt.get("gasUsed"))
    if gas is None:  # the receipt has no gasUsed: count the whole reservation
        return int(row["wei"])
    price = quantity_of(receipt.get("effectiveGasPrice"))
    cost = gas * (int(row["fee_cap_wei"]) if price is None else price)
    cost += quantity_of(receipt.get("l1Fee")) or 0  # the data fee of a roll-up
    if row["purpose"] == "intent" and quantity_of(receipt.get("status")) == 1:
        cost += int(row["value_wei"])
    return cost


def quantity_of(value: object) -> int | None:
    """Parse a JSON-RPC quantity; return None if the value is not one."""
    return int(value, 16) if isinstance(value, str) and _QUANTITY.fullmatch(value) else None


def _limits(row: Row) -> Limits:
    return Limits(
        receivers=None if row["receivers"] is None else frozenset(Address(one) for one in row["receivers"]),
        selectors=None if row["selectors"] is None else frozenset(row["selectors"]),
        value_wei_max=None if row["value_wei_max"] is None else int(row["value_wei_max"]),
        daily_wei_max=None if row["daily_wei_max"] is None else int(row["daily_wei_max"]),
        gas_max=None if row["gas_max"] is None else int(row["gas_max"]),
        fee_cap_max_wei=None if row["fee_cap_max"] is None else int(row["fee_cap_max"]),
    )
