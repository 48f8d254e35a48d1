"""Steps of a transaction as a lane commits them, written to a ledger of either kind."""

from __future__ import annotations

from functools import partial

from fakes.ledger_lab import ALICE, attempt, new, tx_hash
from fencepost.application.ports import Cursor, LaneWrite, Ledger, TxChange, Written
from fencepost.domain import transaction_state
from fencepost.domain.confirmations import BlockRef
from fencepost.domain.ids import BlockHash, Signer
from fencepost.domain.lease import Term
from fencepost.domain.send_result import SendCategory, SendResult
from fencepost.domain.transaction_state import JournalEntry, ManagedTx, Receipt, Transition

APPLIED = Written(lease_ok=True, applied=True)
MOVED = Written(lease_ok=True, applied=False)
FENCED = Written(lease_ok=False, applied=False)
ACCEPTED = SendResult(SendCategory.ACCEPTED)


def block(number: int, fork: str = "") -> BlockRef:
    return BlockRef(number, BlockHash(tx_hash(f"block {number}{fork}")))


def receipt_of(tx: ManagedTx, at: BlockRef) -> Receipt:
    raw = {"status": "0x0", "gasUsed": "0x5208", "logs": []}
    return Receipt(tx.latest.signed.hash, at, succeeded=False, gas_used=21_000, raw=raw)


def change(tx: ManagedTx, *steps: partial[Transition]) -> TxChange:
    after = tx
    entries: list[JournalEntry] = []
    for step in steps:
        taken = step(after)
        after = taken.tx
        entries += taken.entries
    return TxChange(tx, after.changed(journal_count=tx.journal_count + len(entries)), tuple(entries))


def take(tx: ManagedTx, nonce: int, name: str | None = None) -> TxChange:
    return change(
        tx, partial(transaction_state.assign_nonce, nonce=nonce, attempt=attempt(name or f"{tx.tx_id}"))
    )


async def held(ledger: Ledger, *request_ids: str, signer: Signer = ALICE) -> tuple[Term, list[ManagedTx]]:
    await ledger.accept([new(name, signer=signer) for name in request_ids])
    (term,) = await ledger.acquire([signer])
    return term, list((await ledger.load(signer, queue_limit=100)).queue)


async def allocated(ledger: Ledger, *request_ids: str) -> tuple[Term, list[ManagedTx]]:
    """Store requests with the nonces 0, 1, …"""
    term, queue = await held(ledger, *request_ids)
    changes = tuple(take(tx, nonce) for nonce, tx in enumerate(queue))
    write = LaneWrite(term, changes, cursor_after=Cursor(len(queue), 0))
    assert await ledger.commit(write) == APPLIED
    return term, list((await ledger.load(ALICE, queue_limit=100)).in_flight)


async def apply(ledger: Ledger, term: Term, tx: ManagedTx, *steps: partial[Transition]) -> ManagedTx:
    assert await ledger.commit(LaneWrite(term, (change(tx, *steps),))) == APPLIED
    return await stored(ledger, tx)


async def stored(ledger: Ledger, tx: ManagedTx) -> ManagedTx:
    found = await ledger.get(tx.tx_id)
    assert found is not None
    return found
