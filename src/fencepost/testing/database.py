"""Hold the rows of the in-memory ledger, and define what a restart, a fail-over or a restore does to them.

A copy of the rows is what a replica has received. After a fail-over the replica continues under a new timeline, and its
tokens are larger than all tokens before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final, Protocol
from uuid import UUID

from fencepost.application.ports import Command, Cursor
from fencepost.domain.ids import Signer, TxHash
from fencepost.domain.lease import HISTORY_BITS
from fencepost.domain.states import State
from fencepost.domain.transaction_state import ManagedTx
from fencepost.runtime.clock import MonotonicClock

_NO_HOLDER: Final = UUID(int=0)


class TimeSource(Protocol):
    """Anything with a current time."""

    def now_s(self) -> float: ...


@dataclass(slots=True)
class Lease:
    """The lease row of one signer."""

    incarnation: UUID = _NO_HOLDER
    node: str = ""
    token: int = 0
    expires_at_s: float = float("-inf")


@dataclass(frozen=True, slots=True)
class JournalRow:
    """One row of the journal."""

    signer: Signer
    tx_id: UUID | None
    event: str
    state: State | None
    detail: Mapping[str, Any]
    node: str
    token: int | None
    timeline: int = 0
    at: datetime = field(default_factory=lambda: datetime.now(UTC), compare=False)


@dataclass(slots=True)
class StoredCommand:
    """An operator command and its outcome."""

    signer: Signer
    command: Command
    outcome: str | None = None
    applied: bool | None = None


@dataclass(slots=True)
class InMemoryDatabase:
    """The rows that all in-memory ledgers of a test share."""

    clock: TimeSource = field(default_factory=MonotonicClock)
    leases: dict[Signer, Lease] = field(default_factory=dict)
    cursors: dict[Signer, Cursor] = field(default_factory=dict)
    cursor_tokens: dict[Signer, int] = field(
        default_factory=dict
    )  # token of the term that moved the cursor last
    txs: dict[UUID, ManagedTx] = field(default_factory=dict)
    digests: dict[UUID, bytes] = field(default_factory=dict)
    requests: dict[tuple[Signer, str], UUID] = field(default_factory=dict)
    nonces: dict[tuple[Signer, int], UUID] = field(default_factory=dict)
    hashes: dict[tuple[int, TxHash], UUID] = field(default_factory=dict)
    commands: dict[int, StoredCommand] = field(default_factory=dict)
    unreadable: dict[UUID, str] = field(default_factory=dict)  # rows that this version can't read, and why
    journal: list[JournalRow] = field(default_factory=list)
    journal_removed: int = 0  # rows that were removed from the front of the journal
    timeline: int = 0
    history_began_s: float = float("-inf")
    newest_copy: int = -1  # the timeline that the last restored copy began
    session: int = 0  # connections of an earlier session are broken

    def of_signer(self, signer: Signer) -> list[ManagedTx]:
        """Return the transactions of a signer."""
        return [tx for tx in self.txs.values() if tx.signer == signer]

    def journal_of(self, tx_id: UUID | None) -> list[JournalRow]:
        """Return the journal rows of a transaction; None selects those of signers."""
        return [row for row in self.journal if row.tx_id == tx_id]

    def outcome(self, command_id: int) -> str | None:
        """Return the outcome of an operator command; None while it is open."""
        return self.commands[command_id].outcome

    def next_token(self, lease: Lease) -> int:
        """Return the next fencing token of a lease."""
        return max(lease.token, self.timeline << HISTORY_BITS) + 1

    # ---- restart, fail-over, restore

    def copied(self) -> InMemoryDatabase:
        """Return a copy of the rows, as a replica has them now."""
        return replace(
            self,
            leases={signer: replace(lease) for signer, lease in self.leases.items()},
            cursors=dict(self.cursors),
            cursor_tokens=dict(self.cursor_tokens),
            txs=dict(self.txs),
            digests=dict(self.digests),
            requests=dict(self.requests),
            nonces=dict(self.nonces),
            hashes=dict(self.hashes),
            commands={number: replace(command) for number, command in self.commands.items()},
            journal=list(self.journal),
        )

    def restart(self) -> None:
        """Break all sessions."""
        self.session += 1

    def fail_over(self, replica: InMemoryDatabase) -> None:
        """Continue with a replica's rows under a new timeline; later commits are lost."""
        self.leases, self.cursors, self.cursor_tokens = (
            replica.leases,
            replica.cursors,
            replica.cursor_tokens,
        )
        self.txs, self.digests, self.requests = replica.txs, replica.digests, replica.requests
        self.nonces, self.hashes = replica.nonces, replica.hashes
        self.commands, self.journal = replica.commands, replica.journal
        self.journal_removed = replica.journal_removed
        self.timeline += 1
        self.history_began_s = self.clock.now_s()
        self.restart()

    def restore(self, copy: InMemoryDatabase) -> None:
        """Continue with an older copy, as after a restored backup."""
        self.fail_over(copy)
        self.newest_copy = self.timeline

    def put_back(self, snapshot: InMemoryDatabase) -> None:
        """Continue with an older disk snapshot: only its rows reveal that it is older."""
        timeline, began_s = self.timeline, self.history_began_s
        self.fail_over(snapshot)
        self.timeline, self.history_began_s = timeline, began_s
