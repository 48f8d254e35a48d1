"""The rows of the database in memory, and its two ways to go: a restart breaks the sessions, a fail-over may lose commits.

A copy of the rows is what a replica had received; promoted, it goes on from there under a new timeline, and the tokens
that it gives stand above all that were given before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol
from uuid import UUID

from fencepost.application.ports import Command, Cursor
from fencepost.domain.ids import Signer, TxHash
from fencepost.domain.lease import HISTORY_BITS
from fencepost.domain.managed import ManagedTx
from fencepost.domain.states import State

_NOBODY: Final = UUID(int=0)


class Now(Protocol):
    def now_s(self) -> float: ...


@dataclass(slots=True)
class Lease:
    incarnation: UUID = _NOBODY
    node: str = ""
    token: int = 0
    expires_at_s: float = float("-inf")


@dataclass(frozen=True, slots=True)
class JournalRow:
    signer: Signer
    tx_id: UUID | None
    event: str
    state: State | None
    detail: Mapping[str, Any]
    node: str
    token: int | None


@dataclass(slots=True)
class Asked:
    signer: Signer
    command: Command
    outcome: str | None = None


@dataclass(slots=True)
class FakeDatabase:
    clock: Now
    leases: dict[Signer, Lease] = field(default_factory=dict)
    cursors: dict[Signer, Cursor] = field(default_factory=dict)
    cursor_tokens: dict[Signer, int] = field(default_factory=dict)  # of the term that moved it last
    txs: dict[UUID, ManagedTx] = field(default_factory=dict)
    digests: dict[UUID, bytes] = field(default_factory=dict)
    requests: dict[tuple[Signer, str], UUID] = field(default_factory=dict)
    nonces: dict[tuple[Signer, int], UUID] = field(default_factory=dict)
    hashes: dict[tuple[int, TxHash], UUID] = field(default_factory=dict)
    asked: dict[int, Asked] = field(default_factory=dict)
    journal: list[JournalRow] = field(default_factory=list)
    timeline: int = 0
    history_began_s: float = float("-inf")
    session: int = 0  # connections of an earlier one are broken

    def of_signer(self, signer: Signer) -> list[ManagedTx]:
        return [tx for tx in self.txs.values() if tx.signer == signer]

    def journal_of(self, tx_id: UUID | None) -> list[JournalRow]:
        return [row for row in self.journal if row.tx_id == tx_id]

    def outcome(self, command_id: int) -> str | None:
        return self.asked[command_id].outcome

    def next_token(self, lease: Lease) -> int:
        return max(lease.token, self.timeline << HISTORY_BITS) + 1

    # ---- going down and coming back

    def copied(self) -> FakeDatabase:
        """As a replica has it at this moment."""
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
            asked={number: replace(asked) for number, asked in self.asked.items()},
            journal=list(self.journal),
        )

    def restart(self) -> None:
        self.session += 1

    def fail_over(self, replica: FakeDatabase) -> None:
        """What was committed after the copy was made is gone."""
        self.leases, self.cursors, self.cursor_tokens = (
            replica.leases,
            replica.cursors,
            replica.cursor_tokens,
        )
        self.txs, self.digests, self.requests = replica.txs, replica.digests, replica.requests
        self.nonces, self.hashes = replica.nonces, replica.hashes
        self.asked, self.journal = replica.asked, replica.journal
        self.timeline += 1
        self.history_began_s = self.clock.now_s()
        self.restart()
