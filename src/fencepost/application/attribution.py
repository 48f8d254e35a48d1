"""Find out which requests consumed a signer's nonces before a waiting request gets a new one.

The chain is ahead of the ledger when the database was restored from an older copy (a dump, a disk snapshot, a replica that
lost commits), or when another program uses the key. In the first case requests that look unsent have been carried out, and
a new nonce for one of them would carry it out twice. So the lane searches for the transactions at those nonces
(`chain_search.py`) and matches them to the requests without a nonce (`domain/attribution.py`):

- A match belongs to the request. Its signed bytes become the request's attempt, the cursor moves past it, and the receipt
  decides. Nothing is sent.
- A transaction without a match is foreign. The signer enters PROTECT, and the reason names hash, block and receiver. If
  the key is declared shared (`nonce.shared_key`), the cursor moves past it, and journal and log record that.
- A transaction that is not found within the bound also leads to PROTECT, and the reason names the blocks searched.
- So does one that has the effect of a request and may be older than it: the chain's clock is behind the database's.

The same holds for a nonce of a stored transaction that an unknown hash has consumed: if the unknown transaction has the
same effect (a fee bump whose commit was lost), it becomes one more attempt.

An attached transaction also proves that the database lost commits, even if its identity is unchanged. Other lost bytes may
be pending at the next nonces, where no pool shows them. So the same commit marks the cursor as doubted, and fillers
consume those nonces before a request gets one (`nonce_sync.py`).

The bytes of an attached transaction carry the signer's signature for that nonce, so an endpoint can't cause Fencepost to
attach bytes that were never signed. A fork that removes its block is harmless, because the same bytes are sent again.

| the process dies | what the next lease holder finds and does |
|---|---|
| while it searches | nothing is stored: the chain is still ahead of the cursor, and the search starts again |
| before the attach commits | the same |
| the commit's answer is lost | the lane is read again: request, bytes and cursor moved together, or not at all |
| after it, before the receipt is fetched | ALLOCATED with bytes and a due time: the take-over fetches its receipt first |
| between two batches of a long search | the cursor is behind the first batch: the search continues from there |
| before PROTECT commits | the chain is still ahead: the next lease holder finds the same foreign transaction |
| while an operator's `adopt` runs | attached transactions stay attached; the command is still open and runs again |
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from fencepost.application.chain_search import (
    FORK_MARGIN_BLOCKS,
    MAX_NONCES,
    SearchResult,
    block_at_time,
    find_transactions,
    verify_signature,
)
from fencepost.application.lane import Lane
from fencepost.application.ports import Chain, Cursor, Ledger, TxChange
from fencepost.domain import transaction_state
from fencepost.domain.attribution import Effect, Match, MinedTx, attribute, effect_of, is_filler
from fencepost.domain.ids import Signer
from fencepost.domain.states import State
from fencepost.domain.transaction import Call, SignedTx, UnsignedTx
from fencepost.domain.transaction_state import Attempt, JournalEntry, Kind, ManagedTx, Purpose
from fencepost.errors import RpcError

# Requests per read during the search for candidates.
PAGE_SIZE = 512

# How many finished transactions below a nonce are read to find its lowest possible block.
NEIGHBOURS = 16

# A signer that is new to the database may have many older transactions. The search covers those since its oldest request was
# accepted, up to this number.
MAX_PAST_NONCES = 2048

# The search starts this long before the oldest request was accepted.
PAST_MARGIN_S = 3600.0

# Foreign transactions that a journal entry lists.
MAX_LISTED_FOREIGN = 20

_INTENT, _FILLER = Purpose.INTENT, Purpose.FILLER


class NonceSurvey(NamedTuple):
    """The consumers of some nonces: each nonce is matched, foreign, unclear, or missing."""

    nonces: range
    matches: dict[int, Match]
    foreign: dict[int, MinedTx]
    unclear: dict[int, Match]
    found: SearchResult
    chain_lag_s: float

    def describe_unclear(self, nonce: int) -> str:
        mined, request = self.unclear[nonce]
        return (
            f"{mined} has the effect of request {request.tx_id} and looks older than it, but the chain's clock is"
            f" {self.chain_lag_s:.0f} s behind the database's: cancel the request if that transaction carried it out,"
            " else correct the chain's clock"
        )


async def survey(
    chain: Chain,
    ledger: Ledger,
    signer: Signer,
    nonces: range,
    *,
    lowest: int,
    max_blocks: int,
    by_time: bool,
) -> NonceSurvey:
    """Search for the transactions at `nonces` and match them to the signer's unsent requests. Write nothing."""
    found = await find_transactions(chain, signer.address, nonces, lowest=lowest, max_blocks=max_blocks)
    effects = {effect_of(tx.chain_id, tx.call) for tx in found.by_nonce.values()}
    candidates = await unsent_requests(ledger, signer, effects)
    lag_s = await _chain_lag_s(chain, candidates) if by_time else 0.0
    matches, foreign, unclear = attribute(
        found.by_nonce.values(), candidates, by_time=by_time, chain_lag_s=lag_s
    )
    return NonceSurvey(
        nonces,
        {match.mined.nonce: match for match in matches},
        {tx.nonce: tx for tx in foreign},
        {match.mined.nonce: match for match in unclear},
        found,
        lag_s,
    )


async def _chain_lag_s(chain: Chain, requests: Sequence[ManagedTx]) -> float:
    """Return how far the chain's clock is behind the database's, which accepted the requests; 0 if it is not.

    A chain that mines on demand has an old head, but the block that it would mine now has the present time.
    """
    times = [
        tx.accepted_at_s + tx.age_s
        for tx in requests
        if tx.accepted_at_s is not None and tx.age_s is not None
    ]
    if not times:
        return 0.0
    newest_s = (await chain.head()).timestamp_s
    with suppress(RpcError):  # not every endpoint builds pending blocks
        newest_s = max(newest_s, (await chain.head("pending")).timestamp_s)
    return max(0.0, max(times) - newest_s)


async def unsent_requests(ledger: Ledger, signer: Signer, effects: Iterable[Effect]) -> list[ManagedTx]:
    """Read all live requests without a nonce, page by page, and return those with one of these effects."""
    wanted, kept, after_seq = set(effects), [], 0
    while wanted:
        page = await ledger.load_unsent(signer, after_seq=after_seq, limit=PAGE_SIZE)
        kept += [tx for tx in page if effect_of(signer.chain_id, tx.intent.call) in wanted]
        if len(page) < PAGE_SIZE:
            break
        after_seq = page[-1].seq
    return kept


async def lowest_block_for(ledger: Ledger, signer: Signer, in_flight: Sequence[ManagedTx], nonce: int) -> int:
    """Return a block below which `nonce` can't have been consumed: higher nonces are in the same or higher blocks."""
    ended = await ledger.load_finished(signer, from_nonce=max(0, nonce - NEIGHBOURS), limit=2 * NEIGHBOURS)
    blocks = [
        tx.mined.block.number
        for tx in (*ended, *in_flight)
        if tx.mined is not None and tx.held_nonce() < nonce
    ]
    return max(0, max(blocks, default=0) - FORK_MARGIN_BLOCKS)


async def _survey(lane: Lane, nonces: range) -> NonceSurvey:
    lowest = await lowest_block_for(
        lane.ports.ledger, lane.signer, list(lane.in_flight.values()), nonces.start
    )
    return await survey(
        lane.ports.chain,
        lane.ports.ledger,
        lane.signer,
        nonces,
        lowest=lowest,
        max_blocks=lane.settings.search_blocks,
        by_time=is_unused(lane.cursor),
    )


def is_unused(cursor: Cursor | None) -> bool:
    """Return whether the database has no record of a nonce that it assigned for this signer."""
    return cursor is None or cursor.next_nonce == cursor.start_nonce


# ---- nonces above the cursor


class Obstacle(NamedTuple):
    """The reason why the cursor can't move past a nonce without an operator."""

    nonce: int
    reason: str
    is_missing: bool  # the transaction or its bytes were not found; else it is foreign


async def attribute_ahead(lane: Lane, upto: int, *, skips_foreign: bool) -> Obstacle | None:
    """Move the cursor past every nonce below `upto` whose consumer is known; return the obstacle that stopped it.

    Each batch is one commit: attempts, cursor and journal together.
    """
    while lane.cursor is not None and lane.cursor.next_nonce < upto:
        start = lane.cursor.next_nonce
        findings = await _survey(lane, range(start, min(upto, start + MAX_NONCES)))
        obstacle = await _commit_known(lane, lane.cursor, findings, skips_foreign=skips_foreign)
        if obstacle is not None:
            return obstacle
    return None


async def _commit_known(
    lane: Lane, cursor: Cursor, findings: NonceSurvey, *, skips_foreign: bool
) -> Obstacle | None:
    """Commit the known consumers of the lowest nonces, up to the first obstacle."""
    changes: list[TxChange] = []
    foreign: list[MinedTx] = []
    obstacle: Obstacle | None = None
    reached, start = cursor.next_nonce, cursor.start_nonce
    for nonce in findings.nonces:
        if (match := findings.matches.get(nonce)) is not None:
            change = _attach(lane, match.request, match.mined, _INTENT)
            if change is None:
                reason = f"{match.mined} has the effect of request {match.request.tx_id}, but no endpoint returns its signed bytes"
                obstacle = Obstacle(nonce, reason, is_missing=True)
                break
            changes.append(change)
        elif nonce in findings.unclear:
            obstacle = Obstacle(nonce, findings.describe_unclear(nonce), is_missing=False)
            break
        elif (mined := findings.foreign.get(nonce)) is None:
            obstacle = Obstacle(
                nonce,
                f"the transaction with nonce {nonce} was not found: {findings.found.searched}",
                is_missing=True,
            )
            break
        elif not skips_foreign:
            obstacle = Obstacle(nonce, f"{mined} matches no stored request", is_missing=False)
            break
        else:
            foreign.append(mined)
            if not changes and start == reached:  # no match so far: the sequence starts behind it
                start = nonce + 1
        reached = nonce + 1
    if reached > cursor.next_nonce:
        moved = cursor.changed(next_nonce=reached, start_nonce=start)
        await _commit(lane, _mark_doubted(moved) if changes else moved, changes, foreign)
    return obstacle


def _mark_doubted(cursor: Cursor) -> Cursor:
    """Mark the cursor as doubted: an attached transaction proves that commits were lost, so more lost bytes may exist."""
    return cursor.changed(is_doubted=True)


async def _commit(
    lane: Lane, cursor: Cursor, changes: Sequence[TxChange], foreign: Sequence[MinedTx]
) -> None:
    entries: list[JournalEntry] = []
    if foreign:
        detail = {
            "from": foreign[0].nonce,
            "to": foreign[-1].nonce + 1,
            "count": len(foreign),
            "foreign": [_describe_tx(tx) for tx in foreign[:MAX_LISTED_FOREIGN]],
        }
        entries.append(JournalEntry("AdoptChainNonce", detail))
    lane.require_trust()
    await lane.commit(changes, cursor=cursor, entries=entries, op="attribute")
    if changes:
        _note_attached(lane, changes)
    for tx in foreign[:MAX_LISTED_FOREIGN]:
        lane.ports.observer.note("adopted", signer=lane.signer, token=lane.term.token, foreign=str(tx))


def _note_attached(lane: Lane, changes: Sequence[TxChange]) -> None:
    lane.blocks.must_fetch_receipts = True  # their receipts exist: the next `track` reads them
    lane.suspicion.doubts_history = lane.suspicion.has_doubted = True
    txs = [change.after.tx_id for change in changes]
    lane.ports.observer.note("attached", signer=lane.signer, token=lane.term.token, txs=txs)


def _describe_tx(tx: MinedTx) -> dict[str, object]:
    return {"hash": tx.hash, "nonce": tx.nonce, "block": tx.block.number, "to": tx.call.to}


def _attach(lane: Lane, tx: ManagedTx, mined: MinedTx, purpose: Purpose) -> TxChange | None:
    """Add the chain's transaction to `tx` as an attempt; return None if its bytes are not available."""
    attempt = _attempt(lane, mined, number=len(tx.attempts) + 1, purpose=purpose)
    if attempt is None:
        return None
    due_s = lane.now_s() + lane.settings.resubmit_interval_s
    attach = partial(
        transaction_state.attach, nonce=mined.nonce, attempt=attempt, block=mined.block, due_s=due_s
    )
    if tx.state is State.SUSPENDED and tx.nonce is None:  # it was carried out, so there is nothing to suspend
        return lane.change(tx, partial(transaction_state.resume, by="attribution"), attach)
    return lane.change(tx, attach)


def _attempt(lane: Lane, mined: MinedTx, *, number: int, purpose: Purpose) -> Attempt | None:
    decoded = verify_signature(mined, lane.ports.decode)
    if decoded is None or mined.raw is None:
        return None
    signed = SignedTx(raw=mined.raw, hash=mined.hash)
    return Attempt(number, purpose, decoded.type, decoded.gas, decoded.fees, signed)


# ---- nonces that stored transactions hold


class Consumer(NamedTuple):
    """What consumed the nonce of a stored transaction. Both are None if only the receipt of an attempt is late."""

    attached: TxChange | None  # an attempt that the ledger lost
    alarm: str | None  # a foreign transaction, or one that was not found


async def find_consumer(lane: Lane, tx: ManagedTx) -> Consumer:
    """Find out what consumed the nonce of a transaction in flight. Write nothing."""
    nonce = tx.held_nonce()
    findings = await _survey(lane, range(nonce, nonce + 1))
    mined = findings.found.by_nonce.get(nonce)
    foreign = f"nonce {nonce} was consumed by a transaction that is not ours"
    if mined is None:
        return Consumer(None, f"{foreign}: {findings.found.searched}, and it was not found")
    if tx.attempt_of(mined.hash) is not None:
        return Consumer(None, None)
    change = _attach_to_holder(lane, tx, mined)
    if change is not None:
        return Consumer(change, None)
    match = findings.matches.get(nonce)
    same = "" if match is None else f"; it has the effect of request {match.request.tx_id}"
    return Consumer(None, f"{foreign}: {mined}{same}")


async def check_consumed(lane: Lane, tx: ManagedTx) -> str | None:
    """Find out what consumed the nonce of a transaction in flight; return the reason for an alarm, or None if it is ours."""
    change, alarm = await find_consumer(lane, tx)
    if change is None:
        lane.blocks.must_fetch_receipts |= alarm is None  # only its receipt is late
        return alarm
    lane.require_trust()
    cursor = None if lane.cursor is None else _mark_doubted(lane.cursor)
    await lane.commit([change], cursor=cursor, op="attribute")
    _note_attached(lane, [change])
    return None


def _attach_to_holder(lane: Lane, tx: ManagedTx, mined: MinedTx) -> TxChange | None:
    """Attach the mined transaction if it has the effect of one of the attempts of `tx`."""
    wanted = _call_of(lane, tx)
    effect = effect_of(mined.chain_id, mined.call)
    if wanted is not None and effect == effect_of(tx.signer.chain_id, wanted):
        purpose = _FILLER if tx.kind is Kind.FILLER else _INTENT
        return _attach(lane, tx, mined, purpose)
    if tx.ending is not None and is_filler(mined):  # the filler of a cancellation, at an unknown price
        return _attach(lane, tx, mined, _FILLER)
    return None


def _call_of(lane: Lane, tx: ManagedTx) -> Call | None:
    """Return what the transaction does; None if its handler has not built it."""
    if tx.kind is not Kind.HANDLER:
        return tx.intent.call
    built = [attempt for attempt in tx.attempts if attempt.purpose is _INTENT]
    decoded: UnsignedTx | None = lane.ports.decode(built[0].signed.raw)[1] if built else None
    return None if decoded is None else decoded.call


class Consumed(NamedTuple):
    """The result for stored transactions whose nonce an unknown hash has consumed."""

    attached: list[TxChange]
    lost: list[ManagedTx]
    conflicts: list[str]  # the consumer has, or may have, the effect of a request without a nonce


async def attribute_consumed(lane: Lane, txs: Sequence[ManagedTx]) -> Consumed:
    """Sort transactions for an operator's `adopt`: attached, lost to a foreign one, or in conflict with a request."""
    result = Consumed([], [], [])
    for tx in txs:
        nonce = tx.held_nonce()
        findings = await _survey(lane, range(nonce, nonce + 1))
        mined = findings.found.by_nonce.get(nonce)
        if mined is not None and tx.attempt_of(mined.hash) is not None:
            continue  # only its receipt is late
        change = None if mined is None else _attach_to_holder(lane, tx, mined)
        if change is not None:
            result.attached.append(change)
            continue
        result.lost.append(tx)
        if mined is None:
            result.conflicts.append(
                f"the transaction with nonce {nonce} was not found: {findings.found.searched}"
            )
        elif (match := findings.matches.get(nonce)) is not None:
            result.conflicts.append(f"{mined} has the effect of request {match.request.tx_id}")
    return result


async def may_be_carried_out(lane: Lane, tx: ManagedTx) -> str | None:
    """Return why a request without a nonce may be on the chain already; None if nothing suggests it.

    A lane that has compared its cursor with the chain, and found nothing above it, reads nothing. In PROTECT the operator
    decides about transactions that were not found: then only a match counts.
    """
    cursor = lane.cursor
    if cursor is not None and lane.suspicion.ahead.checked_at_s is None and not lane.is_protected:
        return None
    latest = await lane.ports.chain.nonce(lane.signer.address, "latest")
    start = await _first_unknown(lane, latest) if cursor is None else cursor.next_nonce
    if start is None or latest <= start:
        return None
    findings = await _survey(lane, range(start, min(latest, start + MAX_PAST_NONCES)))
    for match in findings.matches.values():
        if match.request.tx_id == tx.tx_id:
            return f"the chain has carried it out: {match.mined}"
    if lane.is_protected or len(findings.found.by_nonce) == len(findings.nonces):
        return None
    return f"not all transactions from nonce {start} on were found: {findings.found.searched}"


async def _first_unknown(lane: Lane, latest: int) -> int | None:
    """Return the lowest nonce that a request of a signer without a cursor has consumed."""
    lowest = 0 if lane.settings.start_from == "chain" else lane.settings.start_from
    return (await search_past(lane, lowest, latest)).first_of_ours


async def has_unsent(lane: Lane) -> bool:
    return bool(await lane.ports.ledger.load_unsent(lane.signer, after_seq=0, limit=1))


# ---- a signer without a cursor


class PastSearch(NamedTuple):
    """The result of `search_past` for a new nonce sequence."""

    first_of_ours: int | None  # the lowest nonce that an unsent request has consumed
    problem: str | None = None  # why the search has no result
    is_behind: bool = False  # no result yet: the endpoint lags


async def search_past(lane: Lane, lowest: int, latest: int) -> PastSearch:
    """Search the chain for requests of a signer without a stored cursor that were carried out.

    Transactions that were mined before the oldest request was accepted don't match, so older blocks are not searched.
    """
    if latest <= lowest:
        return PastSearch(None)
    oldest = await lane.ports.ledger.load_unsent(lane.signer, after_seq=0, limit=1)
    if not oldest:
        return PastSearch(None)
    from_block = 0
    if latest - lowest > MAX_NONCES or await lane.ports.chain.nonce_at(lane.signer.address, 0) is None:
        from_block = await _block_of_acceptance(lane, oldest[0])
        before = await lane.ports.chain.nonce_at(lane.signer.address, from_block - 1) if from_block else 0
        if before is not None and before > latest - MAX_NONCES:
            before, from_block = max(lowest, latest - MAX_NONCES), 0
        lowest = lowest if before is None else max(lowest, before)
    if latest - lowest > MAX_PAST_NONCES:
        reason = f"the account has sent {latest - lowest} transactions since its oldest request was accepted"
        return PastSearch(
            None, f"{reason}, and Fencepost searches at most {MAX_PAST_NONCES} for requests of this database"
        )
    for start in range(lowest, latest, MAX_NONCES):
        nonces = range(start, min(latest, start + MAX_NONCES))
        findings = await survey(
            lane.ports.chain,
            lane.ports.ledger,
            lane.signer,
            nonces,
            lowest=from_block,
            max_blocks=lane.settings.search_blocks,
            by_time=True,
        )
        if (result := _past_of(findings)) is not None:
            return result
    return PastSearch(None)


def _past_of(findings: NonceSurvey) -> PastSearch | None:
    """Return what the findings say about the requests; None if they carry out none, and the search goes on."""
    if findings.unclear:
        return PastSearch(None, findings.describe_unclear(min(findings.unclear)))
    if findings.matches:
        return PastSearch(min(findings.matches))
    if findings.found.is_behind:
        return PastSearch(None, is_behind=True)
    if not findings.found.is_complete:
        nonces = f"{findings.nonces.start} to {findings.nonces.stop - 1}"
        problem = f"not all transactions with nonces {nonces} were found: {findings.found.searched}"
        return PastSearch(None, problem)
    return None


async def _block_of_acceptance(lane: Lane, request: ManagedTx) -> int:
    """Return a block that is older than the request; 0 if its age is unknown."""
    if request.accepted_at_s is None:
        return 0
    lag_s = await _chain_lag_s(lane.ports.chain, [request])
    return await block_at_time(lane.ports.chain, request.accepted_at_s - lag_s - PAST_MARGIN_S)


async def describe_consumer(lane: Lane, nonce: int) -> str:
    """Describe the transaction that consumed a nonce, for the reason of an alarm."""
    findings = await _survey(lane, range(nonce, nonce + 1))
    mined = findings.found.by_nonce.get(nonce)
    return f"nonce {nonce} was not found, {findings.found.searched}" if mined is None else str(mined)
