"""Flaws of the statements: what the database does not check, or checks at the wrong time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from fencepost.application import lane_round
from fencepost.application.lane import Lane
from fencepost.application.lane_round import Outcome
from fencepost.application.ports import Accepted, LaneWrite, NewRequest, TxChange, Written
from fencepost.domain.ids import Signer
from fencepost.domain.lease import Term
from fencepost.domain.transaction_state import Attempt, JournalEntry, ManagedTx
from fencepost.runtime import lane_scheduler
from fencepost.testing import InMemoryDatabase, InMemoryLedger
from fencepost.testing import ledger as ledger_module
from lab.sim.ports import LedgerPort
from mutants.planting import Change


def exists_then_write() -> list[Change]:
    """Check the lease when the statement is made, and commit later without another check."""
    honest = LedgerPort.commit
    looked: dict[int, bool] = {}

    async def made(self: LedgerPort, write: LaneWrite) -> Written:
        looked[id(write)] = self.inner._is_current(write.term)
        return await honest(self, write)

    async def commit(self: InMemoryLedger, write: LaneWrite) -> Written:
        if not looked.pop(id(write)):
            return Written(lease_ok=False, applied=False)
        return await _unfenced(self, write)

    return [(LedgerPort, "commit", made), (InMemoryLedger, "commit", commit)]


async def _unfenced(ledger: InMemoryLedger, write: LaneWrite) -> Written:
    lease = ledger.database.leases[write.term.signer]
    held, lease.token = lease.token, write.term.token
    try:
        return await _commit_now(ledger, write)
    finally:
        lease.token = held


_honest_commit = InMemoryLedger.commit


async def _commit_now(ledger: InMemoryLedger, write: LaneWrite) -> Written:
    """Run the whole statement in one step, so that no other task sees the borrowed token."""
    statement = _honest_commit(ledger, write)
    try:
        statement.send(None)
        statement.send(None)
    except StopIteration as answered:
        written: Written = answered.value
        return written
    raise AssertionError("the statement takes more than one turn")


def no_fence() -> list[Change]:
    return [(InMemoryLedger, "commit", _unfenced)]


def renews_anybody() -> list[Change]:
    async def renew(self: InMemoryLedger, terms: Sequence[Term]) -> Sequence[Term]:
        await asyncio.sleep(0)
        for term in terms:
            self.database.leases[term.signer].expires_at_s = (
                self.database.clock.now_s() + self._lease_duration_s
            )
        return list(terms)

    return [(InMemoryLedger, "renew", renew)]


def own_clock_takes() -> list[Change]:
    def is_free(self: InMemoryLedger, lease: Any) -> bool:
        return bool(lease.expires_at_s + self._skew_allowance_s < self._clock.now_s())

    return [(InMemoryLedger, "_is_free", is_free)]


def own_clock_renews() -> list[Change]:
    honest = InMemoryLedger.renew

    async def renew(self: InMemoryLedger, terms: Sequence[Term]) -> Sequence[Term]:
        standing = await honest(self, terms)
        for term in standing:
            self.database.leases[term.signer].expires_at_s = self._clock.now_s() + self._lease_duration_s
        return standing

    return [(InMemoryLedger, "renew", renew)]


def name_keeps_its_token() -> list[Change]:
    honest = InMemoryLedger.acquire

    async def acquire(self: InMemoryLedger, signers: Sequence[Any]) -> Sequence[Term]:
        terms = list(await honest(self, [s for s in signers if not self._is_mine_by_name(s)]))  # type: ignore[attr-defined]  # planted below
        for signer in [s for s in signers if self._is_mine_by_name(s)]:  # type: ignore[attr-defined]  # planted below
            lease = self.database.leases[signer]
            lease.incarnation = self._incarnation
            lease.expires_at_s = self.database.clock.now_s() + self._lease_duration_s
            terms.append(Term(signer, lease.token, self._clock.now_s(), self._lease_duration_s))
        return terms

    InMemoryLedger._is_mine_by_name = _is_mine_by_name  # type: ignore[attr-defined]  # a method that only this mutant has
    return [(InMemoryLedger, "acquire", acquire)]


def _is_mine_by_name(ledger: InMemoryLedger, signer: Any) -> bool:
    lease = ledger.database.leases.get(signer)
    return lease is not None and lease.token > 0 and lease.node == ledger._node


def lease_rows_deleted() -> list[Change]:
    async def release(self: InMemoryLedger, terms: Sequence[Term]) -> None:
        await asyncio.sleep(0)
        for term in terms:
            if self._is_current(term):
                del self.database.leases[term.signer]

    return [(InMemoryLedger, "release", release)]


def nonce_first_row_later() -> list[Change]:
    async def commit(self: InMemoryLedger, write: LaneWrite) -> Written:
        stands = self._is_current(write.term)
        if stands and write.cursor_after is not None and write.changes:
            self.database.cursors[write.term.signer] = write.cursor_after
            await asyncio.sleep(1.0)  # the process may die here
            write = write.changed(cursor_after=None)
        return await _honest_commit(self, write)

    return [(InMemoryLedger, "commit", commit)]


def no_request_key() -> list[Change]:
    honest = InMemoryLedger._store_new

    def store(self: InMemoryLedger, request: NewRequest) -> ManagedTx:
        stored = honest(self, request)
        self.database.requests.clear()
        return stored

    return [(InMemoryLedger, "_store_new", store)]


def lost_answer_is_no() -> list[Change]:
    """Treat a commit with a lost answer as not made, without comparing the rows with the expectation."""
    honest = lane_round.run_round

    async def go_on(lanes: Sequence[Lane], at_most: int) -> dict[Signer, Outcome]:
        outcomes = await honest(lanes, at_most)
        return {
            signer: 0.5 if isinstance(outcome, OSError) else outcome for signer, outcome in outcomes.items()
        }

    def row(self: InMemoryLedger, change: TxChange) -> ManagedTx:
        row = self.database.txs.get(change.before.tx_id)
        if row is None:
            raise ledger_module.ConstraintViolation
        return row

    def stored(_: InMemoryLedger, change: TxChange, row: ManagedTx) -> ManagedTx:
        return change.after.changed(version=row.version + 1)

    return [
        (lane_scheduler, "run_round", go_on),
        (InMemoryLedger, "_row", row),
        (InMemoryLedger, "_stored", stored),
        (InMemoryLedger, "_check_cursor", lambda *_: None),
        (InMemoryLedger, "_claims", claims_without_key),
    ]


def claims_without_key(_ledger: InMemoryLedger, stored: Sequence[ManagedTx]) -> tuple[Any, Any]:
    """Enforce no unique key."""
    return {}, {(tx.signer.chain_id, a.signed.hash): tx.tx_id for tx in stored for a in tx.attempts}


def token_without_its_timeline() -> list[Change]:
    """Let a promoted replica continue with the tokens that it knows."""
    return [(InMemoryDatabase, "next_token", lambda _, lease: lease.token + 1)]


def forgotten_signers_are_new() -> list[Change]:
    """Treat a signer without a cursor as new."""
    return [(InMemoryLedger, "_is_history_young", lambda _: False)]


def doubt_in_memory() -> list[Change]:
    """Never store that a cursor is in doubt."""
    honest = InMemoryLedger._apply

    def apply(self: InMemoryLedger, write: LaneWrite, stored: Sequence[ManagedTx]) -> None:
        after = write.cursor_after
        sure = None if after is None else after.changed(is_doubted=False)
        honest(self, write.changed(cursor_after=sure), stored)

    return [(InMemoryLedger, "_apply", apply)]


def taken_before_its_end() -> list[Change]:
    def is_free(self: InMemoryLedger, lease: Any) -> bool:
        return bool(lease.expires_at_s - self._lease_duration_s / 2 < self.database.clock.now_s())

    return [(InMemoryLedger, "_is_free", is_free)]


def bump_overwrites() -> list[Change]:
    """Keep one attempt of a row: the newest."""
    honest = ledger_module.merged

    def merged(row: ManagedTx, change: TxChange) -> tuple[Attempt, ...]:
        return honest(row, change)[-1:]

    return [(ledger_module, "merged", merged)]


def no_journal() -> list[Change]:
    """Write no journal entry for the end of a transaction."""
    honest = InMemoryLedger._journal

    def journal(self: InMemoryLedger, write: LaneWrite, tx: ManagedTx | None, entry: JournalEntry) -> None:
        if entry.event != "Finish":
            honest(self, write, tx, entry)

    return [(InMemoryLedger, "_journal", journal)]


def handed_over_out_of_turn() -> list[Change]:
    """Hand over a new request without checking whether others wait."""
    honest = InMemoryLedger._accept_one

    def next_in_line(self: InMemoryLedger, request: NewRequest, _behind: tuple[int, ...]) -> Accepted:
        return honest(self, request, ())

    return [(InMemoryLedger, "_accept_one", next_in_line)]
