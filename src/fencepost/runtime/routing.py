"""Who should work for a signer. A wish, never a right: the lease decides who may.

In worker-queue mode every node computes the same preferred owner from the same list of live nodes (rendezvous hashing:
when a node comes or goes, only its own signers move). The preferred owner takes a free signer at once; the others leave
it alone for a grace, and take it when it is still free then. Whoever holds a signer that another live node is preferred
for hands it over. A node that was offered a signer and did not take it is not offered it again for a while, so that a
node that is alive but can't work costs one round, not an endless one. In basic mode everything is everybody's.

Only nodes in worker-queue mode that hold the same keys for the same chains count: the others would not take it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from uuid import UUID

from fencepost.application.membership import Member
from fencepost.domain.ids import Signer

# A node that did not take what was left to it is passed over for this long.
PASSED_OVER_S = 30.0

MOST_REMEMBERED = 10_000

# A node that knows of no other.
ALONE = Member(name="", incarnation=UUID(int=0), mode="basic", serves="")


def preferred(signer: Signer, names: Iterable[str]) -> str | None:
    """The name with the highest draw for this signer: the same at every node, whatever the order of the names."""
    return max(names, key=lambda name: (_draw(signer, name), name), default=None)


def _draw(signer: Signer, name: str) -> bytes:
    return blake2b(f"{signer} {name}".encode(), digest_size=8).digest()


@dataclass(slots=True)
class _Free:
    since_s: float
    seen_s: float


@dataclass(slots=True)
class Router:
    me: Member
    grace_s: float = 0.0
    _by_name: dict[str, Member] = field(default_factory=dict)
    _free: dict[Signer, _Free] = field(default_factory=dict)
    _passed_over: dict[tuple[Signer, UUID], float] = field(default_factory=dict)  # until when

    @property
    def is_active(self) -> bool:
        return self.me.mode == "worker_queue"

    def update(self, members: Sequence[Member]) -> bool:
        """The live nodes; whether that changes anything."""
        by_name = {
            member.name: member
            for member in members
            if member.mode == "worker_queue" and member.serves == self.me.serves
        }
        by_name[self.me.name] = self.me
        changed = by_name != self._by_name
        self._by_name = by_name
        return changed

    def better_owner(self, signer: Signer, now_s: float) -> Member | None:
        """Another node that should have this signer, and has not shown lately that it can't."""
        if not self.is_active:
            return None
        name = preferred(signer, self._by_name)
        if name is None or name == self.me.name:
            return None
        owner = self._by_name[name]
        return owner if self._passed_over.get((signer, owner.incarnation), 0.0) <= now_s else None

    def wait_s(self, signer: Signer, now_s: float) -> float:
        """How long to leave a free signer to somebody else; 0 takes it now."""
        owner = self.better_owner(signer, now_s)
        if owner is None:
            self._free.pop(signer, None)
            return 0.0
        free = self._free.get(signer)
        if free is None or now_s - free.seen_s > 2 * self.grace_s + 2.0:  # that was another time
            if len(self._free) >= MOST_REMEMBERED:
                self._free.clear()
            free = self._free[signer] = _Free(now_s, now_s)
        free.seen_s = now_s
        left_s = free.since_s + self.grace_s - now_s
        if left_s > 0:
            return left_s
        self._pass_over(signer, owner, now_s)
        return 0.0

    def taken(self, signer: Signer) -> None:
        """It is not free any more."""
        self._free.pop(signer, None)

    def _pass_over(self, signer: Signer, owner: Member, now_s: float) -> None:
        if len(self._passed_over) >= MOST_REMEMBERED:
            self._passed_over.clear()
        self._passed_over[signer, owner.incarnation] = now_s + PASSED_OVER_S
