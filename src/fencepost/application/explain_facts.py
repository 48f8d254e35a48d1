"""Collect the facts for `explain.py`, and report on the whole cluster.

Every call is bounded: the database by `DATABASE_TIMEOUT_S`, the endpoints by `SURVEY_TIMEOUT_S`. A database or an endpoint
that does not answer is a fact, not an error. Nothing here needs the signer's lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TypeVar
from uuid import UUID

from fencepost.application.chain_view import ChainView
from fencepost.application.explain import (
    HARMLESS,
    ChainFacts,
    Explanation,
    Facts,
    LaneRules,
    database_unavailable,
    explain_signer,
    explain_tx,
)
from fencepost.application.membership import NodeView
from fencepost.application.ports import Chain, EndpointReport
from fencepost.application.queries import LanePlace, Part, Reader, SignerView, TxView
from fencepost.domain.ids import Address, Signer, TxHash
from fencepost.domain.states import TERMINAL, CursorState
from fencepost.domain.transaction import Fees
from fencepost.errors import RpcError

T = TypeVar("T")

SURVEY_TIMEOUT_S = 3.0
DATABASE_TIMEOUT_S = 5.0

# The status explains at most this many signers, and surveys the endpoints for so many of them at a time.
MAX_STATUS_SIGNERS = 50
MAX_PARALLEL_SURVEYS = 4

_ATTEMPTS = frozenset({Part.ATTEMPTS, Part.RECEIPT})


@dataclass(frozen=True, slots=True)
class ChainStatus:
    """Describe a chain as this node sees it."""

    chain_id: int
    reports: Sequence[EndpointReport]
    head_still_for_s: float | None
    silent_for_s: float


@dataclass(frozen=True, slots=True)
class SignerStatus:
    """Describe a signer that has work or a problem."""

    view: SignerView
    explanation: Explanation


@dataclass(frozen=True, slots=True)
class Status:
    """Describe the cluster as one node sees it: what is wrong comes first in each list."""

    at: datetime
    database_error: str | None
    chains: Sequence[ChainStatus]
    nodes: Sequence[NodeView] = ()
    signers: Sequence[SignerStatus] = ()
    more_signers: int = 0  # signers with work that were not looked at

    @property
    def problems(self) -> Sequence[SignerStatus]:
        """Return the signers whose cause needs an operator."""
        return [one for one in self.signers if is_problem(one.explanation)]


def is_problem(explanation: Explanation) -> bool:
    """Return whether the cause, or that of the transaction in front, does not end by itself."""
    blocked_by = explanation.blocked_by
    cause = explanation.cause if blocked_by is None else blocked_by.cause
    return cause not in HARMLESS


@dataclass(frozen=True, slots=True)
class Explainer:
    """Explain transactions and signers from the database and the endpoints."""

    reader: Reader
    chains: Mapping[int, Chain]
    views: Mapping[int, ChainView]
    nodes: Callable[[], Awaitable[Sequence[NodeView]]]
    addresses: Callable[[], Sequence[Address]]  # whose keys this node has
    rules_for: Callable[[Signer], LaneRules]
    node: str
    is_database_failure: Callable[[BaseException], bool]
    now: Callable[[], datetime] = field(default=lambda: datetime.now(UTC))

    async def tx(self, tx_id: UUID) -> tuple[TxView | None, Explanation | None]:
        """Return the transaction and why it is not final. Both are None if there is no such transaction.

        If the database does not answer, the transaction is None and the explanation says so.
        """
        try:
            async with asyncio.timeout(DATABASE_TIMEOUT_S):
                view = await self.reader.get(tx_id, _ATTEMPTS)
                facts = None if view is None else await self._from_database(view.signer, view)
        except Exception as error:  # noqa: BLE001 - all but failures of the database are raised again
            return None, self._database_failed(error)
        if view is None or facts is None:
            return None, None
        if view.state not in TERMINAL:
            facts = replace(facts, chain=await self._from_chain(facts))
        return view, explain_tx(facts)

    async def signer(self, signer: Signer) -> Explanation:
        """Explain why a signer does not send."""
        try:
            async with asyncio.timeout(DATABASE_TIMEOUT_S):
                facts = await self._from_database(signer, None)
        except Exception as error:  # noqa: BLE001 - all but failures of the database are raised again
            return self._database_failed(error)
        return explain_signer(replace(facts, chain=await self._from_chain(facts)))

    async def status(self, known: Sequence[Signer], addresses: Sequence[Address] | None) -> Status:
        """Report on the database, the chains, the nodes and every signer with work. `addresses` limits the signers."""
        chains = await asyncio.gather(*(self._chain_status(chain_id) for chain_id in sorted(self.chains)))
        try:
            async with asyncio.timeout(DATABASE_TIMEOUT_S):
                is_writable = await self.reader.ping()
                nodes = await self.nodes()
                views = await self.reader.signers(known, after=None, limit=500, addresses=addresses)
        except Exception as error:  # noqa: BLE001 - all but failures of the database are raised again
            failed = self._database_failed(error)
            return Status(self.now(), failed.summary, chains)
        busy = [view for view in views if _has_work(view) and view.signer.chain_id in self.chains]
        busy.sort(key=lambda view: (view.state is CursorState.ACTIVE, -view.in_flight - view.queued))
        turn = asyncio.Semaphore(MAX_PARALLEL_SURVEYS)

        async def explained(view: SignerView) -> SignerStatus:
            async with turn:
                return SignerStatus(view, await self.signer(view.signer))

        found = await asyncio.gather(*map(explained, busy[:MAX_STATUS_SIGNERS]))
        return Status(
            at=self.now(),
            database_error=None if is_writable else "the database is read-only",
            chains=chains,
            nodes=nodes,
            signers=sorted(found, key=lambda one: not is_problem(one.explanation)),
            more_signers=max(0, len(busy) - MAX_STATUS_SIGNERS),
        )

    def _database_failed(self, error: Exception) -> Explanation:
        """Explain a failure of the database; raise every other error."""
        if isinstance(error, TimeoutError):
            return database_unavailable(f"no answer within {DATABASE_TIMEOUT_S:g} s", self.now())
        if self.is_database_failure(error):
            return database_unavailable(f"{type(error).__name__}: {error}"[:300], self.now())
        raise error

    async def _from_database(self, signer: Signer, tx: TxView | None) -> Facts:
        rules = self.rules_for(signer)
        facts = Facts(
            now=self.now(),
            signer=await self.reader.signer(signer),
            chain=ChainFacts(signer.chain_id),
            rules=rules,
            tx=tx,
            has_key=signer.address in self.addresses(),
            node=self.node,
        )
        if tx is not None and tx.state in TERMINAL:
            return facts
        place = await self.reader.lane_place(signer, None if tx is None else tx.tx_id)
        head_id = _head_of(place, tx, is_strict=rules.is_strict)
        head = tx if tx is not None and head_id == tx.tx_id else None
        if head is None and head_id is not None:
            head = await self.reader.get(head_id, _ATTEMPTS)
        return replace(
            facts,
            head=head,
            ahead=_ahead_of(place, tx, is_strict=rules.is_strict),
            nodes=tuple(await self.nodes()),
            pause=place.pause,
            is_writable=await self.reader.ping(),
        )

    async def _from_chain(self, facts: Facts) -> ChainFacts:
        signer = facts.signer.signer
        chain = self.chains.get(signer.chain_id)
        if chain is None:
            return facts.chain
        txs = [tx for tx in (facts.tx, facts.head) if tx is not None and tx.tx_hash is not None]
        hashes = list(dict.fromkeys(TxHash(tx.tx_hash) for tx in txs if tx.tx_hash is not None))
        reports, suggested = await asyncio.gather(
            chain.survey(signer.address, hashes, timeout_s=SURVEY_TIMEOUT_S), _suggested(chain)
        )
        found = ChainFacts(
            signer.chain_id,
            reports=tuple(reports),
            surveyed=tuple(hashes),
            silent_for_s=chain.silent_for_s,
            suggested=suggested,
        )
        view = self.views.get(signer.chain_id)
        if view is None:
            return found
        return replace(
            found, head_still_for_s=_still_for_s(view, found), block_interval_s=view.block_interval_s
        )

    async def _chain_status(self, chain_id: int) -> ChainStatus:
        chain = self.chains[chain_id]
        reports = tuple(await chain.survey(None, (), timeout_s=SURVEY_TIMEOUT_S))
        view = self.views.get(chain_id)
        still_s = None if view is None else _still_for_s(view, ChainFacts(chain_id, reports))
        return ChainStatus(chain_id, reports, still_s, chain.silent_for_s)


async def _suggested(chain: Chain) -> Fees | None:
    try:
        async with asyncio.timeout(SURVEY_TIMEOUT_S):
            return (await chain.quote_fees()).normal
    except (RpcError, TimeoutError):
        return None


def _still_for_s(view: ChainView, found: ChainFacts) -> float | None:
    """Return for how long the head stands still; 0 if an endpoint has a newer one than this node's view."""
    if found.head is not None and found.head.number > view.view.head:
        return 0.0
    return view.head_still_for_s


def _head_of(place: LanePlace, tx: TxView | None, *, is_strict: bool) -> UUID | None:
    """Return the transaction that the others of the lane wait for.

    A transaction with a nonce waits for lower ones without a block. A request waits for those too; in strict mode also for
    those in a block, which must be final first; then for earlier requests.
    """
    if tx is not None and (tx.nonce is not None or place.unmined is not None):
        return place.unmined
    if place.unmined is not None:
        return place.unmined
    if place.mined is not None and (is_strict or tx is None):
        return place.mined
    return place.queued


def _ahead_of(place: LanePlace, tx: TxView | None, *, is_strict: bool) -> int:
    if tx is None:
        return 0
    mined = place.mined_count if is_strict and tx.nonce is None else 0
    return place.unmined_before + mined + place.queued_before


def _has_work(view: SignerView) -> bool:
    return bool(view.in_flight or view.queued or view.suspended) or view.state is not CursorState.ACTIVE
