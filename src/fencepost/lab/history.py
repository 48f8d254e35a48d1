"""A history: everything that a run left behind, as plain values, so that one can be made by hand as well.

Rows of the database, blocks of the chain, what was sent and what was acknowledged. Times are seconds of one wall clock.
An `effect` is what a transaction does to the world, as one text: two transactions with the same effect are the same wish.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


def effect_of(*, to: str | None, value_wei: int, data: str) -> str:
    return f"{(to or 'deploy').lower()} {value_wei} {data.lower() or '0x'}"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Which transactions of the database had ended when it was taken."""

    xmin: int
    xmax: int
    running: frozenset[int] = frozenset()

    @classmethod
    def parse(cls, text: str) -> Snapshot:
        low, high, running = text.split(":")
        return cls(int(low), int(high), frozenset(int(xid) for xid in running.split(",") if xid))

    def saw(self, xid: int) -> bool:
        return xid < self.xmin or (xid < self.xmax and xid not in self.running)


@dataclass(frozen=True, slots=True)
class TermRow:
    signer: str
    token: int
    node: str
    began_s: float
    sealed: Snapshot


@dataclass(frozen=True, slots=True)
class Line:
    """Of the journal. `committed_s` is when its transaction ended, where the server keeps that; else when it was written."""

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
    """Bytes that went to the chain, at the moment before they did."""

    at_s: float
    tx: ChainTx
    via: str = ""


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """What a caller was told: this request is this transaction."""

    at_s: float
    signer: str
    request_id: str
    tx_id: str
    effect: str


@dataclass(frozen=True, slots=True)
class FencedNote:
    """A node said that this term is over."""

    at_s: float
    signer: str
    token: int


@dataclass(frozen=True, slots=True)
class History:
    required_depth: int
    terms: tuple[TermRow, ...] = ()
    lines: tuple[Line, ...] = ()  # by id
    txs: tuple[TxRow, ...] = ()
    attempts: tuple[AttemptRow, ...] = ()
    cursors: tuple[CursorRow, ...] = ()
    blocks: tuple[ChainBlock, ...] = ()  # canonical, by number
    pool: tuple[ChainTx, ...] = ()
    sent: tuple[Sent, ...] = ()  # by time
    acknowledged: tuple[Acknowledged, ...] = ()
    fenced: tuple[FencedNote, ...] = ()
    victims: frozenset[str] = frozenset()  # signers whose key a stranger used on purpose
    strangers: frozenset[str] = frozenset()  # hashes of that stranger
    all_must_mine: bool = False  # nothing that was asked for was wrong, and nobody took anything back
    quiet_within_s: float | None = None  # None: it did not become quiet within the bound
    late_send_s: float = 0.0  # how long a send that was under way may have been held up
