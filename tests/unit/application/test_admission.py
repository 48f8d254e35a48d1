"""Admission control: the bounds, what counts towards them, and that a rejection leaves nothing behind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest

from fakes.observer import FakeObserver
from fencepost.application.accept import Request, RequestAcceptor
from fencepost.application.admission import MAX_BEING_STORED, AdmissionControl, Sample
from fencepost.application.ports import Accepted, KeyPort, Ledger
from fencepost.domain.ids import Address, Signer
from fencepost.domain.states import State
from fencepost.domain.transaction import Call
from fencepost.domain.transaction_state import Intent
from fencepost.errors import Overloaded

A, B = (Signer(1, Address(f"0x{number:040x}")) for number in (1, 2))


def new_admission() -> AdmissionControl:
    return AdmissionControl(FakeObserver(), max_queued=10, max_queued_per_signer=6)


def take(admission: AdmissionControl, *signers: Signer) -> None:
    admission.reserve(signers)
    admission.release(len(signers))
    for signer in signers:
        admission.add_stored(signer)


def test_counted_and_newly_arrived_requests_fill_the_bound_of_a_signer() -> None:
    admission = new_admission()
    admission.apply_sample(Sample({State.QUEUED: {A: 4}, State.SUBMITTED: {A: 100}}))
    take(admission, A, A)
    with pytest.raises(Overloaded) as refused:
        take(admission, B, A)
    assert refused.value.retry_after_s > 0
    assert A.address in str(refused.value)
    take(admission, B)


def test_all_signers_share_one_bound() -> None:
    admission = new_admission()
    admission.apply_sample(Sample({State.QUEUED: {A: 5, B: 5}}))
    with pytest.raises(Overloaded):
        take(admission, Signer(1, Address("0x" + "3" * 40)))


def test_a_drained_queue_accepts_requests_again() -> None:
    admission = new_admission()
    admission.apply_sample(Sample({State.QUEUED: {A: 6}}))
    with pytest.raises(Overloaded):
        take(admission, A)
    admission.apply_sample(Sample({State.TRACKING: {A: 6}}))
    take(admission, A)


def test_requests_being_stored_are_bounded_and_always_released() -> None:
    admission = AdmissionControl(FakeObserver(), max_queued=10**9, max_queued_per_signer=10**9)
    many = [A] * MAX_BEING_STORED
    admission.reserve(many)
    with pytest.raises(Overloaded):
        take(admission, A)
    admission.release(len(many))
    take(admission, A)


class CutLedger:
    async def accept(self, _requests: object) -> Sequence[Accepted]:
        raise OSError("cut")


class Keys:
    def addresses(self) -> list[Address]:
        return [A.address]


async def test_the_slot_is_released_when_storing_fails() -> None:
    admission = AdmissionControl(FakeObserver(), max_queued=10**9, max_queued_per_signer=10**9)
    intent = Intent(call=Call(to=A.address))
    ledger, keys = cast("Ledger", CutLedger()), cast("KeyPort", Keys())
    accept = RequestAcceptor(ledger, keys, frozenset({A.chain_id}), lambda _: None, admission)
    for _ in range(3):
        with pytest.raises(OSError, match="cut"):
            await accept.accept([Request(A, intent)] * (MAX_BEING_STORED // 2 + 1))


def test_rejections_are_reported_to_the_observer() -> None:
    observer = FakeObserver()
    admission = AdmissionControl(observer, max_queued=1, max_queued_per_signer=1)
    admission.apply_sample(Sample({State.QUEUED: {A: 1}}))
    with pytest.raises(Overloaded):
        take(admission, B, B)
    assert observer.of("overloaded") == [{"bound": "all", "count": 2}]


def test_a_key_fills_only_its_share() -> None:
    observer = FakeObserver()
    admission = AdmissionControl(observer, max_queued=10, max_queued_per_signer=10, key_share=0.5)
    admission.apply_sample(Sample({State.QUEUED: {A: 3}}, queued_by_key={"k": 3}))
    admission.reserve([A], key_id="k")  # in progress
    with pytest.raises(Overloaded, match="this API key"):
        admission.reserve([A, B], key_id="k")
    admission.reserve([A], key_id="k")
    for _ in range(2):
        admission.release(1, key_id="k")
        admission.add_stored(A, key_id="k")
    with pytest.raises(Overloaded, match="its share is 5"):
        admission.reserve([B], key_id="k")
    admission.reserve([B], key_id="another")
    admission.reserve([B])  # without a key there is no share
    admission.apply_sample(Sample({}))
    admission.reserve([A] * 5, key_id="k")
