"""Random sequences of events: no illegal transition, no nonce lost or changed, no bytes forgotten.

Hypothesis plays a signer's lane with the functions of `domain/transaction_state.py` alone: it allocates, sends, mines, reorgs and
intervenes at random. A function may reject an illegal transition; it may never return a transaction that breaks a rule.
"""

from __future__ import annotations

import hashlib
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fencepost.domain import transaction_state
from fencepost.domain.confirmations import BlockRef, BlockStatus, Confirmations
from fencepost.domain.ids import Address, BlockHash, Signer, TxHash
from fencepost.domain.send_result import SendCategory, SendResult
from fencepost.domain.states import LIVE, TERMINAL, IllegalTransition, State, SubState, is_legal
from fencepost.domain.transaction import Call, Fees, SignedTx, TxType
from fencepost.domain.transaction_state import Attempt, Intent, Kind, ManagedTx, Purpose, Receipt, Transition

SIGNER = Signer(1, Address("0x" + "a1" * 20))
index = st.integers(min_value=0, max_value=5)
FINAL = Confirmations(BlockStatus.CANONICAL, (), new_fork=False, is_final=True)


def block(number: int) -> BlockRef:
    return BlockRef(number, BlockHash("0x" + hashlib.sha256(b"%d" % number).hexdigest()))


class Life(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.txs: list[ManagedTx] = []
        self.next_nonce = 0
        self.made = 0
        self.clock_s = 0.0

    def pick(self, at: int) -> int:
        return at % len(self.txs)

    def attempt_for(self, tx: ManagedTx, purpose: Purpose) -> Attempt:
        self.made += 1
        raw = b"%d" % self.made
        price = 100 + len(tx.attempts)
        return Attempt(
            number=len(tx.attempts) + 1,
            purpose=purpose,
            type=TxType.DYNAMIC_FEE,
            gas=21_000,
            fees=Fees(price, price),
            signed=SignedTx(raw, TxHash("0x" + hashlib.sha256(raw).hexdigest())),
        )

    def happen(self, at: int, *steps: object) -> bool:
        """Commit what a lane would commit, if every transition is legal."""
        before = self.txs[at]
        after = before
        try:
            for step in steps:
                taken = step(after)  # type: ignore[operator]  # functions of `managed`
                assert isinstance(taken, Transition)
                assert is_legal(after.state, taken.tx.state)
                after = taken.tx
        except IllegalTransition:
            return False
        self.compare(before, after)
        self.txs[at] = after
        return True

    def compare(self, before: ManagedTx, after: ManagedTx) -> None:
        if before.nonce is not None:
            assert after.nonce == before.nonce
        assert after.attempts[: len(before.attempts)] == tuple(
            old.changed(sent_count=new.sent_count, last_result=new.last_result, last_message=new.last_message)
            for old, new in zip(before.attempts, after.attempts, strict=False)
        )
        assert after.submit_count >= before.submit_count
        assert (after.intent, after.tx_id, after.seq) == (before.intent, before.tx_id, before.seq)

    # ---- events

    @precondition(lambda self: len(self.txs) < 6)
    @rule(kind=st.sampled_from([Kind.INTENT, Kind.HANDLER]))
    def request(self, kind: Kind) -> None:
        intent = Intent(call=Call(to=SIGNER.address))
        self.txs.append(ManagedTx(uuid4(), SIGNER, len(self.txs), kind, intent))

    @precondition(lambda self: self.txs)
    @rule(at=index)
    def allocate(self, at: int) -> None:
        at = self.pick(at)
        tx = self.txs[at]
        attempt = None if tx.kind is Kind.HANDLER else self.attempt_for(tx, Purpose.INTENT)
        if self.happen(at, lambda tx: transaction_state.assign_nonce(tx, self.next_nonce, attempt)):
            self.next_nonce += 1

    @precondition(lambda self: self.txs)
    @rule(at=index, ending=st.sampled_from([State.FAILED, State.CANCELLED, State.CONFIRMED]))
    def give_up(self, at: int, ending: State) -> None:
        at = self.pick(at)
        attempt = self.attempt_for(self.txs[at], Purpose.FILLER)
        gave_up = self.happen(
            at,
            lambda tx: transaction_state.give_up(tx, ending=ending, error="no"),
            lambda tx: transaction_state.add_attempt(tx, attempt, "Fill"),
        )
        assert not (gave_up and ending is State.CONFIRMED)

    @precondition(lambda self: self.txs)
    @rule(at=index)
    def bump(self, at: int) -> None:
        at = self.pick(at)
        tx = self.txs[at]
        if tx.attempts or tx.kind is Kind.HANDLER:
            purpose = tx.latest.purpose if tx.attempts else Purpose.INTENT
            attempt = self.attempt_for(tx, purpose)
            self.happen(at, lambda tx: transaction_state.add_attempt(tx, attempt, "Bump"))

    @precondition(lambda self: self.txs)
    @rule(at=index, category=st.sampled_from(list(SendCategory)), which=index, claim=st.booleans())
    def send(self, at: int, category: SendCategory, which: int, *, claim: bool) -> None:
        at = self.pick(at)
        tx = self.txs[at]
        if not tx.attempts or tx.is_terminal or tx.mined is not None:
            return
        self.clock_s += 1
        number = 1 + which % len(tx.attempts)
        sent_before = tx.attempts[number - 1].sent_count
        if claim:
            assert self.happen(
                at, lambda tx: transaction_state.claim_send(tx, due_s=self.clock_s, resubmit=True)
            )
        result = SendResult(category, "so")
        assert self.happen(
            at,
            lambda tx: transaction_state.record_send(
                tx, number, result, now_s=self.clock_s, due_s=self.clock_s + 5
            ),
        )
        assert self.txs[at].attempts[number - 1].sent_count == sent_before + 1

    @precondition(lambda self: self.txs)
    @rule(at=index, which=index, number=st.integers(1, 9), succeeded=st.booleans())
    def mine(self, at: int, which: int, number: int, *, succeeded: bool) -> None:
        at = self.pick(at)
        tx = self.txs[at]
        if not tx.attempts or tx.is_terminal or tx.mined is not None:
            return
        attempt = tx.attempts[which % len(tx.attempts)]
        receipt = Receipt(attempt.signed.hash, block(number), succeeded=succeeded, gas_used=1, raw={"a": 1})
        assert self.happen(at, lambda tx: transaction_state.record_receipt(tx, receipt))

    @precondition(lambda self: self.txs)
    @rule(at=index, count=st.integers(0, 4), fork=st.booleans())
    def confirm(self, at: int, count: int, *, fork: bool) -> None:
        at = self.pick(at)
        if self.txs[at].mined is None or self.txs[at].is_terminal:
            return
        more = Confirmations(
            BlockStatus.CANONICAL, tuple(block(20 + i) for i in range(count)), new_fork=fork, is_final=False
        )
        assert self.happen(at, lambda tx: transaction_state.record_confirmations(tx, more))

    @precondition(lambda self: self.txs)
    @rule(at=index)
    def finish(self, at: int) -> None:
        at = self.pick(at)
        tx = self.txs[at]
        if not self.happen(at, lambda tx: transaction_state.finish(tx, FINAL, revert_reason="why")):
            assert tx.state is not State.TRACKING
            return
        assert tx.mined is not None
        attempt = tx.attempt_of(tx.mined.tx_hash)
        assert attempt is not None
        ended = self.txs[at].state
        if attempt.purpose is Purpose.FILLER:
            assert ended in (State.FAILED, State.CANCELLED)
        else:
            assert ended is (State.CONFIRMED if tx.mined.succeeded else State.FAILED)

    @precondition(lambda self: self.txs)
    @rule(at=index)
    def reorg(self, at: int) -> None:
        at = self.pick(at)
        had_block = self.txs[at].mined is not None
        assert self.happen(at, lambda tx: transaction_state.orphan(tx, due_s=self.clock_s)) is had_block
        if had_block:
            assert self.txs[at].state in (State.SUBMITTED, State.SUSPENDED)

    @precondition(lambda self: self.txs)
    @rule(
        at=index,
        event=st.sampled_from(
            [
                "refuse",
                "drop",
                "supersede",
                "lose",
                "reclaim",
                "contest",
                "suspend",
                "resume",
                "stuck",
                "stale",
            ]
        ),
    )
    def people_and_clocks(self, at: int, event: str) -> None:
        at = self.pick(at)
        tx = self.txs[at]
        if event in ("refuse", "drop") and tx.nonce is not None:
            return  # the lane uses these only before the nonce
        if event in ("stuck", "stale") and (tx.is_terminal or tx.sub_state is SubState.SUPERSEDED):
            return
        if event == "supersede" and tx.is_terminal:
            return
        steps = {
            "refuse": lambda tx: transaction_state.reject(tx, "no"),
            "drop": lambda tx: transaction_state.cancel_unsent(tx, "no"),
            "supersede": lambda tx: transaction_state.supersede(tx, "foreign"),
            "lose": lambda tx: transaction_state.fail_superseded(tx, BlockRef(1, BlockHash("0x01"))),
            "reclaim": lambda tx: transaction_state.reclaim(tx, due_s=self.clock_s),
            "contest": transaction_state.reopen,
            "suspend": lambda tx: transaction_state.suspend(tx, "eve"),
            "resume": lambda tx: transaction_state.resume(tx, "eve"),
            "stuck": lambda tx: transaction_state.mark_stuck(tx, "limit"),
            "stale": transaction_state.mark_stale,
        }
        self.happen(at, steps[event])

    # ---- invariants

    @invariant()
    def every_nonce_below_the_cursor_belongs_to_one_transaction(self) -> None:
        assert sorted(tx.nonce for tx in self.txs if tx.nonce is not None) == list(range(self.next_nonce))

    @invariant()
    def rows_are_what_the_database_would_take(self) -> None:
        for tx in self.txs:
            assert tx.state in LIVE | TERMINAL
            if tx.state is State.QUEUED:
                assert tx.nonce is None
            if tx.state in (State.ALLOCATED, State.SUBMITTED, State.TRACKING, State.CONFIRMED):
                assert tx.nonce is not None
            if tx.state in (State.TRACKING, State.CONFIRMED):
                assert tx.mined is not None
            if tx.state in (State.QUEUED, State.ALLOCATED, State.SUBMITTED):
                assert tx.mined is None
            if tx.is_terminal:
                assert tx.sub_state is None

    @invariant()
    def nothing_ends_with_an_unconsumed_nonce_unless_it_is_superseded(self) -> None:
        for tx in self.txs:
            if tx.is_terminal and tx.nonce is not None:
                assert tx.mined is not None or tx.error == "foreign"

    @invariant()
    def attempts_are_numbered_and_all_different(self) -> None:
        for tx in self.txs:
            assert [attempt.number for attempt in tx.attempts] == list(range(1, len(tx.attempts) + 1))
        hashes = [attempt.signed.hash for tx in self.txs for attempt in tx.attempts]
        assert len(hashes) == len(set(hashes))

    @invariant()
    def resuming_leads_where_the_transaction_belongs(self) -> None:
        for tx in self.txs:
            if tx.state in LIVE and tx.state is not State.SUSPENDED and tx.submit_count:
                assert transaction_state.live_state(tx) in (tx.state, State.SUBMITTED)


Life.TestCase.settings = settings(
    max_examples=150,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.filter_too_much],
)
TestLife = Life.TestCase


def test_a_changed_copy_differs_in_the_given_fields() -> None:
    tx = ManagedTx(uuid4(), SIGNER, 1, Kind.INTENT, Intent(Call(SIGNER.address)))
    for name in ManagedTx.__struct_fields__:
        changed = tx.changed(**{name: "another"})
        assert type(changed) is ManagedTx
        assert getattr(changed, name) == "another"
        assert changed.changed(**{name: getattr(tx, name)}) == tx != changed
    with pytest.raises(TypeError):
        tx.changed(nonsense=1)


def test_values_are_immutable() -> None:
    tx = ManagedTx(uuid4(), SIGNER, 1, Kind.INTENT, Intent(Call(SIGNER.address)))
    for value in (tx, tx.intent, tx.intent.call):
        assert hash(value) == hash(value.changed())
        for name in value.__struct_fields__:
            with pytest.raises(AttributeError):
                setattr(value, name, None)
