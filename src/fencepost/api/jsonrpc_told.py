"""Which nonces clients were told, so that one they fill in by themselves can be told from one they chose.

Nonces are ours to give, so a `nonce` in `eth_sendTransaction` can't be obeyed. Most clients leave it out; some (cast)
ask for the account's count and put that in, and then mean nothing by it. But a nonce may also say "instead of that
transaction" or "this one again", and who ignores that sends twice. So each count that a caller is told lets that same
caller name it in one send soon after; every other nonce is refused. It lives in this process: behind a balancer, a
client that fills in nonces must stay with one node.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from fencepost.domain.ids import Signer

GOOD_FOR_S = 15.0
MOST_TOLD = 20_000

_Told = tuple[str | None, Signer, int]


@dataclass(slots=True)
class Told:
    clock: Callable[[], float] = time.monotonic
    _until_s: OrderedDict[_Told, deque[float]] = field(default_factory=OrderedDict)
    _size: int = 0

    def tell(self, caller: str | None, signer: Signer, nonce: int) -> None:
        what = (caller, signer, nonce)
        self._until_s.setdefault(what, deque()).append(self.clock() + GOOD_FOR_S)
        self._until_s.move_to_end(what)
        self._size += 1
        while self._size > MOST_TOLD:
            _, forgotten = self._until_s.popitem(last=False)
            self._size -= len(forgotten)

    def use(self, caller: str | None, signer: Signer, nonce: int) -> bool:
        """Whether the caller was told this nonce a moment ago, and had not used that yet."""
        what, now_s = (caller, signer, nonce), self.clock()
        ends_s = self._until_s.pop(what, deque())
        is_good = False
        while ends_s and not is_good:
            self._size -= 1
            is_good = ends_s.popleft() > now_s
        if ends_s:
            self._until_s[what] = ends_s
        return is_good
