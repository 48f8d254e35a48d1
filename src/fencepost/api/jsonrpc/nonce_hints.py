"""Remember the transaction counts returned to clients, to recognize a nonce that a client filled in automatically.

Fencepost assigns nonces, so it can't use a `nonce` in `eth_sendTransaction`. Most clients omit it. Some (cast) read the
account's count and send it as the nonce, without any intention. But a nonce may also mean "replace that transaction" or
"send this one again", and ignoring that would send twice. So each returned count allows the same caller to send it once
as a nonce within `HINT_TTL_S`; every other nonce is rejected. The hints are in the memory of this process: behind a load
balancer, a client that fills in nonces must stay with one node.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from fencepost.domain.ids import Signer

HINT_TTL_S = 15.0
MAX_HINTS = 20_000

_Hint = tuple[str | None, Signer, int]


@dataclass(slots=True)
class NonceHints:
    clock: Callable[[], float] = time.monotonic
    _until_s: OrderedDict[_Hint, deque[float]] = field(default_factory=OrderedDict)
    _size: int = 0

    def add(self, caller: str | None, signer: Signer, nonce: int) -> None:
        hint = (caller, signer, nonce)
        self._until_s.setdefault(hint, deque()).append(self.clock() + HINT_TTL_S)
        self._until_s.move_to_end(hint)
        self._size += 1
        while self._size > MAX_HINTS:
            _, forgotten = self._until_s.popitem(last=False)
            self._size -= len(forgotten)

    def use(self, caller: str | None, signer: Signer, nonce: int) -> bool:
        """Use up a hint; return whether this caller had an unexpired one for this nonce."""
        hint, now_s = (caller, signer, nonce), self.clock()
        ends_s = self._until_s.pop(hint, deque())
        is_good = False
        while ends_s and not is_good:
            self._size -= 1
            is_good = ends_s.popleft() > now_s
        if ends_s:
            self._until_s[hint] = ends_s
        return is_good
