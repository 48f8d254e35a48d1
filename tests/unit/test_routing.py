"""Preferred owners: the same at every node, few moves when a node comes or goes, and no endless offers."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from uuid import uuid4

from fencepost.application.membership import Member, Mode
from fencepost.domain.ids import Address, Signer
from fencepost.runtime.routing import PASSED_OVER_S, Router, preferred

SIGNERS = [Signer(1, Address(f"0x{number:040x}")) for number in range(2_000)]
NAMES = ["north", "east", "south"]


def test_every_node_prefers_the_same_owner_whatever_the_order_of_the_list() -> None:
    for signer in SIGNERS[:50]:
        assert len({preferred(signer, names) for names in itertools.permutations(NAMES)}) == 1


def test_nobody_is_preferred_where_nobody_is() -> None:
    assert preferred(SIGNERS[0], []) is None


def test_signers_are_spread_evenly() -> None:
    counts = Counter(preferred(signer, NAMES) for signer in SIGNERS)
    assert all(0.8 < counts[name] / (len(SIGNERS) / 3) < 1.2 for name in NAMES), counts


def test_only_what_the_new_node_gets_moves() -> None:
    moved = [signer for signer in SIGNERS if preferred(signer, NAMES) != preferred(signer, [*NAMES, "west"])]
    assert {preferred(signer, [*NAMES, "west"]) for signer in moved} == {"west"}
    assert 0.2 < len(moved) / len(SIGNERS) < 0.3


def test_when_a_node_goes_only_its_signers_move() -> None:
    left = ["north", "south"]
    for signer in SIGNERS:
        before = preferred(signer, NAMES)
        assert before == "east" or preferred(signer, left) == before


def member(name: str, *, mode: Mode = "worker_queue", serves: str = "all") -> Member:
    return Member(name, uuid4(), mode, serves)


def routed(*others: Member, mode: Mode = "worker_queue") -> tuple[Router, Signer]:
    """A router of `north`, and a signer that `south` is preferred for."""
    router = Router(member("north", mode=mode), grace_s=0.5)
    router.update(others)
    theirs = next(s for s in random.sample(SIGNERS, 500) if preferred(s, ["north", "south"]) == "south")
    return router, theirs


def test_a_better_owner_is_given_a_grace_and_then_passed_over_for_a_while() -> None:
    router, signer = routed(member("south"))
    assert router.wait_s(signer, 10.0) == 0.5
    assert 0.0 < router.wait_s(signer, 10.3) < 0.21
    assert router.wait_s(signer, 10.6) == 0.0
    router.taken(signer)
    assert router.better_owner(signer, 11.0) is None, "it had its chance"
    assert router.better_owner(signer, 10.6 + PASSED_OVER_S) is not None


def test_a_signer_that_is_free_again_much_later_is_left_to_its_owner_anew() -> None:
    router, signer = routed(member("south"))
    assert router.wait_s(signer, 10.0) == 0.5
    assert router.wait_s(signer, 100.0) == 0.5


def test_ones_own_signer_is_taken_at_once() -> None:
    router, _ = routed(member("south"))
    mine = next(s for s in SIGNERS if preferred(s, ["north", "south"]) == "north")
    assert router.wait_s(mine, 10.0) == 0.0
    assert router.better_owner(mine, 10.0) is None


def test_nodes_that_would_not_take_it_are_no_better_owners() -> None:
    for other in (member("south", mode="basic"), member("south", serves="something else")):
        router, signer = routed(other)
        assert router.better_owner(signer, 0.0) is None


def test_in_basic_mode_everything_is_everybodys() -> None:
    router, signer = routed(member("south"), mode="basic")
    assert router.wait_s(signer, 10.0) == 0.0
    assert router.better_owner(signer, 10.0) is None


def test_a_list_that_says_the_same_changes_nothing() -> None:
    south = member("south")
    router, _ = routed(south)
    assert not router.update([south])
    assert router.update([])
    assert router.update([member("south")]), "another process of the same name is news"
