"""Passes between nodes: good once, for a while, at one process, for one call; whatever is changed, they are refused."""

from __future__ import annotations

from dataclasses import dataclass, replace
from uuid import UUID, uuid4

import pytest

from fencepost.application.forwarding import GOOD_FOR_S, Asked, Pass, Passes, PassRefused
from fencepost.errors import SettingError
from fencepost.settings import load
from fencepost.wiring_nodes import advertised_url

SECRET = "s" * 32
OWNER = UUID(int=7)
ASKED = Asked("POST", "/api/v1/tx?wait=mined", b'{"signer":"0x1"}', {"idempotency-key": "order-7"})


@dataclass(slots=True)
class Clock:
    now_s: float = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now_s


def made(passes: Passes, *, hops: int = 1, caller: str | None = "00ff00ff00ff00ff") -> str:
    return passes.make(ASKED, to=OWNER, caller=caller, hops=hops)


@pytest.mark.parametrize("caller", ["00ff00ff00ff00ff", None])
def test_a_pass_tells_what_it_was_made_with(caller: str | None) -> None:
    token = made(Passes(SECRET), hops=2, caller=caller)
    assert Passes(SECRET).read(token) == Pass(hops=2, caller=caller, to=OWNER, digest=ASKED.digest)


def test_a_pass_is_good_once() -> None:
    owner = Passes(SECRET)
    token = made(Passes(SECRET))
    owner.read(token)
    with pytest.raises(PassRefused, match="used before"):
        owner.read(token)
    owner.read(made(Passes(SECRET)))


def test_a_pass_of_another_secret_is_refused() -> None:
    with pytest.raises(PassRefused, match="seal"):
        Passes(SECRET).read(made(Passes("t" * 32)))


def test_no_part_of_a_pass_can_be_changed() -> None:
    passes = Passes(SECRET)
    parts = made(passes).split(".")
    others = ["2", "2", "-", uuid4().hex, str(int(parts[4]) + 1), uuid4().hex, "0" * 64, "0" * 64]
    for place, other in enumerate(others):
        changed = ".".join([*parts[:place], other, *parts[place + 1 :]])
        with pytest.raises(PassRefused):
            passes.read(changed)
    passes.read(".".join(parts))


@pytest.mark.parametrize("text", ["", "1", "fp_00_secret", "1.1.-.x.1.x.x.x", "1" * 100_000])
def test_what_is_no_pass_is_refused(text: str) -> None:
    with pytest.raises(PassRefused, match="form"):
        Passes(SECRET).read(text)


@pytest.mark.parametrize(
    ("apart_s", "is_good"),
    [(GOOD_FOR_S - 1, True), (1 - GOOD_FOR_S, True), (GOOD_FOR_S + 1, False), (-GOOD_FOR_S - 1, False)],
)
def test_a_pass_is_good_for_a_while(apart_s: float, *, is_good: bool) -> None:
    clock = Clock()
    token = made(Passes(SECRET, clock))
    clock.now_s += apart_s
    owner = Passes(SECRET, clock)
    if is_good:
        assert owner.read(token).to == OWNER
    else:
        with pytest.raises(PassRefused, match="clocks"):
            owner.read(token)


def test_what_is_remembered_is_bounded_and_forgotten_in_time() -> None:
    clock = Clock()
    passes = Passes(SECRET, clock, most_remembered=2)
    first = made(passes)
    passes.read(first)
    passes.read(made(passes))
    with pytest.raises(PassRefused, match="remembered"):
        passes.read(made(passes))
    clock.now_s += GOOD_FOR_S + 0.1
    passes.read(made(passes))
    with pytest.raises(PassRefused, match="clocks"):  # forgotten, and too old by then
        passes.read(first)


def test_the_secret_does_not_show() -> None:
    assert SECRET not in repr(Passes(SECRET))


def test_every_part_of_a_call_is_in_its_digest() -> None:
    headers = {"idempotency-key": "order-7", "prefer": ""}
    others = [
        replace(ASKED, method="PUT"),
        replace(ASKED, target="/api/v1/tx"),
        replace(ASKED, body=ASKED.body + b" "),
        replace(ASKED, headers={}),
        replace(ASKED, headers={"idempotency-key": "order-8"}),
        replace(ASKED, headers=headers),
        replace(ASKED, target=ASKED.target + "P", method="POS"),
    ]
    assert len({ASKED.digest, *(other.digest for other in others)}) == len(others) + 1
    assert replace(ASKED).digest == ASKED.digest


@pytest.mark.parametrize(
    ("told", "bound", "expected"),
    [
        ("", "http://127.0.0.1:8420", "http://127.0.0.1:8420"),
        ("", None, None),
        ("http://10.0.0.5", "http://0.0.0.0:9000", "http://10.0.0.5:9000"),
        ("http://[fd00::5]", "http://[::]:9000", "http://[fd00::5]:9000"),
        ("https://one.example:443/nodes", "http://0.0.0.0:9000", "https://one.example:443/nodes"),
        ("http://10.0.0.5:80", None, "http://10.0.0.5:80"),
    ],
)
def test_a_node_says_where_it_is(told: str, bound: str | None, expected: str | None) -> None:
    settings = load(flags={"node.url": told}).settings
    assert advertised_url(settings, url=bound) == expected


@pytest.mark.parametrize(
    ("chosen", "wrong"),
    [
        ({}, "routing.secret"),
        ({"routing.secret": "short"}, "routing.secret"),
        ({"routing.secret": SECRET, "api.host": "0.0.0.0"}, "node.url"),  # noqa: S104 - it is refused
        ({"routing.secret": SECRET, "api.host": "::"}, "node.url"),
    ],
)
def test_handing_on_needs_a_secret_and_a_place(chosen: dict[str, str], wrong: str) -> None:
    with pytest.raises(SettingError, match=wrong) as refused:
        load(flags={"routing.forward": "true", **chosen})
    assert SECRET not in str(refused.value)
    whole = {"routing.secret": SECRET, "api.host": "0.0.0.0", "node.url": "http://10.0.0.5"}  # noqa: S104 - not bound
    assert load(flags={"routing.forward": "true", **whole}).settings.routing.forward
