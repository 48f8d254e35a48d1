"""Store the cluster's nodes in PostgreSQL, and sample leases and queues."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from uuid import UUID

from fencepost.adapters.postgres.pool import Pool
from fencepost.adapters.postgres.queries import sql
from fencepost.application.admission import ClusterSample, Sample
from fencepost.application.membership import Member, NodeView
from fencepost.domain.ids import Signer
from fencepost.domain.states import CursorState, State, SubState


class PostgresMembers:
    def __init__(self, pool: Pool, *, me: Member, url: str | None, version: str, live_for_s: float) -> None:
        self._pool = pool
        self._me = me
        self._url = url
        self._version = version
        self._live_for_s = live_for_s

    async def join(self, *, instead_of: NodeView | None = None) -> bool:
        await self._pool.execute(sql("nodes_forget"))
        me = self._me
        joined = await self._pool.fetchval(
            sql("node_join"),
            me.name,
            me.incarnation,
            self._url,
            me.mode,
            me.serves,
            self._version,
            self._live_for_s,
            None if instead_of is None else instead_of.incarnation,
            None if instead_of is None else instead_of.heartbeat_at,
        )
        return joined is not None

    async def beat(self, silent_chains: Collection[int] = ()) -> bool:
        row = await self._pool.fetchval(
            sql("node_beat"), self._me.name, self._me.incarnation, self._live_for_s, sorted(silent_chains)
        )
        return row is not None

    async def leave(self) -> None:
        await self._pool.execute(sql("node_leave"), self._me.name, self._me.incarnation)

    async def live(self) -> Sequence[Member]:
        return [
            Member(
                name=row["node_id"],
                incarnation=row["incarnation"],
                mode=row["mode"],
                serves=row["serves"],
                silent_chains=frozenset(row["silent_chains"]),
            )
            for row in await self._pool.fetch(sql("nodes_live"))
        ]

    async def all(self) -> Sequence[NodeView]:
        return await list_nodes(self._pool)


async def list_nodes(pool: Pool) -> Sequence[NodeView]:
    return [
        NodeView(
            name=row["node_id"],
            incarnation=row["incarnation"],
            url=row["url"],
            mode=row["mode"],
            serves=row["serves"],
            version=row["version"],
            started_at=row["started_at"],
            heartbeat_at=row["heartbeat_at"],
            is_live=row["is_live"],
            signers=row["signers"],
        )
        for row in await pool.fetch(sql("nodes_list"))
    ]


async def node_address(pool: Pool, name: str) -> tuple[str, UUID] | None:
    """Return URL and incarnation of a live node that has an API."""
    row = await pool.fetchrow(sql("node_address"), name)
    return None if row is None else (row["url"], row["incarnation"])


async def take_sample(pool: Pool) -> Sample:
    counts: dict[State, dict[Signer, int]] = defaultdict(dict)
    seconds_row: set[Signer] = set()
    queued_by_key: Counter[str] = Counter()
    for chain_id, state, key_id, addresses, counted in await pool.fetch(sql("sample_live")):
        signers = [Signer(chain_id, address) for address in addresses]
        if state is None:
            seconds_row.update(signers)
            continue
        of_state = counts[State(state)]
        for signer, count in zip(signers, counted, strict=True):
            of_state[signer] = of_state.get(signer, 0) + count
        if key_id is not None and state == State.QUEUED:
            queued_by_key[key_id] += sum(counted)
    return Sample(dict(counts), frozenset(seconds_row), queued_by_key)


async def take_cluster_sample(pool: Pool) -> ClusterSample:
    row = await pool.fetchrow(sql("sample_cluster"))
    if row is None:
        return ClusterSample()
    return ClusterSample(
        signers={
            CursorState.ACTIVE: row["active"],
            CursorState.PAUSED: row["paused"],
            CursorState.PROTECT: row["protected"],
        },
        without_lease=row["without_lease"],
        oldest_queued_s=row["oldest_queued_s"],
        oldest_in_flight_s=row["oldest_in_flight_s"],
        sub_states=Counter(SubState(text) for text in row["sub_states"] or ()),
    )


async def soonest_expiry_s(pool: Pool, incarnation: UUID) -> float | None:
    seconds: float | None = await pool.fetchval(sql("soonest_expiry"), incarnation)
    return seconds
