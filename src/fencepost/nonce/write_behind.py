"""Copy nonce states from Redis to PostgreSQL in batches, for `redis_full`.

Redis itself lists the states that are not copied yet, so any process can copy the states that another one created. A state
is removed from that list only after PostgreSQL has it, and only if it has not changed since; otherwise it is copied again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from fencepost.adapters.postgres.pool import Pool
from fencepost.adapters.postgres.queries import sql
from fencepost.domain.ids import Signer, TxHash
from fencepost.nonce import redis_scripts
from fencepost.nonce.port import MAX_NONCES_PER_CALL, NonceSlot, NonceState
from fencepost.nonce.redis_client import RedisClient

_MAX_PAGES = 100

# chain, signer, nonce, state, token, hash, seconds left, revision: the parameters of `nonce_write_behind`.
_Row = tuple[int, str, int, str, str | None, str | None, float, int]


@dataclass(frozen=True, slots=True)
class RedisSlot:
    """The state of a nonce in Redis."""

    revision: int
    slot: NonceSlot
    ends_ms: int

    @classmethod
    def parse(cls, text: str) -> RedisSlot:
        revision, state, token, ends_ms, tx_hash = text.split("|")
        return cls(
            revision=int(revision),
            slot=NonceSlot(
                NonceState(state), UUID(token) if token else None, TxHash(tx_hash) if tx_hash else None
            ),
            ends_ms=int(ends_ms),
        )


class WriteBehind:
    def __init__(self, pool: Pool, redis: RedisClient) -> None:
        self._pool = pool
        self._redis = redis
        self.rejected = 0  # states that PostgreSQL did not store: another holder has the nonce

    async def flush(self, signers: Sequence[Signer]) -> int:
        """Copy the states that are due now, in pages, and return their number."""
        written, pending = 0, list(signers)
        for _ in range(_MAX_PAGES):
            if not pending:
                break
            picked = await self._redis.pipeline(
                [redis_scripts.PICK.call(signer, MAX_NONCES_PER_CALL) for signer in pending]
            )
            work = [(signer, text) for signer, text in zip(pending, picked, strict=True) if " " in text]
            if not work:
                break
            pages = [_rows(signer, text) for signer, text in work]
            await self._write([row for page in pages for row in page])
            written += sum(map(len, pages))
            await self._redis.pipeline([redis_scripts.SETTLE.call(signer, text) for signer, text in work])
            # States that change meanwhile wait for the next flush: copying them now would write row by row.
            full = [len(page) >= MAX_NONCES_PER_CALL for page in pages]
            pending = [signer for (signer, _), more in zip(work, full, strict=True) if more]
        return written

    async def _write(self, rows: Sequence[_Row]) -> None:
        if rows:
            stored = await self._pool.fetch(sql("nonce_write_behind"), *zip(*rows, strict=True))
            self.rejected += len(rows) - len(stored)


def _rows(signer: Signer, picked: str) -> list[_Row]:
    """Parse the result of the PICK script; skip slots that another process has copied and removed."""
    words = picked.split(" ")
    now_ms, chain_id, address = int(words[0]), signer.chain_id, signer.address
    rows: list[_Row] = []
    for nonce, text in zip(words[1::2], words[2::2], strict=True):
        if text != "-":
            revision, state, token, ends_ms, tx_hash = text.split("|")
            remaining_s = (int(ends_ms) - now_ms) / 1000
            rows.append(
                (
                    chain_id,
                    address,
                    int(nonce),
                    state,
                    token or None,
                    tx_hash or None,
                    remaining_s,
                    int(revision),
                )
            )
    return rows
