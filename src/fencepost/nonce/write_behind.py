"""What Redis has and PostgreSQL does not, written down in batches, for `redis_full`.

Which states wait stands in Redis itself: any process writes them down, whoever made them. A state is settled in Redis
only after PostgreSQL has it, and only if it has not changed since; what was not settled is written again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from fencepost.adapters.postgres.pool import Pool
from fencepost.adapters.postgres.queries import sql
from fencepost.domain.ids import Signer, TxHash
from fencepost.nonce import lua
from fencepost.nonce.port import MOST_AT_ONCE, NonceState, Slot
from fencepost.nonce.redis_link import RedisLink

_PAGES_MAX = 100

# chain, signer, nonce, state, token, hash, seconds left, revision: as the statement wants them.
_Row = tuple[int, str, int, str, str | None, str | None, float, int]


@dataclass(frozen=True, slots=True)
class StoredSlot:
    """A slot as Redis has it."""

    revision: int
    slot: Slot
    ends_ms: int

    @classmethod
    def parse(cls, text: str) -> StoredSlot:
        revision, state, token, ends_ms, tx_hash = text.split("|")
        return cls(
            revision=int(revision),
            slot=Slot(
                NonceState(state), UUID(token) if token else None, TxHash(tx_hash) if tx_hash else None
            ),
            ends_ms=int(ends_ms),
        )


class WriteBehind:
    def __init__(self, pool: Pool, link: RedisLink) -> None:
        self._pool = pool
        self._link = link
        self.refused = 0  # states that PostgreSQL did not take: somebody else had the nonce

    async def flush(self, signers: Sequence[Signer]) -> int:
        """Write down what waits now, in pages; how much that was."""
        written, left = 0, list(signers)
        for _ in range(_PAGES_MAX):
            if not left:
                break
            picked = await self._link.pipeline([lua.PICK.call(signer, MOST_AT_ONCE) for signer in left])
            work = [(signer, text) for signer, text in zip(left, picked, strict=True) if " " in text]
            if not work:
                break
            pages = [_rows(signer, text) for signer, text in work]
            await self._write([row for page in pages for row in page])
            written += sum(map(len, pages))
            await self._link.pipeline([lua.SETTLE.call(signer, text) for signer, text in work])
            # What came meanwhile waits for the next turn: chasing it would write row by row.
            full = [len(page) >= MOST_AT_ONCE for page in pages]
            left = [signer for (signer, _), more in zip(work, full, strict=True) if more]
        return written

    async def _write(self, rows: Sequence[_Row]) -> None:
        if rows:
            taken = await self._pool.fetch(sql("nonce_write_behind"), *zip(*rows, strict=True))
            self.refused += len(rows) - len(taken)


def _rows(signer: Signer, picked: str) -> list[_Row]:
    """A slot that is gone was written down by somebody else and forgotten."""
    words = picked.split(" ")
    now_ms, chain_id, address = int(words[0]), signer.chain_id, signer.address
    rows: list[_Row] = []
    for nonce, text in zip(words[1::2], words[2::2], strict=True):
        if text != "-":
            revision, state, token, ends_ms, tx_hash = text.split("|")
            left_s = (int(ends_ms) - now_ms) / 1000
            rows.append(
                (chain_id, address, int(nonce), state, token or None, tx_hash or None, left_s, int(revision))
            )
    return rows
