"""Decide which node should hold a signer's lease. This is a preference: the lease alone gives the right to act.

In worker-queue mode every node computes the same preferred node from the same list of live nodes (rendezvous hashing:
when a node joins or leaves, only its own signers move). The preferred node acquires a free signer at once; the others
wait for a grace period, and acquire it if it is still free. A lease holder hands a signer over when another live node is
preferred for it. A preferred node that did not acquire a free signer within the grace period is passed over for a while:
a node that is alive but cannot work costs one grace period, not an endless wait. In basic mode there is no preference.

A node whose endpoints of a chain are silent is not preferred for that chain while another node can read it.

Only nodes in worker-queue mode with the same keys for the same chains count: the others would not acquire the signer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from uuid import UUID

from fencepost.application.membership import Member
from fencepost.domain.ids import Signer

# A preferred node that did not acquire a free signer is passed over for this long.
PASS_OVER_S = 30.0

MAX_REMEMBERED = 10_000

# The member of a node without a cluster.
ALONE = Member(name="", incarnation=UUID(int=0), mode="basic", serves="")


def preferred(signer: Signer, names: Iterable[str]) -> str | None:
    """Return the name with the highest hash for this signer: the same on every node, in any order of the names."""
    return max(names, key=lambda name: (_hash(signer, name), name), default=None)


def _hash(signer: Signer, name: str) -> bytes:
    return blake2b(f"{signer} {name}".encode(), digest_size=8).digest()


@dataclass(slots=True)
class _Free:
    since_s: float
    seen_s: float


@dataclass(slots=True)
class Router:
    """Compute the preferred node of each signer, and how long this node waits for it."""

    me: Member
    grace_s: float = 0.0
    _others: tuple[Member, ...] = ()  # live nodes with the same keys and chains, in either mode
    _with_other_keys: tuple[
        Member, ...
    ] = ()  # live nodes whose keys or chains differ, so they may share a signer
    _by_name: dict[str, Member] = field(default_factory=dict)
    _free: dict[Signer, _Free] = field(default_factory=dict)
    _passed_over: dict[tuple[Signer, UUID], float] = field(default_factory=dict)  # until when

    @property
    def is_active(self) -> bool:
        """Return whether this node is in worker-queue mode."""
        return self.me.mode == "worker_queue"

    def update(self, members: Sequence[Member]) -> bool:
        """Set the live nodes, and return whether the routes changed."""
        by_name = {
            member.name: member
            for member in members
            if member.mode == "worker_queue" and member.serves == self.me.serves
        }
        by_name[self.me.name] = self.me
        self._others = tuple(
            member
            for member in members
            if member.serves == self.me.serves and member.incarnation != self.me.incarnation
        )
        self._with_other_keys = tuple(member for member in members if member.serves != self.me.serves)
        changed = by_name != self._by_name
        self._by_name = by_name
        return changed

    def better_owner(self, signer: Signer, now_s: float) -> Member | None:
        """Return another node that is preferred for this signer and not passed over, or None."""
        if not self.is_active:
            return None
        able = [name for name, member in self._by_name.items() if signer.chain_id not in member.silent_chains]
        name = preferred(signer, able or self._by_name)
        if name is None or name == self.me.name:
            return None
        owner = self._by_name[name]
        return owner if self._passed_over.get((signer, owner.incarnation), 0.0) <= now_s else None

    def is_served_by_others(self, chain_id: int) -> bool:
        """Return whether another live node has the same keys, and endpoints of this chain that answer."""
        return any(chain_id not in member.silent_chains for member in self._others)

    def may_be_served_by_others(self, chain_id: int) -> bool:
        """Return whether a live node that may have the same keys has endpoints of this chain that answer."""
        return any(chain_id not in member.silent_chains for member in (*self._others, *self._with_other_keys))

    def wait_s(self, signer: Signer, now_s: float) -> float:
        """Return how long to leave a free signer to its preferred node; 0: acquire it now."""
        owner = self.better_owner(signer, now_s)
        if owner is None:
            self._free.pop(signer, None)
            return 0.0
        free = self._free.get(signer)
        if free is None or now_s - free.seen_s > 2 * self.grace_s + 2.0:  # it was held in between
            if len(self._free) >= MAX_REMEMBERED:
                self._free.clear()
            free = self._free[signer] = _Free(now_s, now_s)
        free.seen_s = now_s
        left_s = free.since_s + self.grace_s - now_s
        if left_s > 0:
            return left_s
        self._pass_over(signer, owner, now_s)
        return 0.0

    def mark_held(self, signer: Signer) -> None:
        """Record that a node holds the signer, so that the next grace period starts anew."""
        self._free.pop(signer, None)

    def _pass_over(self, signer: Signer, owner: Member, now_s: float) -> None:
        if len(self._passed_over) >= MAX_REMEMBERED:
            self._passed_over.clear()
        self._passed_over[signer, owner.incarnation] = now_s + PASS_OVER_S
