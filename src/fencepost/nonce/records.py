"""The nonces of all schemes as rows in PostgreSQL: who holds what, and where each sequence stands.

The primary key (chain, signer, nonce) has the last word in every scheme. Marks of many callers share a statement.
`seen_by_chain` answers with the nonce that the chain expects next, pending transactions included; it is asked when a
signer is met for the first time and whenever holds are reclaimed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID, uuid4

from fencepost.adapters.postgres.database import Connection
from fencepost.adapters.postgres.group_commit import GroupCommit
from fencepost.adapters.postgres.pool import Pool
from fencepost.adapters.postgres.queries import sql
from fencepost.domain.ids import Address, Signer, TxHash
from fencepost.errors import FencepostError, NonceUnavailable, SignerElsewhere
from fencepost.nonce.port import Hold, Mark, NonceState, SignerStatus, Slot, is_done

SeenByChain = Callable[[Signer], Awaitable[int]]

MOST_RECLAIMED = 1000
MOST_HEALED = 10_000
MOST_MARKS_A_COMMIT = 500
PARALLEL_MARKS = 2
_TRIES = 5


class Records:
    def __init__(self, pool: Pool, *, seen_by_chain: SeenByChain, heal_after_s: float = 60.0) -> None:
        self.pool = pool
        self.seen_by_chain = seen_by_chain
        self._heal_after_s = heal_after_s
        self._ours: set[Signer] = set()  # known to be nonce-only: that never changes
        self._marks = GroupCommit(self._mark_batch, most_items=MOST_MARKS_A_COMMIT, parallel=PARALLEL_MARKS)

    async def drain(self) -> None:
        await self._marks.drain()

    async def open(self, signer: Signer) -> None:
        """Make the signer nonce-only and begin its sequence where the chain stands. Raises `SignerElsewhere`."""
        if signer in self._ours:
            return
        key = signer.chain_id, signer.address
        await self.pool.execute(sql("nonce_register"), *key)
        if await self.pool.fetchval(sql("signer_used_by"), *key) != "nonce":
            raise SignerElsewhere(
                f"{signer.address} is managed: its transactions go through the core, which gives the nonces"
            )
        if await self.pool.fetchval(sql("nonce_known_next"), *key) is None:
            await self.pool.execute(sql("nonce_cursor_open"), *key, await self.seen_by_chain(signer))
        self._ours.add(signer)

    async def take(self, signer: Signer, *, count: int, hold_for_s: float, floor: int = 0) -> list[Hold]:
        """By row lock: one caller at a time for a signer."""
        await self.open(signer)
        async with self.pool.acquire() as connection, connection.transaction():
            await connection.execute(sql("nonce_cursor_lock"), signer.chain_id, signer.address)
            return await self.take_locked(connection, signer, count=count, hold_for_s=hold_for_s, floor=floor)

    async def take_locked(
        self, connection: Connection, signer: Signer, *, count: int, hold_for_s: float, floor: int = 0
    ) -> list[Hold]:
        """In a transaction that has the lock of the signer's row."""
        token = uuid4()
        nonces: list[int] = []
        for _ in range(_TRIES):  # more than one only if somebody stores nonces without the lock
            wanted = count - len(nonces)
            got = await connection.fetch(
                sql("nonce_take"), signer.chain_id, signer.address, wanted, token, hold_for_s, floor
            )
            nonces += [row["nonce"] for row in got]
            if len(nonces) == count:
                return holds(signer, nonces, token)
        raise NonceUnavailable(f"the nonces of {signer.address} are taken faster than they can be stored")

    async def take_gaps(self, signer: Signer, *, count: int, hold_for_s: float) -> list[Hold]:
        token = uuid4()
        got = await self.pool.fetch(
            sql("nonce_take_gaps"), signer.chain_id, signer.address, count, token, hold_for_s
        )
        return holds(signer, [row["nonce"] for row in got], token)

    async def with_gaps(self, signers: Sequence[Signer]) -> set[Signer]:
        found = await self.pool.fetch(
            sql("nonce_has_gaps"), [s.chain_id for s in signers], [s.address for s in signers]
        )
        return {Signer(row["chain_id"], Address(row["signer"])) for row in found}

    async def known_next(self, signer: Signer) -> int:
        return int(await self.pool.fetchval(sql("nonce_known_next"), signer.chain_id, signer.address))

    # ---- marks

    async def mark(self, mark: Mark) -> None:
        outcome = await self._marks.submit(mark)
        if outcome is not None:
            raise outcome

    async def release(self, given: Sequence[Hold]) -> None:
        """Take back what its caller will not hear of, in one statement; a hold that is over already stays so."""
        await self._mark_batch([Mark(hold, NonceState.RELEASED) for hold in given])

    async def _mark_batch(self, marks: Sequence[Mark]) -> Sequence[FencepostError | None]:
        outcomes: dict[int, FencepostError | None] = {}
        left = list(enumerate(marks))
        for _ in range(_TRIES):  # two marks of one nonce in a batch are applied one after the other
            applied = await self._apply([mark for _, mark in left])
            outcomes |= {left[position][0]: None for position in applied}
            left = [entry for position, entry in enumerate(left) if position not in applied]
            if not left:
                break
            slots = await self.look([mark.hold for _, mark in left])
            unclear = []
            for (index, mark), slot in zip(left, slots, strict=True):
                try:
                    if is_done(mark, slot):
                        outcomes[index] = None
                    else:
                        unclear.append((index, mark))
                except FencepostError as error:
                    outcomes[index] = error
            left = unclear
            if not left:
                break
        for index, _ in left:
            outcomes[index] = NonceUnavailable("the nonce is being changed by others: ask again")
        return [outcomes[index] for index in range(len(marks))]

    async def _apply(self, marks: Sequence[Mark]) -> set[int]:
        applied = await self.pool.fetch(
            sql("nonce_mark"),
            *_hold_arrays([mark.hold for mark in marks]),
            [mark.hold.token for mark in marks],
            [mark.state.value for mark in marks],
            [mark.tx_hash for mark in marks],
        )
        return {row["position"] - 1 for row in applied}

    async def look(self, wanted: Sequence[Hold]) -> list[Slot | None]:
        found = await self.pool.fetch(sql("nonce_look"), *_hold_arrays(wanted))
        slots: list[Slot | None] = [None] * len(wanted)
        for row in found:
            tx_hash = TxHash(row["tx_hash"]) if row["tx_hash"] else None
            slots[row["position"] - 1] = Slot(NonceState(row["state"]), row["hold"], tx_hash)
        return slots

    # ---- time

    async def reclaim(self, signer: Signer) -> list[int]:
        """Release what is over, and what was issued but never stored; the nonces that can be given again by that."""
        await self.open(signer)
        floor = await self.seen_by_chain(signer)
        key = signer.chain_id, signer.address
        released = await self.pool.fetch(sql("nonce_reclaim"), *key, floor, MOST_RECLAIMED)
        healed = await self.pool.fetch(sql("nonce_heal"), *key, floor, self._heal_after_s, MOST_HEALED)
        return [row["nonce"] for row in (*released, *healed)]

    async def status(self, signer: Signer) -> SignerStatus | None:
        row = await self.pool.fetchrow(sql("nonce_status"), signer.chain_id, signer.address)
        if row is None:
            return None
        return SignerStatus(
            start_nonce=row["start_nonce"],
            next_nonce=max(row["next_nonce"], -1 if row["top"] is None else row["top"] + 1),
            held=row["held"],
            expired=row["expired"],
            submitted=row["submitted"],
            consumed=row["consumed"],
            released=row["released"],
            first_gap=row["first_gap"],
        )


class MarksInRecords:
    """Marks for the schemes that keep every state in PostgreSQL."""

    def __init__(self, records: Records) -> None:
        self._records = records

    async def mark_submitted(self, hold: Hold, tx_hash: TxHash) -> None:
        await self._records.mark(Mark(hold, NonceState.SUBMITTED, tx_hash))

    async def mark_used(self, hold: Hold, tx_hash: TxHash | None = None) -> None:
        await self._records.mark(Mark(hold, NonceState.CONSUMED, tx_hash))

    async def mark_recyclable(self, hold: Hold) -> None:
        await self._records.mark(Mark(hold, NonceState.RELEASED))

    async def reclaim_expired(self, signer: Signer) -> int:
        return len(await self._records.reclaim(signer))

    async def status(self, signer: Signer) -> SignerStatus | None:
        return await self._records.status(signer)

    async def close(self) -> None:
        await self._records.drain()


def holds(signer: Signer, nonces: Sequence[int], token: UUID) -> list[Hold]:
    return [Hold(signer, nonce, token) for nonce in sorted(nonces)]


def _hold_arrays(wanted: Sequence[Hold]) -> tuple[list[int], list[str], list[int]]:
    return (
        [hold.signer.chain_id for hold in wanted],
        [hold.signer.address for hold in wanted],
        [hold.nonce for hold in wanted],
    )
