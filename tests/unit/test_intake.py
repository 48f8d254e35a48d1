"""How much may wait: the bounds, what counts towards them, and that refusing leaves nothing behind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest

from fakes.observer import FakeObserver
from fencepost.application.accept import Accept, Request
from fencepost.application.intake import MOST_BEING_STORED, Intake, Sample
from fencepost.application.ports import Accepted, KeyPort, Ledger
from fencepost.domain.ids import Address, Signer
from fencepost.domain.managed import Intent
from fencepost.domain.states import State
from fencepost.domain.transaction import Call
from fencepost.errors import Overloaded

A, B = (Signer(1, Address(f"0x{number:040x}")) for number in (1, 2))


def intake() -> Intake:
    return Intake(FakeObserver(), max_queued=10, max_queued_per_signer=6)


def take(gate: Intake, *signers: Signer) -> None:
    gate.begin(signers)
    gate.end(len(signers))
    for signer in signers:
        gate.stored(signer)


def test_what_was_counted_and_what_came_since_fill_the_room_of_a_signer() -> None:
    gate = intake()
    gate.sampled(Sample({State.QUEUED: {A: 4}, State.SUBMITTED: {A: 100}}))
    take(gate, A, A)
    with pytest.raises(Overloaded) as refused:
        take(gate, B, A)
    assert refused.value.retry_after_s > 0
    assert A.address in str(refused.value)
    take(gate, B)


def test_all_signers_share_one_bound() -> None:
    gate = intake()
    gate.sampled(Sample({State.QUEUED: {A: 5, B: 5}}))
    with pytest.raises(Overloaded):
        take(gate, Signer(1, Address("0x" + "3" * 40)))


def test_there_is_room_again_when_the_queue_was_worked_off() -> None:
    gate = intake()
    gate.sampled(Sample({State.QUEUED: {A: 6}}))
    with pytest.raises(Overloaded):
        take(gate, A)
    gate.sampled(Sample({State.TRACKING: {A: 6}}))
    take(gate, A)


def test_what_is_being_stored_is_bounded_and_given_back_whatever_happens() -> None:
    gate = Intake(FakeObserver(), max_queued=10**9, max_queued_per_signer=10**9)
    many = [A] * MOST_BEING_STORED
    gate.begin(many)
    with pytest.raises(Overloaded):
        take(gate, A)
    gate.end(len(many))
    take(gate, A)


class CutLedger:
    async def accept(self, _requests: object) -> Sequence[Accepted]:
        raise OSError("cut")


class Keys:
    def addresses(self) -> list[Address]:
        return [A.address]


async def test_room_is_given_back_when_storing_fails() -> None:
    gate = Intake(FakeObserver(), max_queued=10**9, max_queued_per_signer=10**9)
    intent = Intent(call=Call(to=A.address))
    ledger, keys = cast("Ledger", CutLedger()), cast("KeyPort", Keys())
    accept = Accept(ledger, keys, frozenset({A.chain_id}), lambda _: None, gate)
    for _ in range(3):
        with pytest.raises(OSError, match="cut"):
            await accept.accept([Request(A, intent)] * (MOST_BEING_STORED // 2 + 1))


def test_refusals_are_told() -> None:
    observer = FakeObserver()
    gate = Intake(observer, max_queued=1, max_queued_per_signer=1)
    gate.sampled(Sample({State.QUEUED: {A: 1}}))
    with pytest.raises(Overloaded):
        take(gate, B, B)
    assert observer.of("overloaded") == [{"bound": "all", "count": 2}]
