"""Implement the ledger on PostgreSQL: accept requests, manage leases, and commit the fenced writes of lanes.

A database error means that the outcome is unknown; it is raised as it is, and the caller drops its state. Integrity and
serialization errors of a fenced write are the exception: the statement wrote nothing, so the lanes of a shared one are committed
one by one and only the lane that causes the error is rejected, like a lane whose rows have changed.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from fencepost.adapters.postgres import rows
from fencepost.adapters.postgres.database import current_history
from fencepost.adapters.postgres.group_commit import GroupCommit
from fencepost.adapters.postgres.lane_reader import LaneReader
from fencepost.adapters.postgres.lane_writer import lane_statement
from fencepost.adapters.postgres.pool import Pool
from fencepost.adapters.postgres.queries import sql
from fencepost.adapters.postgres.request_writer import RequestWriter
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
from fencepost.domain.lease import Term
from fencepost.domain.transaction_state import ManagedTx

_log = logging.getLogger(__name__)

MAX_LANES_PER_COMMIT = 512
# While one commit waits for the disk or a lock, the other proceeds. More than two would make batches smaller and cost more.
PARALLEL_COMMITS = 2
# A statement costs as much as twenty of its lanes, so many lanes wait and share one; a few lanes are committed at once.
OVERLAP_AFTER_S = 0.03
FEW_LANES = 8


# Terms are recorded for audits. While a chain does not respond, a signer begins a new term every few seconds.
MAX_TERMS_KEPT = 1_000
FORGET_TERMS_EVERY = 64

_BEFORE_ALL = Signer(0, Address(""))
_ABOVE_ALL_BLOCKS = 2**63 - 1


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
        """Create the ledger of a node.

        `renewing` and `moving` are the pools for leases (see `Pools`); by default leases use `pool`.
        """
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
            max_items=MAX_LANES_PER_COMMIT,
            parallel=PARALLEL_COMMITS,
            overlap_after_s=OVERLAP_AFTER_S,
            few=FEW_LANES,
        )
        self._request_writer = RequestWriter(pool, clock=clock, node=node, lanes_idle_s=self._commits.idle_s)
        self._lane_reader = LaneReader(pool, clock)

    async def drain(self) -> None:
        await self._commits.drain()
        await self._request_writer.drain()
        await self._lane_reader.drain()

    # ---- writes that need no lease

    async def accept(self, requests: Sequence[NewRequest]) -> Sequence[Accepted]:
        return await self._request_writer.accept(requests)

    async def add_command(
        self,
        signer: Signer,
        command: str,
        *,
        tx_id: UUID | None,
        author: str,
        reason: str | None,
        detail: Mapping[str, Any],
    ) -> int:
        return int(
            await self._pool.fetchval(
                sql("command_insert"),
                signer.chain_id,
                signer.address,
                tx_id,
                command,
                msgspec.json.encode(detail).decode(),
                author,
                reason,
            )
        )

    # ---- leases

    async def acquire(self, signers: Sequence[Signer]) -> Sequence[Term]:
        chains, addresses = rows.signer_arrays(signers)
        started_s = self._clock.now_s()
        async with self._moving.acquire() as connection, connection.transaction():
            await connection.execute(sql("lease_insert_missing"), chains, addresses)
            history = await current_history(connection)
            taken = await connection.fetch(
                sql("lease_acquire"),
                chains,
                addresses,
                self._node,
                self._incarnation,
                self._lease_duration_s,
                self._skew_allowance_s,
                history.number,
            )
            terms = [self._term(row, started_s) for row in taken]
            if terms:
                chains, addresses = rows.signer_arrays([term.signer for term in terms])
                await connection.execute(sql("lease_record_terms"), chains, addresses, self._incarnation)
                if several := [term.signer for term in terms if term.token % FORGET_TERMS_EVERY == 0]:
                    chains, addresses = rows.signer_arrays(several)
                    await connection.execute(sql("lease_forget_terms"), chains, addresses, MAX_TERMS_KEPT)
        return terms

    async def renew(self, terms: Sequence[Term]) -> Sequence[Term]:
        started_s = self._clock.now_s()
        places: list[int] = await self._renewing.fetchval(
            sql("lease_renew"), *_term_arrays(terms), self._lease_duration_s
        )
        renewed = [terms[place - 1] for place in places]
        return [Term(term.signer, term.token, started_s, self._lease_duration_s) for term in renewed]

    async def release(self, terms: Sequence[Term]) -> None:
        await self._moving.execute(sql("lease_release"), *_term_arrays(terms))

    def _term(self, row: rows.Row, started_s: float) -> Term:
        return Term(
            signer=rows.signer_of(row),
            token=row["fencing_token"],
            renewed_at_s=started_s,
            duration_s=self._lease_duration_s,
        )

    async def signers_with_work(
        self, chain_ids: Sequence[int], *, limit: int, after: Signer | None = None
    ) -> Sequence[Signer]:
        found = await self._moving.fetch(
            sql("signers_with_work"), list(chain_ids), self._skew_allowance_s, limit, *(after or _BEFORE_ALL)
        )
        return [rows.signer_of(row) for row in found]

    async def signers_finished_since(
        self, chain_id: int, block_number: int, *, limit: int, after: Signer | None = None
    ) -> Sequence[Signer]:
        address = "" if after is None else after.address
        found = await self._pool.fetch(sql("signers_finished_since"), chain_id, block_number, address, limit)
        return [rows.signer_of(row) for row in found]

    async def newest_ended_blocks(
        self, chain_id: int, *, limit: int, below: int | None = None
    ) -> Sequence[BlockRef]:
        top = _ABOVE_ALL_BLOCKS if below is None else below
        found = await self._pool.fetch(sql("newest_ended_blocks"), chain_id, limit, top)
        return [BlockRef(row["block_number"], BlockHash(row["block_hash"])) for row in found]

    # ---- reading

    async def load(self, signer: Signer, *, queue_limit: int) -> LaneState:
        return await self._lane_reader.lane(signer, queue_limit=queue_limit)

    async def load_cursor(self, signer: Signer) -> LaneState:
        return await self._lane_reader.cursor(signer)

    async def load_queue(self, signer: Signer, *, limit: int) -> Sequence[ManagedTx]:
        return await self._lane_reader.queue(signer, limit=limit)

    async def load_unsent(self, signer: Signer, *, after_seq: int, limit: int) -> Sequence[ManagedTx]:
        found = await self._pool.fetch(sql("load_unsent"), signer.chain_id, signer.address, after_seq, limit)
        return await self._lane_reader.with_attempts(found)

    async def load_commands(self, signer: Signer) -> Sequence[Command]:
        return await self._lane_reader.commands(signer)

    async def load_finished(self, signer: Signer, *, from_nonce: int, limit: int) -> Sequence[ManagedTx]:
        found = await self._pool.fetch(
            sql("load_finished"), signer.chain_id, signer.address, from_nonce, limit
        )
        txs = await self._lane_reader.with_attempts(found)
        # The deadlines of an ended transaction are over.
        return [tx.changed(resubmit_due_s=None, valid_until_s=None) for tx in txs]

    async def get(self, tx_id: UUID) -> ManagedTx | None:
        found = await self._lane_reader.with_attempts(await self._pool.fetch(sql("tx_by_id"), tx_id))
        return found[0] if found else None

    async def find_by_request(self, signer: Signer, request_id: str) -> ManagedTx | None:
        found = await self._pool.fetch(sql("tx_by_request"), signer.chain_id, signer.address, request_id)
        txs = await self._lane_reader.with_attempts(found)
        return txs[0] if txs else None

    # ---- the fenced write

    async def commit(self, write: LaneWrite) -> Written:
        return await self._commits.submit(write)

    async def commit_each(self, writes: Sequence[LaneWrite]) -> Sequence[Written]:
        return await self._commits.submit_all(writes)

    async def _commit(self, writes: Sequence[LaneWrite]) -> Sequence[Written]:
        if len(writes) > 1:
            with suppress(asyncpg.IntegrityConstraintViolationError, asyncpg.SerializationError):
                return await self._commit_together(writes)
        return [await self._commit_one(write) for write in writes]

    async def _commit_one(self, write: LaneWrite) -> Written:
        try:
            return (await self._commit_together([write]))[0]
        except asyncpg.SerializationError:  # another statement of the same term changed a row: `all_written`
            return Written(lease_ok=True, applied=False)
        except asyncpg.IntegrityConstraintViolationError as error:
            # A constraint rejected what the lane's own checks allowed: the lane reloads, as if its rows had changed.
            _log.error("the database rejected a write of %s: %s", write.term.signer, error)
            return Written(lease_ok=True, applied=False)

    async def _commit_together(self, writes: Sequence[LaneWrite]) -> Sequence[Written]:
        statement, arguments = lane_statement(writes, now_s=self._clock.now_s(), node=self._node)
        current = {row["lane"]: row["applied"] for row in await self._pool.fetch(statement, *arguments)}
        return [
            Written(lease_ok=lane in current, applied=current.get(lane, False))
            for lane in range(1, len(writes) + 1)
        ]


def _term_arrays(terms: Sequence[Term]) -> list[str]:
    """Encode terms as array literals: cheaper than lists for a node that renews thousands of leases every few seconds."""
    chain_ids = [str(term.signer.chain_id) for term in terms]
    addresses = [term.signer.address for term in terms]
    tokens = [str(term.token) for term in terms]
    return ["{" + ",".join(words) + "}" for words in (chain_ids, addresses, tokens)]
