"""Flaws of the statements: what the database does not check, or checks at the wrong moment."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from fencepost.application import step
from fencepost.application.lane import Lane
from fencepost.application.ports import Accepted, LaneWrite, NewRequest, TxChange, Written
from fencepost.domain.lease import Term
from fencepost.domain.managed import Attempt, Entry, ManagedTx
from fencepost.lab.sim import ledger as ledger_module
from fencepost.lab.sim import stored as stored_module
from fencepost.lab.sim.database import FakeDatabase
from fencepost.lab.sim.ledger import FakeLedger
from fencepost.lab.sim.ports import LedgerPort
from fencepost.runtime import lanes as lanes_module
from mutants.planting import Change


def exists_then_write() -> list[Change]:
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


def no_fence() -> list[Change]:
    return [(FakeLedger, "commit", _unfenced)]


def renews_anybody() -> list[Change]:
    async def renew(self: FakeLedger, terms: Sequence[Term]) -> Sequence[Term]:
        await asyncio.sleep(0)
        for term in terms:
            self.database.leases[term.signer].expires_at_s = (
                self.database.clock.now_s() + self._lease_duration_s
            )
        return list(terms)

    return [(FakeLedger, "renew", renew)]


def own_clock_takes() -> list[Change]:
    def is_free(self: FakeLedger, lease: Any) -> bool:
        return bool(lease.expires_at_s + self._skew_allowance_s < self._clock.now_s())

    return [(FakeLedger, "_is_free", is_free)]


def own_clock_renews() -> list[Change]:
    honest = FakeLedger.renew

    async def renew(self: FakeLedger, terms: Sequence[Term]) -> Sequence[Term]:
        standing = await honest(self, terms)
        for term in standing:
            self.database.leases[term.signer].expires_at_s = self._clock.now_s() + self._lease_duration_s
        return standing

    return [(FakeLedger, "renew", renew)]


def name_keeps_its_token() -> list[Change]:
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


def lease_rows_deleted() -> list[Change]:
    async def release(self: FakeLedger, terms: Sequence[Term]) -> None:
        await asyncio.sleep(0)
        for term in terms:
            if self._stands(term):
                del self.database.leases[term.signer]

    return [(FakeLedger, "release", release)]


def nonce_first_row_later() -> list[Change]:
    async def commit(self: FakeLedger, write: LaneWrite) -> Written:
        stands = self._stands(write.term)
        if stands and write.cursor_after is not None and write.changes:
            self.database.cursors[write.term.signer] = write.cursor_after
            await asyncio.sleep(1.0)  # the process may die here
            write = write.changed(cursor_after=None)
        return await _honest_commit(self, write)

    return [(FakeLedger, "commit", commit)]


def no_request_key() -> list[Change]:
    honest = FakeLedger._store_new

    def store(self: FakeLedger, request: NewRequest) -> ManagedTx:
        stored = honest(self, request)
        self.database.requests.clear()
        return stored

    return [(FakeLedger, "_store_new", store)]


def lost_answer_is_no() -> list[Change]:
    """A commit whose answer is lost counts as not made, and nothing compares what is there with what was expected."""
    honest = step.step

    async def go_on(lane: Lane, at_most: int) -> float | None:
        try:
            return await honest(lane, at_most)
        except OSError:
            return 0.5

    def row(self: FakeLedger, change: TxChange) -> ManagedTx:
        row = self.database.txs.get(change.before.tx_id)
        if row is None:
            raise stored_module.Refused
        return row

    def stored(_: FakeLedger, change: TxChange, row: ManagedTx) -> ManagedTx:
        return change.after.changed(version=row.version + 1)

    return [
        (lanes_module, "step", go_on),
        (FakeLedger, "_row", row),
        (FakeLedger, "_stored", stored),
        (FakeLedger, "_check_cursor", lambda *_: None),
        (FakeLedger, "_claims", claims_without_key),
    ]


def claims_without_key(_ledger: FakeLedger, stored: Sequence[ManagedTx]) -> tuple[Any, Any]:
    """No unique key refuses anything."""
    return {}, {(tx.signer.chain_id, a.signed.hash): tx.tx_id for tx in stored for a in tx.attempts}


def token_without_its_timeline() -> list[Change]:
    """A promoted replica counts on from what it knows."""
    return [(FakeDatabase, "next_token", lambda _, lease: lease.token + 1)]


def forgotten_signers_are_new() -> list[Change]:
    """Who has no cursor never had one."""
    return [(FakeLedger, "_is_history_young", lambda _: False)]


def doubt_in_memory() -> list[Change]:
    """Nobody writes down that a cursor is doubted."""
    honest = FakeLedger._apply

    def apply(self: FakeLedger, write: LaneWrite, stored: Sequence[ManagedTx]) -> None:
        after = write.cursor_after
        sure = None if after is None else after.changed(is_doubted=False)
        honest(self, write.changed(cursor_after=sure), stored)

    return [(FakeLedger, "_apply", apply)]


def taken_before_its_end() -> list[Change]:
    def is_free(self: FakeLedger, lease: Any) -> bool:
        return bool(lease.expires_at_s - self._lease_duration_s / 2 < self.database.clock.now_s())

    return [(FakeLedger, "_is_free", is_free)]


def bump_overwrites() -> list[Change]:
    """One attempt a row: the newest."""

    def merged(row: ManagedTx, change: TxChange) -> tuple[Attempt, ...]:
        return stored_module.merged(row, change)[-1:]

    return [(ledger_module, "merged", merged)]


def no_journal() -> list[Change]:
    """It ends, and nobody is told."""
    honest = FakeLedger._journal

    def journal(self: FakeLedger, write: LaneWrite, tx: ManagedTx | None, entry: Entry) -> None:
        if entry.event != "Finish":
            honest(self, write, tx, entry)

    return [(FakeLedger, "_journal", journal)]


def handed_over_out_of_turn() -> list[Change]:
    """Whoever accepts a request does not look whether others wait."""
    honest = FakeLedger._accept_one

    def next_in_line(self: FakeLedger, request: NewRequest, _behind: tuple[int, ...]) -> Accepted:
        return honest(self, request, ())

    return [(FakeLedger, "_accept_one", next_in_line)]
