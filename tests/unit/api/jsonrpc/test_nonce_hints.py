"""Each transaction count returned to a caller allows that caller one send with this nonce, for a short time."""

from __future__ import annotations

from fencepost.api.jsonrpc.nonce_hints import HINT_TTL_S, MAX_HINTS, NonceHints
from fencepost.domain.ids import Address, Signer

SIGNER = Signer(1, Address("0x" + "11" * 20))
OTHER = Signer(1, Address("0x" + "22" * 20))


def hints_at(now_s: list[float]) -> NonceHints:
    return NonceHints(clock=lambda: now_s[0])


def test_each_hint_is_valid_once_for_its_caller() -> None:
    hints = hints_at([0.0])
    for _ in range(2):
        hints.add("a", SIGNER, 5)
    assert not hints.use("b", SIGNER, 5)
    assert not hints.use(None, SIGNER, 5)
    assert not hints.use("a", OTHER, 5)
    assert not hints.use("a", SIGNER, 4)
    assert [hints.use("a", SIGNER, 5) for _ in range(3)] == [True, True, False]


def test_a_hint_expires() -> None:
    now_s = [0.0]
    hints = hints_at(now_s)
    hints.add(None, SIGNER, 5)
    now_s[0] = HINT_TTL_S / 2
    hints.add(None, SIGNER, 5)
    now_s[0] = HINT_TTL_S
    assert [hints.use(None, SIGNER, 5) for _ in range(2)] == [True, False]


def test_stored_hints_are_bounded() -> None:
    hints = hints_at([0.0])
    for nonce in range(MAX_HINTS + 10):
        hints.add(None, SIGNER, nonce)
    assert not hints.use(None, SIGNER, 9)
    assert hints.use(None, SIGNER, 10)
    assert hints.use(None, SIGNER, MAX_HINTS + 9)
    assert len(hints._until_s) == hints._size == MAX_HINTS - 2


def test_a_used_hint_is_removed() -> None:
    hints = hints_at([0.0])
    for nonce in range(10):
        hints.add(None, SIGNER, nonce)
        assert hints.use(None, SIGNER, nonce)
        assert not hints.use(None, SIGNER, nonce)
    assert not hints._until_s
    assert hints._size == 0
