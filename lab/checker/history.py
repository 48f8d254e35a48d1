"""The history of a run as plain values, which tests can also build by hand.

It has the rows of the database, the blocks of the chain, what was sent, and what was acknowledged. Times are seconds on one
wall clock. An `effect` is what a transaction does, as text: transactions with the same effect have the same intent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


def effect_of(*, to: str | None, value_wei: int, data: str) -> str:
    """Return the effect of a call."""
    return f"{(to or 'deploy').lower()} {value_wei} {data.lower() or '0x'}"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Which database transactions had ended when the snapshot was taken."""

    xmin: int
    xmax: int
    running: frozenset[int] = frozenset()

    @classmethod
    def parse(cls, text: str) -> Snapshot:
        low, high, running = text.split(":")
        return cls(int(low), int(high), frozenset(int(xid) for xid in running.split(",") if xid))

    def saw(self, xid: int) -> bool:
        """Return whether the database transaction had ended."""
        return xid < self.xmin or (xid < self.xmax and xid not in self.running)


@dataclass(frozen=True, slots=True)
class TermRow:
    signer: str
    token: int
    node: str
    began_s: float
    sealed: Snapshot


@dataclass(frozen=True, slots=True)
class JournalLine:
    """A journal line. `committed_s` is its commit time if the server keeps it, else its write time."""

    id: int
    xid: int
    signer: str
    event: str
    tx_id: str | None = None
    state: str | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)
    token: int | None = None
    committed_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TxRow:
    tx_id: str
    signer: str
    request_id: str | None
    state: str
    effect: str
    nonce: int | None = None
    tx_hash: str | None = None
    block_number: int | None = None
    block_hash: str | None = None
    token: int | None = None
    xid: int = 0


@dataclass(frozen=True, slots=True)
class AttemptRow:
    tx_id: str
    number: int
    signer: str
    nonce: int
    purpose: str
    effect: str
    fee_cap_wei: int
    tip_wei: int
    hash: str
    token: int
    xid: int = 0
    tx_type: int = 2


@dataclass(frozen=True, slots=True)
class CursorRow:
    signer: str
    start_nonce: int
    next_nonce: int
    state: str = "ACTIVE"
    token: int | None = None
    xid: int = 0


@dataclass(frozen=True, slots=True)
class ChainTx:
    hash: str
    signer: str
    nonce: int
    effect: str


@dataclass(frozen=True, slots=True)
class ChainBlock:
    number: int
    hash: str
    txs: tuple[ChainTx, ...] = ()


@dataclass(frozen=True, slots=True)
class Sent:
    """Bytes that went to the chain, and the time just before."""

    at_s: float
    tx: ChainTx
    via: str = ""


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The acknowledgement of a request: its id and its transaction."""

    at_s: float
    signer: str
    request_id: str
    tx_id: str
    effect: str


@dataclass(frozen=True, slots=True)
class FencedNote:
    """A node logged that this term is over."""

    at_s: float
    signer: str
    token: int


@dataclass(frozen=True, slots=True)
class History:
    """Everything that the checker compares."""

    required_depth: int
    terms: tuple[TermRow, ...] = ()
    lines: tuple[JournalLine, ...] = ()  # by id
    txs: tuple[TxRow, ...] = ()
    attempts: tuple[AttemptRow, ...] = ()
    cursors: tuple[CursorRow, ...] = ()
    blocks: tuple[ChainBlock, ...] = ()  # canonical, by number
    pool: tuple[ChainTx, ...] = ()
    sent: tuple[Sent, ...] = ()  # by time
    acknowledged: tuple[Acknowledged, ...] = ()
    fenced: tuple[FencedNote, ...] = ()
    victims: frozenset[str] = frozenset()  # signers whose key was used outside Fencepost on purpose
    foreign: frozenset[str] = frozenset()  # hashes of those transactions
    all_must_mine: bool = False  # every request was valid, and no operator cancelled one
    quiet_within_s: float | None = None  # None: the system did not become quiet in time
    late_send_s: float = 0.0  # how long a send in progress may have been delayed
