"""Implement scheme `leased`, the default: the process that holds a signer's lease allocates its nonces in batches.

Every write names the term's token and locks the lease row, so PostgreSQL rejects the batch of a lease holder that was paused,
cut off or replaced. Calls that arrive while a batch is being written form the next batch, for all signers in one statement;
a busy signer costs one commit for many nonces.

Memory contains only a floor for the cursor: the largest of the chain's nonce, the stored nonces and the nonces allocated
here. It is dropped, with the term, as soon as a batch fails, because the outcome of that batch is unknown. Any process may
mark; the hold's own token is a sufficient fence. A process that does not hold the lease raises `NotLeader` with the holder's
name, and the caller retries there.

Strong: every nonce is stored before it is returned, and callers share the cost: no duplicate, no Redis, a high rate.
Weak: a signer's callers have to reach the lease holder, and after a crash they wait until its lease has expired.
Window of loss: none. If the response to a call is lost, its nonces stay held until they expire.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID, uuid4

from fencepost.adapters.postgres.group_commit import GroupCommit
from fencepost.adapters.postgres.queries import sql
from fencepost.application.ports import Clock
from fencepost.domain.ids import Address, Signer
from fencepost.domain.lease import Term
from fencepost.errors import Fenced, NonceUnavailable, NotLeader
from fencepost.nonce.port import Hold, check_request
from fencepost.nonce.store import NonceStore, StoredMarks

MAX_CALLS_PER_COMMIT = 1000
_TRIES = 3


class Leases(Protocol):
    """The part of the ledger that grants leases."""

    async def acquire(self, signers: Sequence[Signer]) -> Sequence[Term]: ...
    async def renew(self, terms: Sequence[Term]) -> Sequence[Term]: ...
    async def release(self, terms: Sequence[Term]) -> None: ...


@dataclass(slots=True)
class _Owned:
    term: Term
    floor: int  # the next nonce is at least this


@dataclass(frozen=True, slots=True)
class _AllocateCall:
    signer: Signer
    count: int
    hold_for_s: float


# The holds of a call, or the error: `Fenced` is retried with a new term.
_AllocateResult = list[Hold] | Exception


class LeasedNonces(StoredMarks):
    def __init__(self, store: NonceStore, leases: Leases, *, clock: Clock) -> None:
        super().__init__(store)
        self._leases = leases
        self._clock = clock
        self._owned: dict[Signer, _Owned] = {}
        self._opening: defaultdict[Signer, asyncio.Lock] = defaultdict(asyncio.Lock)
        # One at a time: two batches of one signer would wait for each other's lock on its cursor.
        self._batches = GroupCommit(self._allocate_batch, max_items=MAX_CALLS_PER_COMMIT, parallel=1)

    async def allocate(self, signer: Signer, *, count: int = 1, hold_for_s: float) -> Sequence[Hold]:
        check_request(count=count, hold_for_s=hold_for_s)
        for _ in range(_TRIES):
            if not self._holds_lease(signer):
                await self._acquire_lease(signer)
            result = await self._batches.submit(_AllocateCall(signer, count, hold_for_s))
            if not isinstance(result, Exception):
                return result
            if not isinstance(result, Fenced):
                raise result
        raise NonceUnavailable(f"the lease of {signer.address} changed its holder {_TRIES} times: retry")

    def _holds_lease(self, signer: Signer) -> bool:
        owned = self._owned.get(signer)
        return owned is not None and owned.term.is_trusted(self._clock.now_s())

    async def _acquire_lease(self, signer: Signer) -> None:
        """Acquire the lease, and read the next nonce from the database and the chain."""
        async with self._opening[signer]:
            if self._holds_lease(signer):
                return
            self._owned.pop(signer, None)
            await self._store.open(signer)
            terms = await self._leases.acquire([signer])
            if not terms:
                owner = await self._store.pool.fetchrow(sql("lease_owner"), signer.chain_id, signer.address)
                name = owner["owner_node"] if owner is not None else None
                raise NotLeader(
                    f"another node holds the lease of {signer.address}: send it to {name}", owner=name
                )
            stored = await self._store.known_next(signer)
            on_chain = await self._store.chain_nonce(signer)
            self._owned[signer] = _Owned(terms[0], floor=max(stored, on_chain))

    # ---- a batch

    async def _allocate_batch(self, calls: Sequence[_AllocateCall]) -> Sequence[_AllocateResult]:
        by_signer: dict[Signer, list[_AllocateCall]] = defaultdict(list)
        for call in calls:
            by_signer[call.signer].append(call)
        lanes = [
            (signer, owned, wanted)
            for signer, wanted in by_signer.items()
            if (owned := self._owned.get(signer)) is not None
        ]
        tokens = {signer: uuid4() for signer, _, _ in lanes}
        try:
            allocated = await self._write(lanes, tokens)
        except Exception:
            for signer, _, _ in lanes:
                self._owned.pop(signer, None)
            raise
        return self._distribute(calls, allocated, tokens)

    async def _write(
        self, lanes: Sequence[tuple[Signer, _Owned, list[_AllocateCall]]], tokens: dict[Signer, UUID]
    ) -> dict[Signer, list[int]]:
        """Store the holds and return the nonces per signer; a signer that is missing was fenced."""
        rows = await self._store.pool.fetch(
            sql("nonce_take_leased"),
            [signer.chain_id for signer, _, _ in lanes],
            [signer.address for signer, _, _ in lanes],
            [owned.term.token for _, owned, _ in lanes],
            [sum(call.count for call in calls) for _, _, calls in lanes],
            [owned.floor for _, owned, _ in lanes],
            [tokens[signer] for signer, _, _ in lanes],
            [max(call.hold_for_s for call in calls) for _, _, calls in lanes],
        )
        allocated: dict[Signer, list[int]] = {}
        signers = {(signer.chain_id, signer.address): signer for signer, _, _ in lanes}
        for row in rows:
            nonces = allocated.setdefault(signers[row["chain_id"], Address(row["signer"])], [])
            if row["nonce"] is not None:
                nonces.append(row["nonce"])
        return allocated

    def _distribute(
        self, calls: Sequence[_AllocateCall], allocated: dict[Signer, list[int]], tokens: dict[Signer, UUID]
    ) -> list[_AllocateResult]:
        """Distribute the nonces to the calls in order, from the smallest nonce up."""
        left: dict[Signer, list[int]] = {}
        for signer, nonces in allocated.items():
            left[signer] = sorted(nonces, reverse=True)
            if nonces and (owned := self._owned.get(signer)) is not None:
                owned.floor = max(owned.floor, left[signer][0] + 1)
        results: list[_AllocateResult] = []
        for call in calls:
            nonces = left.get(call.signer, [])
            if len(nonces) < call.count:
                self._owned.pop(call.signer, None)
                results.append(Fenced(f"the term of {call.signer.address} is over"))
            else:
                token = tokens[call.signer]
                results.append([Hold(call.signer, nonces.pop(), token) for _ in range(call.count)])
        return results

    # ---- the terms

    async def tend_once(self) -> int:
        """Renew the leases, forget those that were lost, and return the number renewed."""
        terms = [owned.term for owned in self._owned.values()]
        if not terms:
            return 0
        renewed_by_signer = {term.signer: term for term in await self._leases.renew(terms)}
        for term in terms:
            owned = self._owned.get(term.signer)
            if owned is None or owned.term.token != term.token:
                continue
            renewed = renewed_by_signer.get(term.signer)
            if renewed is None:
                del self._owned[term.signer]
            else:
                owned.term = renewed
        return len(renewed_by_signer)

    async def close(self) -> None:
        await self._batches.drain()
        terms = [owned.term for owned in self._owned.values()]
        self._owned.clear()
        if terms:
            await self._leases.release(terms)
        await super().close()
