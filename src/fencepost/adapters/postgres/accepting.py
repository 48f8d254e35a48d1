"""Storing requests: single ones that come together share a statement, and each gets its own answer.

An error of the database means that the outcome is unknown; the caller asks again, and what was stored is known then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

import msgspec

from fencepost.adapters.postgres.arrays import JOINED, QUOTED, WORDS, columns
from fencepost.adapters.postgres.group_commit import GroupCommit
from fencepost.adapters.postgres.pool import Pool
from fencepost.adapters.postgres.queries import sql
from fencepost.application.intents import canonical, digest
from fencepost.application.ports import MOST_BEHIND, Accepted, AcceptOutcome, Clock, NewRequest
from fencepost.domain.managed import ManagedTx

MOST_REQUESTS_A_COMMIT = 500
# One statement for all who come meanwhile costs least. A second goes beside it only when it takes long: who waits for a
# lock, or for a connection that says nothing more, does not stop the others.
PARALLEL_ACCEPTS = 2
BESIDE_AFTER_S = 0.01

# Many that come at once get a statement of their own, beside others; but as long as lanes write, such statements go one
# after the other, unless one takes long: or all that is to be sent would wait until everything has been taken in.
PARALLEL_BATCHES = 4
BATCH_BESIDE_AFTER_S = 0.1
LANES_REST_AFTER_S = 0.1

_ROW = (WORDS, WORDS, WORDS, QUOTED, WORDS, WORDS, JOINED, WORDS, JOINED)


class Accepting:
    def __init__(self, pool: Pool, *, clock: Clock, node: str, lanes_rested_s: Callable[[], float]) -> None:
        """`lanes_rested_s` tells how long no lane has written anything."""
        self._pool = pool
        self._clock = clock
        self._node = node
        self._lanes_rested_s = lanes_rested_s
        self._singles = GroupCommit(
            self._accept,
            most_items=MOST_REQUESTS_A_COMMIT,
            parallel=PARALLEL_ACCEPTS,
            beside_after_s=BESIDE_AFTER_S,
        )
        self._batches = GroupCommit(
            self._accept,
            most_items=MOST_REQUESTS_A_COMMIT,
            parallel=PARALLEL_BATCHES,
            beside_after_s=self._batch_beside_after_s,
        )

    def _batch_beside_after_s(self) -> float:
        return 0.0 if self._lanes_rested_s() >= LANES_REST_AFTER_S else BATCH_BESIDE_AFTER_S

    async def accept(self, requests: Sequence[NewRequest]) -> Sequence[Accepted]:
        if len(requests) == 1:
            return [await self.accept_one(requests[0])]
        return await self._batches.submit_all(requests)

    def accept_one(self, request: NewRequest) -> asyncio.Future[Accepted]:
        return self._singles.put(request)

    async def drain(self) -> None:
        await self._singles.drain()
        await self._batches.drain()

    async def _accept(self, requests: Sequence[NewRequest]) -> Sequence[Accepted]:
        answers: dict[UUID, Accepted] = {}
        left = requests
        for is_last in (False, True):
            answers |= await self._store(left)
            left = [request for request in left if request.tx_id not in answers]
            if left:
                answers |= await self._judge(left, is_last=is_last)
                left = [request for request in left if request.tx_id not in answers]
            if not left:
                break
        return [answers[request.tx_id] for request in requests]

    async def _store(self, requests: Sequence[NewRequest]) -> dict[UUID, Accepted]:
        """Those that were new."""
        began_s = self._clock.now_s()
        asked_for = columns([_row(request) for request in requests], _ROW)
        created = await self._pool.fetch(sql("accept_requests"), *asked_for, self._node, MOST_BEHIND + 1)
        asked = {request.tx_id: request for request in requests}
        answers = {}
        for tx_id, seq, waiting in created:
            behind = tuple(map(int, waiting.split(","))) if waiting else ()
            if len(behind) > MOST_BEHIND:
                answers[tx_id] = Accepted(AcceptOutcome.CREATED, tx_id)
            else:
                queued = _queued(asked[tx_id], tx_id, seq, began_s)
                answers[tx_id] = Accepted(AcceptOutcome.CREATED, tx_id, "", queued, behind)
        return answers

    async def _judge(self, requests: Sequence[NewRequest], *, is_last: bool) -> dict[UUID, Accepted]:
        """Why nothing was written for these: known, known with another payload, or the signer takes nothing.

        Where none of that holds, another node met the signer for the first time just then: unless this was the last
        try, the request is left out here, and stored with the next statement, which sees that.
        """
        known = {
            row["position"]: row
            for row in await self._pool.fetch(
                sql("requests_known"),
                [request.signer.chain_id for request in requests],
                [request.signer.address for request in requests],
                [request.request_id for request in requests],
            )
        }
        reasons = {
            (row["chain_id"], row["signer"]): row["reason"]
            for row in await self._pool.fetch(
                sql("protect_reasons"),
                [request.signer.chain_id for request in requests],
                [request.signer.address for request in requests],
            )
        }
        judged: dict[UUID, Accepted] = {}
        for position, request in enumerate(requests, start=1):
            row = known.get(position)
            if row is None:
                reason = reasons.get((request.signer.chain_id, request.signer.address))
                if reason is not None or is_last:
                    judged[request.tx_id] = Accepted(AcceptOutcome.PROTECTED, request.tx_id, reason or "")
            elif row["payload_digest"] == digest(canonical(request.intent)):
                judged[request.tx_id] = Accepted(AcceptOutcome.KNOWN, row["tx_id"])
            else:
                judged[request.tx_id] = Accepted(AcceptOutcome.CONFLICT, row["tx_id"])
        return judged


def _row(request: NewRequest) -> tuple[Any, ...]:
    signer, tags = request.signer, request.tags
    return (
        request.tx_id.hex,
        signer.chain_id,
        signer.address,
        request.request_id,
        request.kind._value_,
        request.origin,
        canonical(request.intent).decode(),
        request.valid_for_s,
        msgspec.json.encode(tags).decode() if tags else None,  # arrays of arrays are rectangular
    )


def _queued(request: NewRequest, tx_id: UUID, seq: int, began_s: float) -> ManagedTx:
    """As a load would give it. Its time runs from before it was stored: it never ends later than the database says.

    `tx_id` is the driver's: it is compared, hashed and written in C, and all of that happens a dozen times.
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
        valid_until_s=None if request.valid_for_s is None else began_s + request.valid_for_s,
        received_s=began_s,
    )
