"""Start a signer's nonce sequence, and compare the cursor with the chain.

A chain nonce above the cursor means that another program used the key, or that the database lost commits. It may also be
the wrong answer of one endpoint. So it counts only if every check shows it for `ADOPT_AFTER_S`; until then no request
gets a nonce. A check counts for a short time only, so that a clock that jumps is no evidence. Then attribution finds
out which transactions consumed those nonces (`attribution.py`): a managed one is attached to its request, and a foreign
one puts the signer into PROTECT, unless its key is shared.

A nonce above the cursor that only a pool has cannot be attributed before it is mined. The lane waits for it, and nothing
new gets a nonce meanwhile; after `POOL_WAIT_S` the signer is put into PROTECT.

After the database lost commits (a promoted replica did not have them) signed bytes of Fencepost may be in a pool, or on
their way to one, at nonces that the ledger does not know, for requests that look unsent. No endpoint can list them: a
pool shows nothing above a gap, and an endpoint may lag or lie. So the cursor is doubted, and before a request gets a
nonce of it
- the chain has consumed every nonce that the ledger knows. Nonces above the cursor are attributed as always.
- then fillers take as many nonces as the window is wide. The lost bytes can have no others, because no more than that
  was ever allowed to wait for a block. Each nonce is consumed once: by its filler, and then the lost bytes can never be
  mined; or by the lost bytes, and then the signer is put into PROTECT.
- all fillers have ended, as deep in the chain as every transaction that ends. This holds for an operator's fillers, too.
The doubt is stored in the ledger: in the cursor until the fillers are stored, and in the fillers' rows from then on. So
it survives a crash on any line: before that commit the next lease holder doubts the cursor, after it it finds the fillers.

A signer whose sequence had just begun, and whose whole cursor was lost, looks like a new one. So new signers are doubted
as well for as long as pools keep bytes after a fail-over (`YOUNG_HISTORY_S`). Such a sequence begins as low as it may,
because the nonces that the chain has consumed may be managed ones: a used address then waits for an operator.

A copy of the database (a restored dump or backup, `CREATE DATABASE … TEMPLATE`) is treated like such a fail-over.

Assumptions: the window was no wider before the fail-over than it is now, and the old server never comes back. Where a
fail-over cannot lose commits (`database.failover_loses_commits` is off), it raises no doubt; a copy does.
"""

from __future__ import annotations

from fencepost.application.attribution import Obstacle, attribute_ahead, describe_consumer, search_past
from fencepost.application.gap_filling import check_gap, fillers
from fencepost.application.lane import Lane, protect
from fencepost.application.ports import Cursor, LaneState
from fencepost.application.verified_nonces import read_nonces, verified_nonces
from fencepost.domain.lease import history_of
from fencepost.domain.transaction_state import JournalEntry, Kind
from fencepost.errors import SigningRefused

# A chain nonce above the cursor counts after checks at this interval have shown it for this long.
ADOPT_AFTER_S = 4.0
CHECK_INTERVAL_S = 0.25

# How often and how far apart the transaction that consumed a nonce is searched for: blocks may lag behind nonces.
SEARCHES_BEFORE_PROTECT = 3
SEARCH_INTERVAL_S = 2.0

# How long transactions above the cursor may wait in a pool before the signer is put into PROTECT.
POOL_WAIT_S = 60.0

# The key store may refuse the fillers for a doubt this often, `LAG_RETRY_S` apart, before the signer is put into PROTECT.
REFUSALS_BEFORE_PROTECT = 3

# With all managed transactions mined, a chain nonce below the cursor comes from a lagging endpoint: ask again.
LAG_RETRY_S = 1.0


def restore_doubt(lane: Lane, state: LaneState) -> None:
    """Set whether signed bytes that the database lost may exist: by its history, by the stored doubt, or by its fillers."""
    # Replication can keep a fail-over from losing commits. It cannot keep a copy from being older than its source.
    loses_commits = lane.settings.failover_loses_commits or state.is_from_copy
    cursor, token = lane.cursor, state.cursor_token
    if cursor is None:
        is_doubted = loses_commits and state.may_be_forgotten
    else:
        is_other = token is not None and history_of(token) != history_of(lane.term.token)
        is_doubted = cursor.is_doubted or (loses_commits and is_other)
        lane.cursor = cursor.changed(is_doubted=is_doubted)
    lane.suspicion.doubts_history = is_doubted or _fillers_wait(lane)
    lane.suspicion.has_doubted |= lane.suspicion.doubts_history


def _fillers_wait(lane: Lane) -> bool:
    """Return whether fillers are in flight: until they have ended, lost bytes may still consume their nonces."""
    return any(tx.kind is Kind.FILLER for tx in lane.in_flight.values())


async def checked_cursor(lane: Lane) -> Cursor | None:
    """Return the cursor to allocate from, or None if no nonce may be allocated now.

    The cursor is compared with the chain as often as the settings of the lane require.
    """
    suspicion = lane.suspicion
    cursor = lane.cursor
    if cursor is None:
        cursor = await start_sequence(lane)
        if cursor is None or not suspicion.doubts_history:
            return cursor
    if suspicion.ahead.checked_at_s is not None:
        return None
    if suspicion.doubts_history:
        if lane.unmined:
            return None
        if not await _is_doubt_resolved(lane, cursor):
            lane.sending.allocation_paused_until_s = lane.now_s() + LAG_RETRY_S
            return None
    now_s, query = lane.now_s(), lane.settings.chain_query
    if query == "off" or is_checked(lane, now_s):
        return cursor
    on_chain = await lane.ports.chain.nonce(lane.signer.address, query)
    suspicion.cursor_checked_at_s = now_s
    checked = await _compare_with_chain(lane, cursor, on_chain)
    if checked is cursor:
        return cursor
    if checked is not None:  # it moved past foreign transactions: the next step compares again
        lane.sending.allocation_paused_until_s = lane.now_s()
    return None


def is_checked(lane: Lane, now_s: float) -> bool:
    """Return whether the cursor was compared with the chain a short time ago, or need not be."""
    checked_s = lane.suspicion.cursor_checked_at_s
    if lane.settings.chain_query == "off":
        return True
    return checked_s is not None and now_s - checked_s < lane.settings.state_timeout_s


async def compare_at_take_over(lane: Lane, *, latest: int) -> None:
    """Compare the cursor with the chain at the start of a term, even if no request waits for a nonce."""
    if lane.cursor is None or lane.is_protected:
        return
    if lane.suspicion.doubts_history:
        await _check_in_doubt(lane, lane.cursor)
    else:
        await _compare_with_chain(lane, lane.cursor, latest)


async def recheck_chain_nonce(lane: Lane) -> None:
    """Check again, if it is time, a chain whose nonce was above the cursor."""
    cursor, query = lane.cursor, lane.settings.chain_query
    if cursor is None or lane.is_protected:
        lane.suspicion.ahead.checked_at_s = None
    elif next_recheck_in_s(lane) > 0:
        return
    elif lane.suspicion.doubts_history:
        await _check_in_doubt(lane, cursor)
    else:
        tag = "latest" if query == "off" else query
        await _compare_with_chain(lane, cursor, await lane.ports.chain.nonce(lane.signer.address, tag))


def next_recheck_in_s(lane: Lane) -> float:
    """Return the seconds until the next check; 0 if none is planned, or if the clock was set back."""
    if lane.suspicion.ahead.checked_at_s is None:
        return 0.0
    since_s = lane.now_s() - lane.suspicion.ahead.checked_at_s
    return CHECK_INTERVAL_S - since_s if 0 <= since_s < CHECK_INTERVAL_S else 0.0


async def _compare_with_chain(lane: Lane, cursor: Cursor, on_chain: int) -> Cursor | None:
    """Compare the chain's nonce with the cursor, and return the cursor to continue from, or None if no nonce may be allocated."""
    ahead = lane.suspicion.ahead
    if on_chain <= cursor.next_nonce:
        ahead.clear()
        return cursor
    if not _is_confirmed(lane, on_chain):
        return None
    _keep_paused(lane)  # no nonce is allocated during the attribution, even if an endpoint fails meanwhile
    latest, pending = await verified_nonces(lane)
    confirmed = min(ahead.nonce, pending)
    if confirmed <= cursor.next_nonce:  # the checks showed another chain, or a faulty node
        ahead.clear()
        return cursor
    consumed = min(latest, confirmed)
    if consumed <= cursor.next_nonce:
        return await _wait_for_pool(lane, cursor, confirmed)
    ahead.pool_since_s = None
    if lane.now_s() < ahead.search_again_s:
        return None
    obstacle = await attribute_ahead(lane, consumed, skips_foreign=lane.settings.shared_key)
    if obstacle is not None:
        await _handle_obstacle(lane, obstacle, consumed)
        return None
    ahead.clear()
    moved = lane.cursor
    if moved is None or on_chain == moved.next_nonce:
        return moved
    return await _compare_with_chain(lane, moved, on_chain)


async def _handle_obstacle(lane: Lane, obstacle: Obstacle, consumed: int) -> None:
    """Protect the signer at once for a foreign transaction. Search again for one that was not found: blocks may lag."""
    ahead = lane.suspicion.ahead
    if obstacle.is_missing:
        ahead.search_misses += 1
        ahead.search_again_s = lane.now_s() + SEARCH_INTERVAL_S
        if ahead.search_misses < SEARCHES_BEFORE_PROTECT:
            _keep_paused(lane)
            return
    compared = f"the chain's nonce is {consumed}, ours is {obstacle.nonce}: {obstacle.reason}"
    if lane.suspicion.has_doubted:
        reason = f"the database may have lost commits: {compared}"
    else:
        reason = f"{compared}; another program uses this key, or the database is an older copy"
    ahead.clear()
    await protect(lane, reason)


async def _wait_for_pool(lane: Lane, cursor: Cursor, confirmed: int) -> Cursor | None:
    """Wait until transactions that only a pool has are mined: then they can be attributed.

    Where the key is shared, they are taken for foreign ones, and the cursor moves past them.
    """
    ahead = lane.suspicion.ahead
    if lane.settings.shared_key and not lane.suspicion.has_doubted:
        ahead.clear()
        adopted = cursor.changed(next_nonce=confirmed)
        detail = {
            "from": cursor.next_nonce,
            "to": confirmed,
            "count": confirmed - cursor.next_nonce,
            "pool": True,
        }
        await lane.commit(cursor=adopted, entries=[JournalEntry("AdoptChainNonce", detail)], op="adopt")
        lane.ports.observer.note("adopted", signer=lane.signer, token=lane.term.token, **detail)
        return adopted
    now_s = lane.now_s()
    if ahead.pool_since_s is None:
        ahead.pool_since_s = now_s
        lane.ports.observer.note("pool_ahead", signer=lane.signer, ours=cursor.next_nonce, pool=confirmed)
    if now_s - ahead.pool_since_s < POOL_WAIT_S:
        _keep_paused(lane)
        return None
    cause = (
        "the database may have lost commits"
        if lane.suspicion.has_doubted
        else "another program uses this key"
    )
    ahead.clear()
    await protect(
        lane,
        f"transactions that are not in the database wait in the pool at the nonces {cursor.next_nonce} to"
        f" {confirmed - 1}: {cause}; wait until they are mined, then unprotect the signer with a decision",
    )
    return None


def _keep_paused(lane: Lane) -> None:
    """Keep allocation paused because of the checks so far."""
    lane.suspicion.ahead.checked_at_s = lane.now_s()


def _is_confirmed(lane: Lane, on_chain: int) -> bool:
    """Count a check that shows the chain ahead; return whether that is confirmed. The lowest nonce of all checks counts."""
    ahead = lane.suspicion.ahead
    now_s = lane.now_s()
    if ahead.checked_at_s is None:
        ahead.nonce, ahead.for_s = on_chain, 0.0
    else:
        ahead.nonce = min(ahead.nonce, on_chain)
        ahead.for_s += min(CHECK_INTERVAL_S, max(0.0, now_s - ahead.checked_at_s))
    is_confirmed = ahead.for_s >= ADOPT_AFTER_S
    ahead.checked_at_s = None if is_confirmed else now_s
    return is_confirmed


async def _check_in_doubt(lane: Lane, cursor: Cursor) -> int | None:
    """Return how many nonces the chain has consumed; None if it is, or was, above the cursor, pools included."""
    latest, on_chain = await read_nonces(lane)
    return latest if await _compare_with_chain(lane, cursor, on_chain) is cursor else None


async def _is_doubt_resolved(lane: Lane, cursor: Cursor) -> bool:
    """Return whether no lost bytes can be mined any more: fillers have consumed their nonces, to full depth."""
    suspicion = lane.suspicion
    latest = await _check_in_doubt(lane, cursor)
    if latest is None:
        return False
    if latest < cursor.next_nonce:
        await check_gap(lane, latest, below=cursor.next_nonce)
        return False
    suspicion.gap_since_s = None
    if cursor.is_doubted:
        if (await verified_nonces(lane)).pending != cursor.next_nonce:
            return False
        if not await _fill_window(lane, cursor):
            return False
    suspicion.doubts_history = suspicion.has_doubted = _fillers_wait(lane)
    return not suspicion.doubts_history


async def _fill_window(lane: Lane, cursor: Cursor) -> bool:
    """Store fillers for one window of nonces, and return whether that was done.

    A key store may refuse to sign fillers. The doubt stays then, and after a few refusals an operator is called.
    """
    suspicion = lane.suspicion
    nonces = range(cursor.next_nonce, cursor.next_nonce + lane.settings.window)
    try:
        txs = await fillers(lane, nonces)
    except SigningRefused as error:
        suspicion.refused_fillers += 1
        lane.ports.observer.note(
            "signing_refused", signer=lane.signer, fillers=len(nonces), reason=str(error)
        )
        if suspicion.refused_fillers >= REFUSALS_BEFORE_PROTECT:
            suspicion.refused_fillers = 0
            await protect(
                lane,
                f"the database may have lost commits, so fillers have to consume the nonces {nonces.start} to"
                f" {nonces.stop - 1} before a request gets one, and the key store refuses to sign them: {error}. Allow it"
                " to sign transfers of 0 wei from the account to itself, then unprotect with the decision keep",
            )
        return False
    suspicion.refused_fillers = 0
    lane.require_trust()
    moved = cursor.past(len(txs)).changed(is_doubted=False)
    entry = JournalEntry("FillDoubt", {"from": nonces.start, "to": nonces.stop - 1})
    await lane.commit(cursor=moved, entries=[entry], fillers=txs, op="fill_doubt")
    return True


async def start_sequence(lane: Lane) -> Cursor | None:
    """Start the sequence of a signer that is new to the database.

    The database may have lost its cursor, so consumed nonces are compared with the waiting requests.
    """
    settings = lane.settings
    if settings.chain_query == "off" and settings.start_from != "chain":
        latest = pending = settings.start_from
    else:
        latest, pending = await verified_nonces(lane)
    lane.suspicion.cursor_checked_at_s = lane.now_s()
    lowest = 0 if settings.start_from == "chain" else settings.start_from
    if lane.suspicion.doubts_history and pending > lowest:
        return await _start_at(lane, lowest)  # what the chain has above may be ours, forgotten: it is doubted
    past = await search_past(lane, lowest, latest)
    if latest > lowest:
        await lane.ports.chain.check_identity()  # the blocks that were searched may be another chain's
    if past.is_behind:
        lane.sending.allocation_paused_until_s = lane.now_s() + LAG_RETRY_S
        return None
    if past.problem is not None:
        await protect(lane, past.problem)
        return None
    if past.first_of_ours is not None:
        await _start_at(
            lane, lowest if settings.strict and settings.start_from != "chain" else past.first_of_ours
        )
        obstacle = await attribute_ahead(lane, latest, skips_foreign=settings.shared_key)
        if obstacle is not None:
            await _handle_obstacle(lane, obstacle, latest)
        lane.sending.allocation_paused_until_s = lane.now_s()  # it comes back, and compares again
        return None
    if settings.strict:
        return await _start_strict(lane, latest=latest, pending=pending)
    if pending > max(lowest, latest) and not settings.shared_key:
        await _compare_with_chain(
            lane, await _start_at(lane, max(lowest, latest)), pending
        )  # the transactions in the pool are unknown
        return None
    return await _start_at(lane, max(lowest, pending))


async def _start_strict(lane: Lane, *, latest: int, pending: int) -> Cursor | None:
    start_from = lane.settings.start_from
    if start_from in (latest, "chain"):
        if latest == pending:
            return await _start_at(lane, latest)
        await protect(
            lane,
            f"foreign transactions wait in the pool (latest {latest}, pending {pending}): wait until they are mined",
        )
        return None
    assert isinstance(start_from, int)  # noqa: S101 - the other value is handled above
    used = f" by {await describe_consumer(lane, start_from)}" if latest > start_from else ""
    await protect(
        lane,
        f"nonce.start_from is {start_from}, but the chain's nonce is {latest}:"
        f" the address was used before{used}; unprotect with the decision adopt to continue from the chain's nonce",
    )
    return None


async def _start_at(lane: Lane, start: int) -> Cursor:
    cursor = Cursor(start, start, is_doubted=lane.suspicion.doubts_history)
    await lane.commit(cursor=cursor, entries=[JournalEntry("BeginSequence", {"start": start})], op="begin")
    return cursor
