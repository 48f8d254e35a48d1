"""The mutants: every way to lose or repeat a nonce that was seen in practice, and more that somebody could write.

Each changes one function of the program, or one rule of the simulated database. Those that need SQL of their own stand
in `integration/test_unsafe_patterns.py`; here is everything that a lane, a node or a lease can do wrong.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from fencepost.application import allocate, broadcast, escalate, reconcile, sequence, step, track
from fencepost.application import attempts as attempts_module
from fencepost.application.lane import Lane, StateMoved
from fencepost.application.ports import Cursor, LaneWrite, NewRequest, TxChange, Written
from fencepost.domain import confirmations, managed
from fencepost.domain import fees as pricing
from fencepost.domain.confirmations import Confirmations, Standing
from fencepost.domain.decide import Action
from fencepost.domain.lease import Term
from fencepost.domain.managed import Attempt, ManagedTx
from fencepost.domain.send import SendCategory, SendResult
from fencepost.domain.states import State
from fencepost.errors import Fenced
from fencepost.lab.sim.ledger import FakeDatabase, FakeLedger
from fencepost.lab.sim.ports import LedgerPort
from fencepost.runtime import lanes as lanes_module
from mutants.planting import Change, Mutant

# ---- the database


def _exists_then_write() -> list[Change]:
    """The statement looks at the lease when it is made; whatever happens until it commits, it commits."""
    honest = LedgerPort.commit
    looked: dict[int, bool] = {}

    async def made(self: LedgerPort, write: LaneWrite) -> Written:
        looked[id(write)] = self.inner._stands(write.term)
        return await honest(self, write)

    async def commit(self: FakeLedger, write: LaneWrite) -> Written:
        if not looked.pop(id(write)):
            return Written(lease_ok=False, applied=False)
        return await _unfenced(self, write)

    return [(LedgerPort, "commit", made), (FakeLedger, "commit", commit)]


async def _unfenced(ledger: FakeLedger, write: LaneWrite) -> Written:
    lease = ledger.database.leases[write.term.signer]
    held, lease.token = lease.token, write.term.token
    try:
        return await _commit_now(ledger, write)
    finally:
        lease.token = held


_honest_commit = FakeLedger.commit


async def _commit_now(ledger: FakeLedger, write: LaneWrite) -> Written:
    """The whole statement in one moment, so that nobody sees a token that we only lent."""
    statement = _honest_commit(ledger, write)
    try:
        statement.send(None)
        statement.send(None)
    except StopIteration as answered:
        written: Written = answered.value
        return written
    raise AssertionError("the statement takes more than one turn")


def _no_fence() -> list[Change]:
    return [(FakeLedger, "commit", _unfenced)]


def _renews_anybody() -> list[Change]:
    async def renew(self: FakeLedger, terms: Sequence[Term]) -> Sequence[Term]:
        await asyncio.sleep(0)
        for term in terms:
            self.database.leases[term.signer].expires_at_s = (
                self.database.clock.now_s() + self._lease_duration_s
            )
        return list(terms)

    return [(FakeLedger, "renew", renew)]


def _own_clock_takes() -> list[Change]:
    def is_free(self: FakeLedger, lease: Any) -> bool:
        return bool(lease.expires_at_s + self._skew_allowance_s < self._clock.now_s())

    return [(FakeLedger, "_is_free", is_free)]


def _own_clock_renews() -> list[Change]:
    honest = FakeLedger.renew

    async def renew(self: FakeLedger, terms: Sequence[Term]) -> Sequence[Term]:
        standing = await honest(self, terms)
        for term in standing:
            self.database.leases[term.signer].expires_at_s = self._clock.now_s() + self._lease_duration_s
        return standing

    return [(FakeLedger, "renew", renew)]


def _name_keeps_its_token() -> list[Change]:
    honest = FakeLedger.acquire

    async def acquire(self: FakeLedger, signers: Sequence[Any]) -> Sequence[Term]:
        terms = list(await honest(self, [s for s in signers if not self._is_mine_by_name(s)]))  # type: ignore[attr-defined]  # planted below
        for signer in [s for s in signers if self._is_mine_by_name(s)]:  # type: ignore[attr-defined]  # planted below
            lease = self.database.leases[signer]
            lease.incarnation = self._incarnation
            lease.expires_at_s = self.database.clock.now_s() + self._lease_duration_s
            terms.append(Term(signer, lease.token, self._clock.now_s(), self._lease_duration_s))
        return terms

    FakeLedger._is_mine_by_name = _is_mine_by_name  # type: ignore[attr-defined]  # a method that only this mutant has
    return [(FakeLedger, "acquire", acquire)]


def _is_mine_by_name(ledger: FakeLedger, signer: Any) -> bool:
    lease = ledger.database.leases.get(signer)
    return lease is not None and lease.token > 0 and lease.node == ledger._node


def _lease_rows_deleted() -> list[Change]:
    async def release(self: FakeLedger, terms: Sequence[Term]) -> None:
        await asyncio.sleep(0)
        for term in terms:
            if self._stands(term):
                del self.database.leases[term.signer]

    return [(FakeLedger, "release", release)]


def _nonce_first_row_later() -> list[Change]:
    async def commit(self: FakeLedger, write: LaneWrite) -> Written:
        stands = self._stands(write.term)
        if stands and write.cursor_after is not None and write.changes:
            self.database.cursors[write.term.signer] = write.cursor_after
            await asyncio.sleep(1.0)  # the process may die here
            write = replace(write, cursor_after=None)
        return await _honest_commit(self, write)

    return [(FakeLedger, "commit", commit)]


def _no_request_key() -> list[Change]:
    honest = FakeLedger._store_new

    def store(self: FakeLedger, request: NewRequest) -> None:
        honest(self, request)
        self.database.requests.clear()

    return [(FakeLedger, "_store_new", store)]


# ---- nonces and sends


def _send_before_commit() -> list[Change]:
    honest = attempts_module.sign

    async def sign(lane: Lane, wanted: Any, **kwargs: Any) -> list[Attempt]:
        signed = await honest(lane, wanted, **kwargs)
        await lane.chain.send([attempt.signed for attempt in signed])
        return signed

    return [(attempts_module, "sign", sign)]


def _bump_not_stored() -> list[Change]:
    async def replace_attempt(lane: Lane, tx: ManagedTx) -> None:
        attempt = await attempts_module.next_attempt(lane, tx, purpose=tx.latest.purpose)
        await lane.chain.send([attempt.signed])
        wait = partial(managed.postponed, due_s=lane.clock.now_s() + lane.policy.resubmit_interval_s)
        await lane.commit([lane.change(tx, wait)], op="bump")

    return [(broadcast, "replace_attempt", replace_attempt), (escalate, "replace_attempt", replace_attempt)]


def _database(lane: Lane) -> FakeDatabase:
    inner: FakeLedger = lane.ledger.inner  # type: ignore[attr-defined]  # the simulated port has it
    return inner.database


def _requeue(lane: Lane, tx: ManagedTx, *, release: bool) -> None:
    """Back into the queue, past the rules that forbid it."""
    data = _database(lane)
    row = data.txs[tx.tx_id]
    data.txs[tx.tx_id] = row._replace(
        state=State.QUEUED, nonce=None, attempts=(), version=row.version + 1, resubmit_due_s=None
    )
    data.nonces.pop((tx.signer, tx.held_nonce()), None)
    cursor = data.cursors[tx.signer]
    if release and cursor.next_nonce == tx.held_nonce() + 1:
        data.cursors[tx.signer] = replace(cursor, next_nonce=tx.held_nonce())
    raise StateMoved("as planted")


def _follow_up(on: SendCategory, then: Any) -> list[Change]:
    honest = broadcast._follow_up

    async def follow_up(lane: Lane, tx: ManagedTx, action: Action, result: SendResult) -> None:
        if result.category is on and tx.mined is None and not tx.is_terminal:
            await then(lane, tx)
        else:
            await honest(lane, tx, action, result)

    return [(broadcast, "_follow_up", follow_up)]


def _fresh_nonce_when_too_low() -> list[Change]:
    async def then(lane: Lane, tx: ManagedTx) -> None:
        _requeue(lane, tx, release=False)

    return _follow_up(SendCategory.NONCE_TOO_LOW, then)


def _release_on_unknown() -> list[Change]:
    async def then(lane: Lane, tx: ManagedTx) -> None:
        _requeue(lane, tx, release=True)

    return _follow_up(SendCategory.UNKNOWN, then)


def _time_out_is_failure() -> list[Change]:
    async def then(lane: Lane, tx: ManagedTx) -> None:
        await lane.commit([lane.change(tx, partial(managed.lost, error="time-out"))], op="fail")

    return _follow_up(SendCategory.UNKNOWN, then)


def _unknown_hash_new_nonce() -> list[Change]:
    async def judge(lane: Lane, missing: Sequence[ManagedTx]) -> None:
        for tx in missing:
            known = await lane.chain.knows([attempt.signed.hash for attempt in tx.attempts])
            if tx.state is State.SUBMITTED and not any(known):
                _requeue(lane, tx, release=False)

    return [(track, "_judge_missing", judge)]


def _node_says_the_nonce() -> list[Change]:
    honest = sequence.checked_cursor

    async def checked(lane: Lane) -> Cursor | None:
        cursor = await honest(lane)
        if cursor is None:
            return None
        return replace(cursor, next_nonce=await lane.chain.nonce(lane.signer.address, "latest"))

    return [(allocate, "checked_cursor", checked), (FakeLedger, "_claims", _claims_without_key)]


def _failed_at_once() -> list[Change]:
    async def fill(lane: Lane, tx: ManagedTx, *, ending: State, error: str) -> None:
        del ending
        await lane.commit([lane.change(tx, partial(managed.lost, error=error))], op="fail")

    return [(broadcast, "fill", fill), (escalate, "fill", fill)]


def _never_again() -> list[Change]:
    async def nothing(_lane: Lane) -> None:
        return

    return [(broadcast, "_due_s", lambda *_: None), (reconcile, "_settle", nothing)]


def _no_claim() -> list[Change]:
    honest = managed.claimed

    def claimed(tx: ManagedTx, *, due_s: float, resubmit: bool) -> managed.Step:
        done = honest(tx, due_s=due_s, resubmit=resubmit)
        return managed.Step(tx, done.entries[:0])

    return [(managed, "claimed", claimed)]


def _same_price_again() -> list[Change]:
    honest = pricing.replacement

    def replacement(last: Any, **kwargs: Any) -> Any:
        dearer = honest(last, **kwargs)
        return dearer if dearer is None else replace(dearer, fee_cap_wei=last.fee_cap_wei)

    return [(pricing, "replacement", replacement)]


# ---- the chain


def _latest_attempt_only() -> list[Change]:
    honest = track.look_up

    async def look_up(lane: Lane, txs: Sequence[ManagedTx]) -> int:
        asked = lane.chain
        newest = {tx.latest.signed.hash for tx in txs}

        class Newest:
            def __getattr__(self, name: str) -> Any:
                return getattr(asked, name)

            async def receipts(self, hashes: Sequence[Any]) -> Sequence[Any]:
                found = await asked.receipts(hashes)
                return [r for r in found if r is not None and r.tx_hash in newest]

        lane.chain = Newest()
        try:
            return await honest(lane, txs)
        finally:
            lane.chain = asked

    return [(track, "look_up", look_up), (reconcile, "look_up", look_up)]


def _ignores_forks() -> list[Change]:
    honest = confirmations.confirm

    def confirm(block: Any, view: Any, **kwargs: Any) -> Confirmations:
        said = honest(block, view, **kwargs)
        if said.standing is not Standing.ORPHANED:
            return said
        deep = kwargs["required"] is not None and view.head - block.number >= kwargs["required"]
        return replace(said, standing=Standing.CANONICAL, new_fork=False, is_final=deep)

    return [(track, "confirm", confirm)]


def _no_depth() -> list[Change]:
    honest = confirmations.confirm

    def confirm(block: Any, view: Any, **kwargs: Any) -> Confirmations:
        return honest(block, view, **{**kwargs, "required": 0})

    return [(track, "confirm", confirm)]


def _ended_is_ended() -> list[Change]:
    async def nothing(lane: Lane, **_: Any) -> int:
        lane.forked_at = None
        return 0

    return [(step, "reopen_undone", nothing), (reconcile, "reopen_undone", nothing)]


def _strangers_overlooked() -> list[Change]:
    async def nothing(_lane: Lane, _missing: Any) -> None:
        return

    return [(track, "_judge_missing", nothing)]


def _protect_sends() -> list[Change]:
    return [(Lane, "is_protected", property(lambda _: False))]


# ---- leases


def _no_reconcile() -> list[Change]:
    async def nothing(lane: Lane) -> None:
        state = await lane.ledger.load(lane.signer, queue_limit=lane.policy.read_ahead)
        lane.adopt(replace(state, in_flight=()), queue_limit=lane.policy.read_ahead)
        lane.reconciled = True

    return [(step, "reconcile", nothing)]


def _trusts_for_ever() -> list[Change]:
    return [(Lane, "require_trust", lambda _: None)]


def _goes_on_after_fenced() -> list[Change]:
    honest = step.step

    async def go_on(lane: Lane) -> float | None:
        try:
            return await honest(lane)
        except Fenced:
            lane.reconciled = False
            return 1.0

    return [(lanes_module, "step", go_on)]


def _lost_answer_is_no() -> list[Change]:
    """A commit whose answer is lost counts as not made, and nothing compares what is there with what was expected."""
    honest = step.step

    async def go_on(lane: Lane) -> float | None:
        try:
            return await honest(lane)
        except OSError:
            return 0.5

    def stored(self: FakeLedger, change: TxChange, *_: object) -> ManagedTx:
        row = self.database.txs[change.before.tx_id]
        return change.after._replace(version=row.version + 1)

    return [
        (lanes_module, "step", go_on),
        (FakeLedger, "_stored", stored),
        (FakeLedger, "_check_cursor", lambda *_: None),
        (FakeLedger, "_claims", _claims_without_key),
    ]


def _claims_without_key(_ledger: FakeLedger, stored: Sequence[ManagedTx]) -> tuple[Any, Any]:
    """No unique key refuses anything."""
    return {}, {(tx.signer.chain_id, a.signed.hash): tx.tx_id for tx in stored for a in tx.attempts}


MUTANTS = [
    Mutant(
        "the write looks at the lease, and commits later",
        _exists_then_write,
        "owners sleep before a write",
        is_of_part_one=True,
    ),
    Mutant(
        "the write does not name its token", _no_fence, "owners sleep before a write", is_of_part_one=True
    ),
    Mutant(
        "a client's clock says that a lease has ended", _own_clock_takes, "clocks jump", is_of_part_one=True
    ),
    Mutant("a client's clock says until when a lease is renewed", _own_clock_renews, "clocks jump"),
    Mutant(
        "the same name keeps its token over a restart",
        _name_keeps_its_token,
        "owners of one name sleep",
        is_of_part_one=True,
    ),
    Mutant("lease rows are deleted", _lease_rows_deleted, "leases come and go", is_of_part_one=True),
    Mutant(
        "the nonce in one commit, the row in another",
        _nonce_first_row_later,
        "owners are killed often",
        is_of_part_one=True,
    ),
    Mutant("no request key", _no_request_key, "callers ask again", is_of_part_one=True),
    Mutant("broadcast, then persist", _send_before_commit, "nothing goes wrong", is_of_part_one=True),
    Mutant(
        "nonce too low, so a fresh nonce",
        _fresh_nonce_when_too_low,
        "answers of sends get lost",
        is_of_part_one=True,
    ),
    Mutant("unknown hash, so a new nonce", _unknown_hash_new_nonce, "pools forget", is_of_part_one=True),
    Mutant(
        "the send failed, so the nonce is released",
        _release_on_unknown,
        "answers of sends get lost",
        is_of_part_one=True,
    ),
    Mutant(
        "allocation without compare and swap, and a lost answer is a no",
        _lost_answer_is_no,
        "answers of writes get lost",
        is_of_part_one=True,
    ),
    Mutant("a renewal that names no token", _renews_anybody, "owners sleep before a renewal"),
    Mutant("a lease is trusted for ever", _trusts_for_ever, "renewals fail"),
    Mutant("a fenced term goes on", _goes_on_after_fenced, "owners sleep before a write"),
    Mutant("the node says which nonce is next, and no key refuses it", _node_says_the_nonce, "nonces lag"),
    Mutant("a bump is sent, but not stored", _bump_not_stored, "no blocks for long"),
    Mutant("a bump that does not pay more", _same_price_again, "no blocks for long"),
    Mutant("a time-out is a failure", _time_out_is_failure, "answers of sends get lost"),
    Mutant("FAILED before the nonce is consumed", _failed_at_once, "nodes refuse for good"),
    Mutant("nothing is sent again", _never_again, "pools forget"),
    Mutant("sent again without a claim", _no_claim, "pools forget"),
    Mutant("only the latest attempt is looked up", _latest_attempt_only, "bumps do not arrive"),
    Mutant("forks are ignored", _ignores_forks, "short forks"),
    Mutant("CONFIRMED with the first block", _no_depth, "nothing goes wrong, strictly"),
    Mutant("what has ended is never looked at again", _ended_is_ended, "deep forks"),
    Mutant("a stranger at our nonce is overlooked", _strangers_overlooked, "a stranger waits in the pool"),
    Mutant("PROTECT that sends", _protect_sends, "people protect"),
    Mutant("a take-over that knows the cursor only", _no_reconcile, "owners die after a write"),
]
