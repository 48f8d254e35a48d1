"""The ledger on PostgreSQL: accepting, leases, and the one fenced write through which lanes change anything.

An error of the database means that the outcome is unknown; it surfaces as it is, and the caller drops what it holds.
Integrity errors in a shared batch are the exception: the statement did nothing, so its lanes are tried one by one and
only the guilty one is refused, like a lane whose rows have moved.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from fencepost.adapters.postgres import rows
from fencepost.adapters.postgres.accepting import Accepting
from fencepost.adapters.postgres.group_commit import GroupCommit
from fencepost.adapters.postgres.lane_arrays import lane_statement
from fencepost.adapters.postgres.loading import Loading
from fencepost.adapters.postgres.pool import Pool
from fencepost.adapters.postgres.queries import sql
from fencepost.application.ports import (
    Accepted,
    Clock,
    Command,
    LaneState,
    LaneWrite,
    NewRequest,
    Written,
)
from fencepost.domain.confirmations import BlockRef
from fencepost.domain.ids import Address, BlockHash, Signer
from fencepost.domain.lease import Term, history_of
from fencepost.domain.managed import ManagedTx

_log = logging.getLogger(__name__)

MOST_LANES_A_COMMIT = 512
# Two: while one waits for the disk or for a lock, another goes on; with more, each carries less and all cost more.
PARALLEL_COMMITS = 2
# A statement costs as much as twenty of its lanes, so a crowd had better gather behind one; a few lanes go at once.
BESIDE_AFTER_S = 0.03
FEW_LANES = 8


_BEFORE_ALL = Signer(0, Address(""))


class PostgresLedger:
    def __init__(
        self,
        pool: Pool,
        *,
        clock: Clock,
        node: str,
        incarnation: UUID,
        lease_duration_s: float,
        skew_allowance_s: float,
        renewing: Pool | None = None,
        moving: Pool | None = None,
    ) -> None:
        """`renewing` and `moving` are for leases alone: see `Pools`. Without them, leases share the connections."""
        self._pool = pool
        self._renewing = renewing or pool
        self._moving = moving or pool
        self._clock = clock
        self._node = node
        self._incarnation = incarnation
        self._lease_duration_s = lease_duration_s
        self._skew_allowance_s = skew_allowance_s
        self._commits = GroupCommit(
            self._commit,
            most_items=MOST_LANES_A_COMMIT,
            parallel=PARALLEL_COMMITS,
            beside_after_s=BESIDE_AFTER_S,
            few=FEW_LANES,
        )
        self._accepting = Accepting(pool, clock=clock, node=node, lanes_rested_s=self._commits.rested_s)
        self._loading = Loading(pool, clock)
        self._history: int | None = None  # the one that is known to be written down

    async def drain(self) -> None:
        await self._commits.drain()
        await self._accepting.drain()
        await self._loading.drain()

    # ---- what anybody may write

    async def accept(self, requests: Sequence[NewRequest]) -> Sequence[Accepted]:
        return await self._accepting.accept(requests)

    def accept_one(self, request: NewRequest) -> asyncio.Future[Accepted]:
        return self._accepting.accept_one(request)

    async def ask(
        self,
        signer: Signer,
        command: str,
        *,
        tx_id: UUID | None,
        asked_by: str,
        reason: str | None,
        detail: Mapping[str, Any],
    ) -> int:
        return int(
            await self._pool.fetchval(
                sql("ask_command"),
                signer.chain_id,
                signer.address,
                tx_id,
                command,
                msgspec.json.encode(detail).decode(),
                asked_by,
                reason,
            )
        )

    # ---- leases

    async def acquire(self, signers: Sequence[Signer]) -> Sequence[Term]:
        chains, addresses = rows.signer_arrays(signers)
        began_s = self._clock.now_s()
        async with self._moving.acquire() as connection, connection.transaction():
            await connection.execute(sql("lease_insert_missing"), chains, addresses)
            taken = await connection.fetch(
                sql("lease_acquire"),
                chains,
                addresses,
                self._node,
                self._incarnation,
                self._lease_duration_s,
                self._skew_allowance_s,
            )
            terms = [self._term(row, began_s) for row in taken]
            if terms:
                chains, addresses = rows.signer_arrays([term.signer for term in terms])
                await connection.execute(sql("lease_record_terms"), chains, addresses, self._incarnation)
                history = history_of(terms[0].token)
                if history != self._history:
                    await connection.execute(sql("history_begins"), history)
        if terms:
            self._history = history
        return terms

    async def renew(self, terms: Sequence[Term]) -> Sequence[Term]:
        began_s = self._clock.now_s()
        places: list[int] = await self._renewing.fetchval(
            sql("lease_renew"), *_term_arrays(terms), self._lease_duration_s
        )
        renewed = [terms[place - 1] for place in places]
        return [Term(term.signer, term.token, began_s, self._lease_duration_s) for term in renewed]

    async def release(self, terms: Sequence[Term]) -> None:
        await self._moving.execute(sql("lease_release"), *_term_arrays(terms))

    def _term(self, row: rows.Row, began_s: float) -> Term:
        return Term(
            signer=rows.signer_of(row),
            token=row["fencing_token"],
            renewed_at_s=began_s,
            duration_s=self._lease_duration_s,
        )

    async def signers_with_work(
        self, chain_ids: Sequence[int], *, limit: int, after: Signer | None = None
    ) -> Sequence[Signer]:
        found = await self._moving.fetch(
            sql("signers_with_work"), list(chain_ids), self._skew_allowance_s, limit, *(after or _BEFORE_ALL)
        )
        return [rows.signer_of(row) for row in found]

    async def signers_finished_since(self, chain_id: int, block_number: int) -> Sequence[Signer]:
        return [
            rows.signer_of(row)
            for row in await self._pool.fetch(sql("signers_finished_since"), chain_id, block_number)
        ]

    async def newest_ended_blocks(self, chain_id: int, *, limit: int) -> Sequence[BlockRef]:
        found = await self._pool.fetch(sql("newest_ended_blocks"), chain_id, limit)
        return [BlockRef(row["block_number"], BlockHash(row["block_hash"])) for row in found]

    # ---- reading

    async def load(self, signer: Signer, *, queue_limit: int) -> LaneState:
        return await self._loading.lane(signer, queue_limit=queue_limit)

    async def load_queue(self, signer: Signer, *, limit: int) -> Sequence[ManagedTx]:
        return await self._loading.queue(signer, limit=limit)

    async def load_commands(self, signer: Signer) -> Sequence[Command]:
        return await self._loading.commands(signer)

    async def load_finished(self, signer: Signer, *, from_nonce: int, limit: int) -> Sequence[ManagedTx]:
        found = await self._pool.fetch(
            sql("load_finished"), signer.chain_id, signer.address, from_nonce, limit
        )
        return await self._loading.with_attempts(found)

    async def get(self, tx_id: UUID) -> ManagedTx | None:
        found = await self._loading.with_attempts(await self._pool.fetch(sql("tx_by_id"), tx_id))
        return found[0] if found else None

    async def find_by_request(self, signer: Signer, request_id: str) -> ManagedTx | None:
        found = await self._pool.fetch(sql("tx_by_request"), signer.chain_id, signer.address, request_id)
        txs = await self._loading.with_attempts(found)
        return txs[0] if txs else None

    # ---- the fenced write

    async def commit(self, write: LaneWrite) -> Written:
        return await self._commits.submit(write)

    async def commit_each(self, writes: Sequence[LaneWrite]) -> Sequence[Written]:
        return await self._commits.submit_all(writes)

    async def _commit(self, writes: Sequence[LaneWrite]) -> Sequence[Written]:
        if len(writes) > 1:
            with suppress(asyncpg.IntegrityConstraintViolationError):
                return await self._commit_together(writes)
        return [await self._commit_alone(write) for write in writes]

    async def _commit_alone(self, write: LaneWrite) -> Written:
        try:
            return (await self._commit_together([write]))[0]
        except asyncpg.SerializationError:
            # So `commit_lane` says that a row has moved: nothing of it stands.
            return Written(lease_ok=True, applied=False)
        except asyncpg.IntegrityConstraintViolationError as error:
            # A constraint held where the lane's own checks did not: to the lane, the rows are not as remembered.
            _log.error("a write of %s was refused: %s", write.term.signer, error)
            return Written(lease_ok=True, applied=False)

    async def _commit_together(self, writes: Sequence[LaneWrite]) -> Sequence[Written]:
        statement, arguments = lane_statement(writes, now_s=self._clock.now_s(), node=self._node)
        standing = {row["lane"]: row["applied"] for row in await self._pool.fetch(statement, *arguments)}
        return [
            Written(lease_ok=standing.get(lane) is not None, applied=standing.get(lane) is True)
            for lane in range(1, len(writes) + 1)
        ]


def _term_arrays(terms: Sequence[Term]) -> list[str]:
    """A busy node has thousands of them, and renews them every few seconds."""
    chain_ids = [str(term.signer.chain_id) for term in terms]
    addresses = [term.signer.address for term in terms]
    tokens = [str(term.token) for term in terms]
    return ["{" + ",".join(words) + "}" for words in (chain_ids, addresses, tokens)]
