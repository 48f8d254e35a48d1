"""Scheme `leased`, the default: one process owns a signer for a term, and gives its nonces in batches.

The owner is who holds the signer's lease. Every write names the term's token and hangs on the lease row, so an owner
that was paused, cut off or replaced is refused by the database: its batch gives nothing. What arrives while a batch is
on its way is the next batch, for all signers in one statement; a hot signer costs one commit for many nonces.

In memory stands only where a sequence may go on at least: the largest of what the chain has seen, what the database
knows and what was given here. It is dropped, with the term, as soon as a batch fails: nobody knows what that did. Any
process may mark; a hold's own token is fence enough for that. A process that does not own the signer raises
`NotLeader` with the owner's name, and the caller goes there.

Strong: every nonce is stored before it is given, and the price of that is shared: no duplicate, no Redis, a high rate.
Weak: a signer's callers have to reach its owner, and after a crash they wait until its lease has run out.
Window of loss: none. A call whose answer was lost leaves its nonces held until their time is over.
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
from fencepost.nonce.records import MarksInRecords, Records

MOST_CALLS_A_COMMIT = 1000
_TRIES = 3


class Leases(Protocol):
    """The part of the ledger that gives terms."""

    async def acquire(self, signers: Sequence[Signer]) -> Sequence[Term]: ...
    async def renew(self, terms: Sequence[Term]) -> Sequence[Term]: ...
    async def release(self, terms: Sequence[Term]) -> None: ...


@dataclass(slots=True)
class _Owned:
    term: Term
    floor: int  # the sequence goes on here or higher


@dataclass(frozen=True, slots=True)
class _Call:
    signer: Signer
    count: int
    hold_for_s: float


# What a call got, or why it got nothing: `Fenced` is tried again with a new term.
_Answer = list[Hold] | Exception


class LeasedNonces(MarksInRecords):
    def __init__(self, records: Records, leases: Leases, *, clock: Clock) -> None:
        super().__init__(records)
        self._leases = leases
        self._clock = clock
        self._owned: dict[Signer, _Owned] = {}
        self._opening: defaultdict[Signer, asyncio.Lock] = defaultdict(asyncio.Lock)
        # One at a time: two batches of one signer would wait for each other at its cursor.
        self._batches = GroupCommit(self._give_batch, most_items=MOST_CALLS_A_COMMIT, parallel=1)

    async def allocate(self, signer: Signer, *, count: int = 1, hold_for_s: float) -> Sequence[Hold]:
        check_request(count=count, hold_for_s=hold_for_s)
        for _ in range(_TRIES):
            if not self._is_ours(signer):
                await self._own(signer)
            answer = await self._batches.submit(_Call(signer, count, hold_for_s))
            if not isinstance(answer, Exception):
                return answer
            if not isinstance(answer, Fenced):
                raise answer
        raise NonceUnavailable(f"the lease of {signer.address} changes hands too fast: ask again")

    def _is_ours(self, signer: Signer) -> bool:
        owned = self._owned.get(signer)
        return owned is not None and owned.term.is_trusted(self._clock.now_s())

    async def _own(self, signer: Signer) -> None:
        """Take the lease, and look where the sequence stands: in the database and on the chain."""
        async with self._opening[signer]:
            if self._is_ours(signer):
                return
            self._owned.pop(signer, None)
            await self._records.open(signer)
            terms = await self._leases.acquire([signer])
            if not terms:
                owner = await self._records.pool.fetchrow(sql("lease_owner"), signer.chain_id, signer.address)
                name = owner["owner_node"] if owner is not None else None
                raise NotLeader(f"{signer.address} belongs to another process: ask {name}", owner=name)
            known = await self._records.known_next(signer)
            seen = await self._records.seen_by_chain(signer)
            self._owned[signer] = _Owned(terms[0], floor=max(known, seen))

    # ---- a batch

    async def _give_batch(self, calls: Sequence[_Call]) -> Sequence[_Answer]:
        by_signer: dict[Signer, list[_Call]] = defaultdict(list)
        for call in calls:
            by_signer[call.signer].append(call)
        lanes = [
            (signer, owned, wanted)
            for signer, wanted in by_signer.items()
            if (owned := self._owned.get(signer)) is not None
        ]
        tokens = {signer: uuid4() for signer, _, _ in lanes}
        try:
            given = await self._write(lanes, tokens)
        except Exception:
            for signer, _, _ in lanes:
                self._owned.pop(signer, None)
            raise
        return self._share_out(calls, given, tokens)

    async def _write(
        self, lanes: Sequence[tuple[Signer, _Owned, list[_Call]]], tokens: dict[Signer, UUID]
    ) -> dict[Signer, list[int]]:
        """The nonces of each signer whose term stands; a signer that is missing was fenced."""
        rows = await self._records.pool.fetch(
            sql("nonce_take_leased"),
            [signer.chain_id for signer, _, _ in lanes],
            [signer.address for signer, _, _ in lanes],
            [owned.term.token for _, owned, _ in lanes],
            [sum(call.count for call in calls) for _, _, calls in lanes],
            [owned.floor for _, owned, _ in lanes],
            [tokens[signer] for signer, _, _ in lanes],
            [max(call.hold_for_s for call in calls) for _, _, calls in lanes],
        )
        given: dict[Signer, list[int]] = {}
        signers = {(signer.chain_id, signer.address): signer for signer, _, _ in lanes}
        for row in rows:
            nonces = given.setdefault(signers[row["chain_id"], Address(row["signer"])], [])
            if row["nonce"] is not None:
                nonces.append(row["nonce"])
        return given

    def _share_out(
        self, calls: Sequence[_Call], given: dict[Signer, list[int]], tokens: dict[Signer, UUID]
    ) -> list[_Answer]:
        """In the order of asking, from the smallest nonce up."""
        left: dict[Signer, list[int]] = {}
        for signer, nonces in given.items():
            left[signer] = sorted(nonces, reverse=True)
            if nonces and (owned := self._owned.get(signer)) is not None:
                owned.floor = max(owned.floor, left[signer][0] + 1)
        answers: list[_Answer] = []
        for call in calls:
            nonces = left.get(call.signer, [])
            if len(nonces) < call.count:
                self._owned.pop(call.signer, None)
                answers.append(Fenced(f"the term of {call.signer.address} is over"))
            else:
                token = tokens[call.signer]
                answers.append([Hold(call.signer, nonces.pop(), token) for _ in range(call.count)])
        return answers

    # ---- the terms

    async def tend_once(self) -> int:
        """Renew; what does not stand any more is dropped. How many stand."""
        terms = [owned.term for owned in self._owned.values()]
        if not terms:
            return 0
        standing = {term.signer: term for term in await self._leases.renew(terms)}
        for term in terms:
            owned = self._owned.get(term.signer)
            if owned is None or owned.term.token != term.token:
                continue
            renewed = standing.get(term.signer)
            if renewed is None:
                del self._owned[term.signer]
            else:
                owned.term = renewed
        return len(standing)

    async def close(self) -> None:
        await self._batches.drain()
        terms = [owned.term for owned in self._owned.values()]
        self._owned.clear()
        if terms:
            await self._leases.release(terms)
        await super().close()
