"""Compare a restored database with the chain before a node is started, signer by signer.

`examine` reads only: it reports what a node would attach, which nonces it would fill, and what an operator has to decide.
`reconcile_signer` does it under the signer's lease, with the same steps as a lane (`attribution.py`), so that dying on any
line leaves what dying there in a lane leaves. Nothing is signed, and nothing is sent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

from fencepost.application.attribution import (
    MAX_PAST_NONCES,
    attribute_ahead,
    check_consumed,
    find_consumer,
    has_unsent,
    is_unused,
    lowest_block_for,
    search_past,
    survey,
)
from fencepost.application.lane import Lane, protect
from fencepost.application.nonce_sync import restore_doubt, start_sequence
from fencepost.application.ports import Cursor, LaneState
from fencepost.domain.ids import Signer, TxHash
from fencepost.domain.transaction_state import ManagedTx


@dataclass(frozen=True, slots=True)
class Attachment:
    """Hold a transaction on the chain and the request that it carried out."""

    nonce: int
    tx_hash: TxHash
    tx_id: UUID
    request_id: str | None


@dataclass(slots=True)
class SignerReport:
    """Compare the nonces that the chain has consumed with the ledger of one signer."""

    signer: Signer
    ours: int | None  # the next nonce, as the database has it; None: it has none
    on_chain: int  # the next nonce, as the chain has it
    pending: int  # the same with the pool
    attached: list[Attachment] = field(default_factory=list)
    filled: int = 0  # nonces that fillers take before a request gets one, because commits may be lost
    waiting: bool = False  # requests wait for a nonce
    decisions: list[str] = field(default_factory=list)  # what an operator has to decide, and why

    @property
    def verdict(self) -> str:
        """Return one word for the report: decide, attach, fill or ok."""
        if self.decisions:
            return "decide"
        if self.attached:
            return "attach"
        return "fill" if self.filled else "ok"


async def examine(lane: Lane) -> SignerReport:
    """Read the signer and the chain, and report what a node would do. Writes nothing, and needs no lease."""
    state = await lane.ports.ledger.load(lane.signer, queue_limit=lane.settings.read_ahead)
    lane.adopt(state, queue_limit=lane.settings.read_ahead)
    report = await _begin_report(lane, state)
    cursor = lane.cursor
    start = await _start_of(lane, report) if cursor is None else cursor.next_nonce
    if start is not None:
        await _examine_ahead(lane, report, cursor, start)
    for tx in await _unexplained(lane, report.on_chain):
        change, alarm = await find_consumer(lane, tx)
        if change is not None:
            report.attached.append(_attachment(change.after))
        elif alarm is not None:
            report.decisions.append(f"transaction {tx.tx_id}: {alarm}")
    if report.attached:  # it proves that commits were lost
        report.filled = lane.settings.window
    return report


def _attachment(tx: ManagedTx) -> Attachment:
    return Attachment(tx.held_nonce(), tx.latest.signed.hash, tx.tx_id, tx.request_id)


async def _begin_report(lane: Lane, state: LaneState) -> SignerReport:
    latest = await lane.ports.chain.nonce(lane.signer.address, "latest")
    pending = max(latest, await lane.ports.chain.nonce(lane.signer.address, "pending"))
    cursor = lane.cursor
    report = SignerReport(
        lane.signer, None if cursor is None else cursor.next_nonce, on_chain=latest, pending=pending
    )
    report.waiting = await has_unsent(lane)
    is_doubted = state.is_from_copy if cursor is None else cursor.is_doubted or state.is_from_copy
    report.filled = lane.settings.window if is_doubted and report.waiting else 0
    if lane.is_protected and cursor is not None:
        report.decisions.append(f"it is in PROTECT: {cursor.reason}")
    return report


async def _start_of(lane: Lane, report: SignerReport) -> int | None:
    """Return the lowest nonce that a request without a stored cursor has consumed."""
    lowest = 0 if lane.settings.start_from == "chain" else lane.settings.start_from
    past = await search_past(lane, lowest, report.on_chain)
    if past.problem is not None:
        report.decisions.append(past.problem)
    if past.is_behind:
        report.decisions.append("the endpoint lags behind the chain: check again in a moment")
    return past.first_of_ours


async def _examine_ahead(lane: Lane, report: SignerReport, cursor: Cursor | None, start: int) -> None:
    stop = min(report.on_chain, start + MAX_PAST_NONCES)
    if stop <= start:
        if report.pending > start:
            report.decisions.append(
                f"the nonces {start} to {report.pending - 1} wait in the pool: check again when they are mined"
            )
        return
    findings = await survey(
        lane.ports.chain,
        lane.ports.ledger,
        lane.signer,
        range(start, stop),
        lowest=await lowest_block_for(lane.ports.ledger, lane.signer, list(lane.in_flight.values()), start),
        max_blocks=lane.settings.search_blocks,
        by_time=is_unused(cursor),
    )
    report.attached += [
        Attachment(nonce, match.mined.hash, match.request.tx_id, match.request.request_id)
        for nonce, match in sorted(findings.matches.items())
    ]
    if not lane.settings.shared_key:
        report.decisions += [
            f"{mined} matches no stored request" for _, mined in sorted(findings.foreign.items())
        ]
    report.decisions += [findings.describe_unclear(nonce) for nonce in sorted(findings.unclear)]
    missing = sorted(set(findings.nonces) - findings.found.by_nonce.keys())
    if missing:
        report.decisions.append(
            f"{len(missing)} nonces from {missing[0]} on were consumed by transactions that were not found:"
            f" {findings.found.searched}"
        )


async def _unexplained(lane: Lane, latest: int) -> list[ManagedTx]:
    """Return managed transactions whose nonce is consumed and none of whose attempts has a receipt."""
    below = [tx for tx in lane.unmined if tx.held_nonce() < latest and tx.attempts]
    hashes = [attempt.signed.hash for tx in below for attempt in tx.attempts]
    receipts = await lane.ports.chain.receipts(hashes)
    mined = {receipt.tx_hash for receipt in receipts if receipt is not None}
    return [tx for tx in below if not any(attempt.signed.hash in mined for attempt in tx.attempts)]


async def reconcile_signer(lane: Lane) -> SignerReport:
    """Attach what the chain has carried out, and protect the signer if an operator has to decide.

    The lane must hold the signer's lease.
    """
    state = await lane.ports.ledger.load(lane.signer, queue_limit=lane.settings.read_ahead)
    lane.adopt(state, queue_limit=lane.settings.read_ahead)
    restore_doubt(lane, state)
    report = await _begin_report(lane, state)
    before = {tx.tx_id: len(tx.attempts) for tx in lane.in_flight.values()}
    if lane.cursor is None and await _start_of(lane, report) is not None:
        await start_sequence(lane)
    if lane.cursor is not None and not lane.is_protected:
        obstacle = await attribute_ahead(lane, report.on_chain, skips_foreign=lane.settings.shared_key)
        if obstacle is not None:
            report.decisions.append(obstacle.reason)
            await protect(lane, f"found by restore reconcile: {obstacle.reason}")
    for tx in await _unexplained(lane, report.on_chain):
        alarm = None if tx.tx_id not in before else await check_consumed(lane, tx)
        if alarm is not None:
            report.decisions.append(alarm)
            await protect(lane, f"found by restore reconcile: {alarm}")
    report.attached += [
        _attachment(tx) for tx in lane.in_flight.values() if len(tx.attempts) > before.get(tx.tx_id, 0)
    ]
    if report.attached:
        report.filled = lane.settings.window
    report.waiting = await has_unsent(lane)
    return report
