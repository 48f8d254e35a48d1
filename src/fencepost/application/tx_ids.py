"""Names for transactions: UUIDs of version 7 (RFC 9562), which rise with time.

Rows that are asked for together lie together in the indexes over their ids, however many there are. Within a process
each is larger than the one before, even if the clock goes back; between processes 62 random bits keep them apart.
"""

from __future__ import annotations

import os
import struct
import time
from uuid import UUID, SafeUUID

_VERSION_AND_VARIANT = (7 << 76) | (2 << 62)
_PARTS_OF_A_MS_BITS = 12
_DRAWN_AT_ONCE = 256  # asking the kernel for each costs more than all the rest
_new, _set = object.__new__, object.__setattr__  # a UUID does not let itself be changed
_UNKNOWN = SafeUUID.unknown
_DRAW = struct.Struct(f"{_DRAWN_AT_ONCE}Q")


class TxIds:
    """Time in steps of a millisecond's 4,096th part: a step is used once, and the next one if it was used before."""

    def __init__(self) -> None:
        self._last_step = 0
        self._drawn: list[int] = []  # 64 random bits each
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._drawn.clear)  # a child must not draw the same

    def next(self) -> UUID:
        step = (time.time_ns() << _PARTS_OF_A_MS_BITS) // 1_000_000
        if step <= self._last_step:
            step = self._last_step + 1
        self._last_step = step
        if not self._drawn:
            self._drawn.extend(_DRAW.unpack(os.urandom(_DRAW.size)))
        ms, part = step >> _PARTS_OF_A_MS_BITS, step & 0xFFF
        # `UUID(int=…)` takes three times as long to find out which of its arguments was given.
        made = _new(UUID)
        _set(made, "int", (ms << 80) | (part << 64) | _VERSION_AND_VARIANT | (self._drawn.pop() >> 2))
        _set(made, "is_safe", _UNKNOWN)
        return made


new_tx_id = TxIds().next
