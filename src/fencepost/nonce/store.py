"""Store the nonces of all schemes as rows in PostgreSQL: holds, states and cursors.

In every scheme the primary key (chain, signer, nonce) finally decides. Marks of many callers share a statement.
`chain_nonce` returns the nonce that the chain expects next, pending transactions included; it is called when a signer is
used for the first time and whenever holds are reclaimed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID, uuid4

from fencepost.adapters.postgres.database import Connection
from fencepost.adapters.postgres.group_commit import GroupCommit
from fencepost.adapters.postgres.pool import Pool
from fencepost.adapters.postgres.queries import sql
from fencepost.domain.ids import Address, Signer, TxHash
from fencepost.errors import FencepostError, NonceUnavailable, SignerUsedOtherwise
from fencepost.nonce.port import Hold, Mark, NonceSlot, NonceState, SignerStatus, is_applied

ChainNonce = Callable[[Signer], Awaitable[int]]

MAX_RECLAIMED = 1000
MAX_HEALED = 10_000
MAX_MARKS_PER_COMMIT = 500
PARALLEL_MARKS = 2
_TRIES = 5


class NonceStore:
    def __init__(self, pool: Pool, *, chain_nonce: ChainNonce, heal_after_s: float = 60.0) -> None:
        self.pool = pool
        self.chain_nonce = chain_nonce
        self._heal_after_s = heal_after_s
        self._nonce_only: set[Signer] = set()  # signers that the nonce service uses: that never changes
        self._marks = GroupCommit(self._mark_batch, max_items=MAX_MARKS_PER_COMMIT, parallel=PARALLEL_MARKS)

    async def drain(self) -> None:
        await self._marks.drain()

    async def open(self, signer: Signer) -> None:
        """Make the signer nonce-only and start its cursor at the chain's nonce.

        Raises `SignerUsedOtherwise` if the core uses the signer.
        """
        if signer in self._nonce_only:
            return
        key = signer.chain_id, signer.address
        await self.pool.execute(sql("nonce_register"), *key)
        if await self.pool.fetchval(sql("signer_used_by"), *key) != "nonce":
            raise SignerUsedOtherwise(
                f"the core manages {signer.address} and allocates its nonces: submit its transactions to Fencepost"
            )
        if await self.pool.fetchval(sql("nonce_known_next"), *key) is None:
            await self.pool.execute(sql("nonce_cursor_open"), *key, await self.chain_nonce(signer))
        self._nonce_only.add(signer)

    async def allocate(self, signer: Signer, *, count: int, hold_for_s: float, floor: int = 0) -> list[Hold]:
        """Allocate under the lock of the signer's row: one caller at a time per signer."""
        await self.open(signer)
        async with self.pool.acquire() as connection, connection.transaction():
            await connection.execute(sql("nonce_cursor_lock"), signer.chain_id, signer.address)
            return await self.allocate_locked(
                connection, signer, count=count, hold_for_s=hold_for_s, floor=floor
            )

    async def allocate_locked(
        self, connection: Connection, signer: Signer, *, count: int, hold_for_s: float, floor: int = 0
    ) -> list[Hold]:
        """Allocate in a transaction that already holds the lock of the signer's row."""
        token = uuid4()
        nonces: list[int] = []
        for _ in range(_TRIES):  # more than one only if another process stores nonces without the lock
            wanted = count - len(nonces)
            got = await connection.fetch(
                sql("nonce_take"), signer.chain_id, signer.address, wanted, token, hold_for_s, floor
            )
            nonces += [row["nonce"] for row in got]
            if len(nonces) == count:
                return holds(signer, nonces, token)
        raise NonceUnavailable(
            f"other processes store the nonces of {signer.address} without its lock: retry"
        )

    async def allocate_released(self, signer: Signer, *, count: int, hold_for_s: float) -> list[Hold]:
        token = uuid4()
        got = await self.pool.fetch(
            sql("nonce_take_gaps"), signer.chain_id, signer.address, count, token, hold_for_s
        )
        return holds(signer, [row["nonce"] for row in got], token)

    async def with_gaps(self, signers: Sequence[Signer]) -> set[Signer]:
        rows = await self.pool.fetch(
            sql("nonce_has_gaps"), [s.chain_id for s in signers], [s.address for s in signers]
        )
        return {Signer(row["chain_id"], Address(row["signer"])) for row in rows}

    async def known_next(self, signer: Signer) -> int:
        return int(await self.pool.fetchval(sql("nonce_known_next"), signer.chain_id, signer.address))

    # ---- marks

    async def mark(self, mark: Mark) -> None:
        outcome = await self._marks.submit(mark)
        if outcome is not None:
            raise outcome

    async def release(self, allocated: Sequence[Hold]) -> None:
        """Release holds that the caller will not receive, in one statement; ended holds do not change."""
        await self._mark_batch([Mark(hold, NonceState.RELEASED) for hold in allocated])

    async def _mark_batch(self, marks: Sequence[Mark]) -> Sequence[FencepostError | None]:
        outcomes: dict[int, FencepostError | None] = {}
        pending = list(enumerate(marks))
        for _ in range(_TRIES):  # two marks of one nonce in a batch are applied one after the other
            applied = await self._apply([mark for _, mark in pending])
            outcomes |= {pending[position][0]: None for position in applied}
            pending = [entry for position, entry in enumerate(pending) if position not in applied]
            if not pending:
                break
            slots = await self.load_slots([mark.hold for _, mark in pending])
            not_applied = []
            for (index, mark), slot in zip(pending, slots, strict=True):
                try:
                    if is_applied(mark, slot):
                        outcomes[index] = None
                    else:
                        not_applied.append((index, mark))
                except FencepostError as error:
                    outcomes[index] = error
            pending = not_applied
            if not pending:
                break
        for index, _ in pending:
            outcomes[index] = NonceUnavailable("other callers are changing the nonce: retry")
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

    async def load_slots(self, wanted: Sequence[Hold]) -> list[NonceSlot | None]:
        rows = await self.pool.fetch(sql("nonce_slots"), *_hold_arrays(wanted))
        slots: list[NonceSlot | None] = [None] * len(wanted)
        for row in rows:
            tx_hash = TxHash(row["tx_hash"]) if row["tx_hash"] else None
            slots[row["position"] - 1] = NonceSlot(NonceState(row["state"]), row["hold"], tx_hash)
        return slots

    # ---- expiry

    async def reclaim(self, signer: Signer) -> list[int]:
        """Release expired holds and nonces that were issued but never stored; return the released nonces."""
        await self.open(signer)
        floor = await self.chain_nonce(signer)
        key = signer.chain_id, signer.address
        released = await self.pool.fetch(sql("nonce_reclaim"), *key, floor, MAX_RECLAIMED)
        healed = await self.pool.fetch(sql("nonce_heal"), *key, floor, self._heal_after_s, MAX_HEALED)
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


class StoredMarks:
    """Marks for the schemes that keep every state in PostgreSQL."""

    def __init__(self, store: NonceStore) -> None:
        self._store = store

    async def mark_submitted(self, hold: Hold, tx_hash: TxHash) -> None:
        await self._store.mark(Mark(hold, NonceState.SUBMITTED, tx_hash))

    async def mark_used(self, hold: Hold, tx_hash: TxHash | None = None) -> None:
        await self._store.mark(Mark(hold, NonceState.CONSUMED, tx_hash))

    async def mark_recyclable(self, hold: Hold) -> None:
        await self._store.mark(Mark(hold, NonceState.RELEASED))

    async def reclaim_expired(self, signer: Signer) -> int:
        return len(await self._store.reclaim(signer))

    async def status(self, signer: Signer) -> SignerStatus | None:
        return await self._store.status(signer)

    async def close(self) -> None:
        await self._store.drain()


def holds(signer: Signer, nonces: Sequence[int], token: UUID) -> list[Hold]:
    return [Hold(signer, nonce, token) for nonce in sorted(nonces)]


def _hold_arrays(wanted: Sequence[Hold]) -> tuple[list[int], list[str], list[int]]:
    return (
        [hold.signer.chain_id for hold in wanted],
        [hold.signer.address for hold in wanted],
        [hold.nonce for hold in wanted],
    )
