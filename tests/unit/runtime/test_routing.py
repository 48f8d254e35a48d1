"""Preferred owners: the same at every node, few moves when a node joins or leaves, and no endless offers."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from dataclasses import replace
from uuid import uuid4

from fencepost.application.membership import Member, Mode
from fencepost.domain.ids import Address, Signer
from fencepost.runtime.routing import PASS_OVER_S, Router, preferred

SIGNERS = [Signer(1, Address(f"0x{number:040x}")) for number in range(2_000)]
NAMES = ["north", "east", "south"]


def test_every_node_prefers_the_same_owner_in_any_order_of_the_list() -> None:
    for signer in SIGNERS[:50]:
        assert len({preferred(signer, names) for names in itertools.permutations(NAMES)}) == 1


def test_an_empty_list_has_no_preferred_owner() -> None:
    assert preferred(SIGNERS[0], []) is None


def test_signers_are_spread_evenly() -> None:
    counts = Counter(preferred(signer, NAMES) for signer in SIGNERS)
    assert all(0.8 < counts[name] / (len(SIGNERS) / 3) < 1.2 for name in NAMES), counts


def test_a_new_node_moves_only_its_own_signers() -> None:
    moved = [signer for signer in SIGNERS if preferred(signer, NAMES) != preferred(signer, [*NAMES, "west"])]
    assert {preferred(signer, [*NAMES, "west"]) for signer in moved} == {"west"}
    assert 0.2 < len(moved) / len(SIGNERS) < 0.3


def test_a_leaving_node_moves_only_its_own_signers() -> None:
    left = ["north", "south"]
    for signer in SIGNERS:
        before = preferred(signer, NAMES)
        assert before == "east" or preferred(signer, left) == before


def member(name: str, *, mode: Mode = "worker_queue", serves: str = "all") -> Member:
    return Member(name, uuid4(), mode, serves)


def build_router(*others: Member, mode: Mode = "worker_queue") -> tuple[Router, Signer]:
    """Return a router of `north`, and a signer that `south` is preferred for."""
    router = Router(member("north", mode=mode), grace_s=0.5)
    router.update(others)
    theirs = next(s for s in random.sample(SIGNERS, 500) if preferred(s, ["north", "south"]) == "south")
    return router, theirs


def test_a_preferred_owner_gets_a_grace_period_and_is_then_skipped_for_a_while() -> None:
    router, signer = build_router(member("south"))
    assert router.wait_s(signer, 10.0) == 0.5
    assert 0.0 < router.wait_s(signer, 10.3) < 0.21
    assert router.wait_s(signer, 10.6) == 0.0
    router.mark_held(signer)
    assert router.better_owner(signer, 11.0) is None, "it had its chance"
    assert router.better_owner(signer, 10.6 + PASS_OVER_S) is not None


def test_a_signer_that_is_free_again_much_later_is_offered_to_its_preferred_owner_again() -> None:
    router, signer = build_router(member("south"))
    assert router.wait_s(signer, 10.0) == 0.5
    assert router.wait_s(signer, 100.0) == 0.5


def test_a_node_acquires_its_own_signers_immediately() -> None:
    router, _ = build_router(member("south"))
    mine = next(s for s in SIGNERS if preferred(s, ["north", "south"]) == "north")
    assert router.wait_s(mine, 10.0) == 0.0
    assert router.better_owner(mine, 10.0) is None


def test_nodes_that_would_not_acquire_a_signer_are_not_preferred() -> None:
    for other in (member("south", mode="basic"), member("south", serves="something else")):
        router, signer = build_router(other)
        assert router.better_owner(signer, 0.0) is None


def test_in_basic_mode_every_node_acquires_every_signer() -> None:
    router, signer = build_router(member("south"), mode="basic")
    assert router.wait_s(signer, 10.0) == 0.0
    assert router.better_owner(signer, 10.0) is None


def test_an_unchanged_list_changes_nothing() -> None:
    south = member("south")
    router, _ = build_router(south)
    assert not router.update([south])
    assert router.update([])
    assert router.update([member("south")]), "another process of the same name is news"


def test_a_node_that_cannot_read_the_chain_is_not_preferred() -> None:
    south = member("south")
    router, signer = build_router(south)
    assert router.better_owner(signer, 0.0) == south
    assert router.is_served_by_others(signer.chain_id)
    router.update([replace(south, silent_chains=frozenset({signer.chain_id}))])
    assert router.better_owner(signer, 0.0) is None
    assert not router.is_served_by_others(signer.chain_id)


def test_a_node_in_basic_mode_can_serve_a_chain() -> None:
    router, signer = build_router(member("south", mode="basic"), mode="basic")
    assert router.is_served_by_others(signer.chain_id)
