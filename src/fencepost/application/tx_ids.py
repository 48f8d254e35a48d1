"""Names for transactions: UUIDs of version 7 (RFC 9562), which rise with time.

Rows that are asked for together lie together in the indexes over their ids, however many there are. Within a process
each is larger than the one before, even if the clock goes back; between processes 62 random bits keep them apart.
"""

from __future__ import annotations

import secrets
import time
from uuid import UUID

_VERSION, _VARIANT = 7 << 76, 2 << 62
_PARTS_OF_A_MS = 1 << 12


class TxIds:
    """Time in steps of a millisecond's 4,096th part: a step is used once, and the next one if it was used before."""

    def __init__(self) -> None:
        self._last_step = 0

    def next(self) -> UUID:
        self._last_step = max(self._last_step + 1, time.time_ns() * _PARTS_OF_A_MS // 1_000_000)
        ms, part = divmod(self._last_step, _PARTS_OF_A_MS)
        return UUID(int=(ms << 80) | _VERSION | (part << 64) | _VARIANT | secrets.randbits(62))


new_tx_id = TxIds().next
