"""Forward tokens between nodes: valid once, for a while, at one process, for one call; every change invalidates them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from uuid import UUID, uuid4

import pytest

from fencepost.application.forwarding import (
    TOKEN_TTL_S,
    ForwardRequest,
    ForwardToken,
    ForwardTokenRejected,
    ForwardTokens,
)
from fencepost.bootstrap.cluster import advertised_url
from fencepost.errors import SettingError
from fencepost.settings import load

SECRET = "s" * 32
OWNER = UUID(int=7)
ASKED = ForwardRequest("POST", "/api/v1/tx?wait=mined", b'{"signer":"0x1"}', {"idempotency-key": "order-7"})


@dataclass(slots=True)
class Clock:
    now_s: float = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now_s


def made(passes: ForwardTokens, *, hops: int = 1, caller: str | None = "00ff00ff00ff00ff") -> str:
    return passes.make(ASKED, to=OWNER, caller=caller, hops=hops)


@pytest.mark.parametrize("caller", ["00ff00ff00ff00ff", None])
def test_a_forward_token_contains_its_claims(caller: str | None) -> None:
    token = made(ForwardTokens(SECRET), hops=2, caller=caller)
    assert ForwardTokens(SECRET).read(token) == ForwardToken(
        hops=2, caller=caller, to=OWNER, digest=ASKED.digest
    )


def test_a_forward_token_is_valid_once() -> None:
    owner = ForwardTokens(SECRET)
    token = made(ForwardTokens(SECRET))
    owner.read(token)
    with pytest.raises(ForwardTokenRejected, match="used before"):
        owner.read(token)
    owner.read(made(ForwardTokens(SECRET)))


def test_a_forward_token_of_another_secret_is_rejected() -> None:
    with pytest.raises(ForwardTokenRejected, match="wrong signature"):
        ForwardTokens(SECRET).read(made(ForwardTokens("t" * 32)))


def test_a_changed_forward_token_is_rejected() -> None:
    passes = ForwardTokens(SECRET)
    parts = made(passes).split(".")
    others = ["2", "2", "-", uuid4().hex, str(int(parts[4]) + 1), uuid4().hex, "0" * 64, "0" * 64]
    for place, other in enumerate(others):
        changed = ".".join([*parts[:place], other, *parts[place + 1 :]])
        with pytest.raises(ForwardTokenRejected):
            passes.read(changed)
    passes.read(".".join(parts))


@pytest.mark.parametrize("text", ["", "1", "fp_00_secret", "1.1.-.x.1.x.x.x", "1" * 100_000])
def test_a_malformed_forward_token_is_rejected(text: str) -> None:
    with pytest.raises(ForwardTokenRejected, match="malformed"):
        ForwardTokens(SECRET).read(text)


@pytest.mark.parametrize(
    ("apart_s", "is_good"),
    [(TOKEN_TTL_S - 1, True), (1 - TOKEN_TTL_S, True), (TOKEN_TTL_S + 1, False), (-TOKEN_TTL_S - 1, False)],
)
def test_a_forward_token_expires(apart_s: float, *, is_good: bool) -> None:
    clock = Clock()
    token = made(ForwardTokens(SECRET, clock))
    clock.now_s += apart_s
    owner = ForwardTokens(SECRET, clock)
    if is_good:
        assert owner.read(token).to == OWNER
    else:
        with pytest.raises(ForwardTokenRejected, match="clocks"):
            owner.read(token)


def test_stored_token_ids_are_bounded_and_expire() -> None:
    clock = Clock()
    passes = ForwardTokens(SECRET, clock, max_seen=2)
    first = made(passes)
    passes.read(first)
    passes.read(made(passes))
    with pytest.raises(ForwardTokenRejected, match="forward tokens were used"):
        passes.read(made(passes))
    clock.now_s += TOKEN_TTL_S + 0.1
    passes.read(made(passes))
    with pytest.raises(ForwardTokenRejected, match="clocks"):  # no longer stored, and expired by then
        passes.read(first)


def test_the_secret_is_not_shown() -> None:
    assert SECRET not in repr(ForwardTokens(SECRET))


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
    ("shown", "bound", "expected"),
    [
        ("", "http://127.0.0.1:8420", "http://127.0.0.1:8420"),
        ("", None, None),
        ("http://10.0.0.5", "http://0.0.0.0:9000", "http://10.0.0.5:9000"),
        ("http://[fd00::5]", "http://[::]:9000", "http://[fd00::5]:9000"),
        ("https://one.example:443/nodes", "http://0.0.0.0:9000", "https://one.example:443/nodes"),
        ("http://10.0.0.5:80", None, "http://10.0.0.5:80"),
    ],
)
def test_a_node_publishes_its_address(shown: str, bound: str | None, expected: str | None) -> None:
    settings = load(flags={"node.url": shown}).settings
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
def test_forwarding_needs_a_secret_and_an_address(chosen: dict[str, str], wrong: str) -> None:
    with pytest.raises(SettingError, match=wrong) as refused:
        load(flags={"routing.forward": "true", **chosen})
    assert SECRET not in str(refused.value)
    whole = {"routing.secret": SECRET, "api.host": "0.0.0.0", "node.url": "http://10.0.0.5"}  # noqa: S104 - not bound
    assert load(flags={"routing.forward": "true", **whole}).settings.routing.forward
