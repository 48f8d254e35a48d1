"""A nonce that a caller was told is good for one send, by that caller, for a moment."""

from __future__ import annotations

from fencepost.api.jsonrpc_told import GOOD_FOR_S, MOST_TOLD, Told
from fencepost.domain.ids import Address, Signer

SIGNER = Signer(1, Address("0x" + "11" * 20))
OTHER = Signer(1, Address("0x" + "22" * 20))


def told_at(now_s: list[float]) -> Told:
    return Told(clock=lambda: now_s[0])


def test_each_telling_is_good_once_for_whom_it_was_told() -> None:
    told = told_at([0.0])
    for _ in range(2):
        told.tell("a", SIGNER, 5)
    assert not told.use("b", SIGNER, 5)
    assert not told.use(None, SIGNER, 5)
    assert not told.use("a", OTHER, 5)
    assert not told.use("a", SIGNER, 4)
    assert [told.use("a", SIGNER, 5) for _ in range(3)] == [True, True, False]


def test_it_is_forgotten_after_a_moment() -> None:
    now_s = [0.0]
    told = told_at(now_s)
    told.tell(None, SIGNER, 5)
    now_s[0] = GOOD_FOR_S / 2
    told.tell(None, SIGNER, 5)
    now_s[0] = GOOD_FOR_S
    assert [told.use(None, SIGNER, 5) for _ in range(2)] == [True, False]


def test_what_is_remembered_is_bounded() -> None:
    told = told_at([0.0])
    for nonce in range(MOST_TOLD + 10):
        told.tell(None, SIGNER, nonce)
    assert not told.use(None, SIGNER, 9)
    assert told.use(None, SIGNER, 10)
    assert told.use(None, SIGNER, MOST_TOLD + 9)
    assert len(told._until_s) == told._size == MOST_TOLD - 2


def test_nothing_is_kept_of_what_was_used() -> None:
    told = told_at([0.0])
    for nonce in range(10):
        told.tell(None, SIGNER, nonce)
        assert told.use(None, SIGNER, nonce)
        assert not told.use(None, SIGNER, nonce)
    assert not told._until_s
    assert told._size == 0
