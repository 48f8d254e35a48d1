"""Time the stages of a transaction, one after the other, without a gap between them.

The methods of the ports are wrapped in the profiled process only; the product has no code for it.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any
from uuid import UUID

from fencepost.adapters.evm.chain import EvmChain
from fencepost.adapters.postgres.ledger import PostgresLedger
from fencepost.adapters.signers import KeyRing
from fencepost.application import signing
from fencepost.application.lane import Lane
from fencepost.application.ports import LaneWrite, NewRequest, ToSign, TxChange
from fencepost.domain.ids import Address, TxHash
from fencepost.domain.states import State
from fencepost.domain.transaction import SignedTx
from fencepost.domain.transaction_state import ManagedTx, Purpose

# In order; each ends where the next begins.
STAGES = ("accept commit", "wait", "price", "sign", "nonce commit", "send", "block", "receipt", "end commit")

_MAX_TXS = 200_000


@dataclass(frozen=True, slots=True)
class Span:
    """Start and end of one call."""

    began_s: float
    ended_s: float


@dataclass(slots=True)
class _TxTimes:
    """When a transaction passed each stage."""

    accept: Span
    priced_s: float = 0.0
    sign: Span | None = None
    committed_s: float = 0.0
    tx_hash: TxHash | None = None


@dataclass(slots=True)
class StageTimer:
    """Collect the stage times of finished transactions."""

    on_first: Callable[[], None]  # the first request is about to be stored
    finished: list[tuple[float, ...]] = field(default_factory=list)  # seconds, one entry per stage
    # Number of nonces in a commit, its seconds, and the seconds since the price was quoted.
    allocations: list[tuple[int, float, float]] = field(default_factory=list)
    _has_begun: bool = False
    _ways: dict[UUID, _TxTimes] = field(default_factory=dict)
    _quotes_s: dict[Address, float] = field(default_factory=dict)
    _signs: dict[Address, Span] = field(default_factory=dict)
    _sends: dict[TxHash, Span] = field(default_factory=dict)
    _receipts: dict[TxHash, Span] = field(default_factory=dict)

    def install(self) -> None:
        """Wrap the methods of the ports."""
        for owner, method, on_done in (
            (PostgresLedger, "accept", self._accepted),
            (PostgresLedger, "commit", self._committed),
            (PostgresLedger, "commit_each", self._committed_each),
            (KeyRing, "sign", self._signed),
            (KeyRing, "sign_each", self._signed_each),
            (EvmChain, "send", self._sent),
            (EvmChain, "receipts", self._looked_up),
        ):
            _put(owner, method, _timed(getattr(owner, method), on_done))
        _put(PostgresLedger, "accept", self._begun_by(PostgresLedger.accept))
        real = signing.quote

        async def quote(lane: Lane, purpose: Purpose = Purpose.INTENT, tx: ManagedTx | None = None) -> Any:
            self._quotes_s[lane.signer.address] = time.monotonic()
            return await real(lane, purpose, tx)

        signing.quote = quote

    def _begun_by(self, real: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        @wraps(real)
        async def call(*args: Any) -> Any:
            if not self._has_begun:
                self._has_begun = True
                self.on_first()
            return await real(*args)

        return call

    def _accepted(self, span: Span, requests: Sequence[NewRequest]) -> None:
        if len(self._ways) < _MAX_TXS:
            self._ways |= {request.tx_id: _TxTimes(span) for request in requests}

    def _signed(self, span: Span, address: Address, _txs: object) -> None:
        self._signs[address] = span

    def _signed_each(self, span: Span, wanted: Sequence[ToSign]) -> None:
        for address, txs in wanted:
            self._signed(span, address, txs)

    def _sent(self, span: Span, txs: Sequence[SignedTx]) -> None:
        for tx in txs:
            self._sends.setdefault(tx.hash, span)

    def _looked_up(self, span: Span, hashes: Sequence[TxHash]) -> None:
        for tx_hash in hashes:
            self._receipts[tx_hash] = span

    def _committed_each(self, span: Span, writes: Sequence[LaneWrite]) -> None:
        for write in writes:
            self._committed(span, write)

    def _committed(self, span: Span, write: LaneWrite) -> None:
        address = write.term.signer.address
        given = sum(
            change.before.state is State.QUEUED and change.after.nonce is not None for change in write.changes
        )
        if given and address in self._quotes_s:
            since_price_s = span.ended_s - self._quotes_s[address]
            self.allocations.append((given, span.ended_s - span.began_s, since_price_s))
        for change in write.changes:
            way = self._ways.get(change.after.tx_id)
            if way is None:
                continue
            if change.before.state is State.QUEUED and change.after.attempts:
                self._allocated(way, span, change, address)
            elif change.after.is_terminal:
                del self._ways[change.after.tx_id]
                self._end(way, span)

    def _allocated(self, way: _TxTimes, span: Span, change: TxChange, address: Address) -> None:
        way.sign = self._signs[address]
        way.priced_s = self._quotes_s[address]
        way.committed_s = span.ended_s
        way.tx_hash = change.after.latest.signed.hash

    def _end(self, way: _TxTimes, end: Span) -> None:
        send = self._sends.pop(way.tx_hash, None) if way.tx_hash else None
        receipt = self._receipts.pop(way.tx_hash, None) if way.tx_hash else None
        if way.sign is None or send is None or receipt is None:
            return  # it was rejected or replaced
        times_s = (
            way.accept.began_s,
            way.accept.ended_s,
            way.priced_s,
            way.sign.began_s,
            way.sign.ended_s,
            way.committed_s,
            send.ended_s,
            receipt.began_s,
            receipt.ended_s,
            end.ended_s,
        )
        self.finished.append(tuple(b - a for a, b in itertools.pairwise(times_s)))


def _put(owner: type, method: str, other: Callable[..., Awaitable[Any]]) -> None:
    setattr(owner, method, other)


def _timed(
    real: Callable[..., Awaitable[Any]], on_done: Callable[..., None]
) -> Callable[..., Awaitable[Any]]:
    @wraps(real)
    async def call(port: Any, *args: Any, **named: Any) -> Any:
        began_s = time.monotonic()
        answer = await real(port, *args, **named)
        on_done(Span(began_s, time.monotonic()), *args, **named)
        return answer

    return call
