"""Store requests: single requests that arrive together share a statement, and each caller gets its own result.

A database error means that the outcome is unknown; the caller submits again, and a stored request is then recognized.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from uuid import UUID

import asyncpg

from fencepost.adapters.postgres.group_commit import GroupCommit
from fencepost.adapters.postgres.pool import Pool
from fencepost.adapters.postgres.queries import sql
from fencepost.adapters.postgres.slow_retry import RetryingReads, repeat_while_slow
from fencepost.adapters.postgres.sources import NEW_REQUEST
from fencepost.application.canonical_payload import canonical, digest
from fencepost.application.ports import MAX_BEHIND, Accepted, AcceptOutcome, Clock, NewRequest
from fencepost.domain.transaction_state import ManagedTx

MAX_REQUESTS_PER_COMMIT = 500
# One statement for all requests that arrive meanwhile costs least. A second one overlaps only if the first is slow: a
# statement that waits for a lock or a dead connection does not stop other requests.
PARALLEL_ACCEPTS = 2
OVERLAP_AFTER_S = 0.01

# A batch request gets its own statement, in parallel with others. But while lanes write, such statements run one after the
# other, unless one is slow: otherwise sending would wait until all batches are stored.
PARALLEL_BATCHES = 4
BATCH_OVERLAP_AFTER_S = 0.1
LANES_IDLE_AFTER_S = 0.1


class RequestWriter:
    def __init__(self, pool: Pool, *, clock: Clock, node: str, lanes_idle_s: Callable[[], float]) -> None:
        """Create it; `lanes_idle_s` returns for how long no lane has written."""
        self._pool = pool
        self._reads = RetryingReads(pool)
        self._clock = clock
        self._node = node
        self._lanes_idle_s = lanes_idle_s
        self._singles = GroupCommit(
            self._accept,
            max_items=MAX_REQUESTS_PER_COMMIT,
            parallel=PARALLEL_ACCEPTS,
            overlap_after_s=OVERLAP_AFTER_S,
        )
        self._batches = GroupCommit(
            self._accept,
            max_items=MAX_REQUESTS_PER_COMMIT,
            parallel=PARALLEL_BATCHES,
            overlap_after_s=self._batch_overlap_after_s,
        )

    def _batch_overlap_after_s(self) -> float:
        return 0.0 if self._lanes_idle_s() >= LANES_IDLE_AFTER_S else BATCH_OVERLAP_AFTER_S

    async def accept(self, requests: Sequence[NewRequest]) -> Sequence[Accepted]:
        if len(requests) == 1:
            return [await self._singles.put(requests[0])]
        return await self._batches.submit_all(requests)

    async def drain(self) -> None:
        await self._singles.drain()
        await self._batches.drain()

    async def _accept(self, requests: Sequence[NewRequest]) -> Sequence[Accepted]:
        answers: dict[UUID, Accepted] = {}
        left = requests
        for is_last in (False, True):
            answers |= await self._store_with_retries(left)
            left = [request for request in left if request.tx_id not in answers]
            if left:
                answers |= await self._find_reasons(left, is_last=is_last)
                left = [request for request in left if request.tx_id not in answers]
            if not left:
                break
        return [answers[request.tx_id] for request in requests]

    async def _store_with_retries(self, requests: Sequence[NewRequest]) -> dict[UUID, Accepted]:
        """Store the requests, and retry while the database is slow; a retry skips requests that are already stored."""
        is_first = True

        async def store() -> dict[UUID, Accepted]:
            nonlocal is_first
            if is_first:
                is_first = False
                return await self._store(requests)
            return await self._store_remaining(requests)

        return await repeat_while_slow(store)

    async def _store_remaining(self, requests: Sequence[NewRequest]) -> dict[UUID, Accepted]:
        ids = [request.tx_id for request in requests]
        stored = {row["tx_id"] for row in await self._pool.fetch(sql("requests_stored"), ids)}
        answers = {tx_id: Accepted(AcceptOutcome.CREATED, tx_id) for tx_id in ids if tx_id in stored}
        left = [request for request in requests if request.tx_id not in stored]
        try:
            return answers | (await self._store(left) if left else {})
        except asyncpg.UniqueViolationError as error:
            # PostgreSQL was still running the earlier statement when `requests_stored` was read.
            raise TimeoutError("an earlier attempt to store these requests is still running") from error

    async def _store(self, requests: Sequence[NewRequest]) -> dict[UUID, Accepted]:
        """Store the requests and return the results of those that were new."""
        started_s = self._clock.now_s()
        arguments = NEW_REQUEST.arrays(requests)
        created = await self._pool.fetch(sql("accept_requests"), self._node, MAX_BEHIND + 1, *arguments)
        by_id = {request.tx_id: request for request in requests}
        answers = {}
        for tx_id, seq, waiting in created:
            behind = tuple(map(int, waiting.split(","))) if waiting else ()
            if len(behind) > MAX_BEHIND:
                answers[tx_id] = Accepted(AcceptOutcome.CREATED, tx_id)
            else:
                queued = _queued(by_id[tx_id], tx_id, seq, started_s)
                answers[tx_id] = Accepted(AcceptOutcome.CREATED, tx_id, "", queued, behind)
        return answers

    async def _find_reasons(self, requests: Sequence[NewRequest], *, is_last: bool) -> dict[UUID, Accepted]:
        """Find out why these requests were not stored: known, known with another payload, or rejected for the signer.

        If none of these applies, another node registered the new signer at the same moment: such a request is left out of
        the result and stored by the next try, which sees that registration. On the last try it is rejected.
        """
        known = {
            row["position"]: row
            for row in await self._reads.fetch(
                sql("requests_known"),
                [request.signer.chain_id for request in requests],
                [request.signer.address for request in requests],
                [request.request_id for request in requests],
            )
        }
        reasons = {
            (row["chain_id"], row["signer"]): (
                AcceptOutcome.NONCE_ONLY if row["is_nonce_only"] else AcceptOutcome.PROTECTED,
                row["reason"],
            )
            for row in await self._reads.fetch(
                sql("protect_reasons"),
                [request.signer.chain_id for request in requests],
                [request.signer.address for request in requests],
            )
        }
        results: dict[UUID, Accepted] = {}
        for position, request in enumerate(requests, start=1):
            row = known.get(position)
            if row is None:
                reason = reasons.get((request.signer.chain_id, request.signer.address))
                if reason is not None or is_last:
                    outcome, detail = reason or (AcceptOutcome.PROTECTED, "")
                    results[request.tx_id] = Accepted(outcome, request.tx_id, detail or "")
            elif row["tx_id"] == request.tx_id:  # stored by a try that timed out
                results[request.tx_id] = Accepted(AcceptOutcome.CREATED, request.tx_id)
            elif row["payload_digest"] == digest(canonical(request.intent)):
                results[request.tx_id] = Accepted(AcceptOutcome.KNOWN, row["tx_id"])
            else:
                results[request.tx_id] = Accepted(AcceptOutcome.CONFLICT, row["tx_id"])
        return results


def _queued(request: NewRequest, tx_id: UUID, seq: int, started_s: float) -> ManagedTx:
    """Build the transaction that a load would return.

    Its deadline is counted from before the request was stored, so it is never later than the stored one. `tx_id` is asyncpg's
    UUID, which compares, hashes and formats faster than Python's.
    """
    return ManagedTx(
        tx_id=tx_id,
        signer=request.signer,
        seq=seq,
        kind=request.kind,
        intent=request.intent,
        request_id=request.request_id,
        origin=request.origin,
        journal_count=1,
        valid_until_s=None if request.valid_for_s is None else started_s + request.valid_for_s,
        received_s=started_s,
    )
