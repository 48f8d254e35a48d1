"""Where a signer's sequence stands: where it begins, and whether the chain agrees with our cursor.

A chain nonce above our cursor means that somebody else used the key, or that the database lost what we had written. It
may also be the word of one endpoint that lies. So it is believed only when every look says so for `ADOPT_AFTER_S`; until
then nothing new gets a nonce. A look counts for a short time only, so that a clock that jumps is no evidence. Then a
strict signer is protected, and a pipelined one goes on from the nonce that all of the looks showed.

After the database lost commits (a replica was promoted that did not have them) bytes of ours may be in a pool, or on
their way to one, at nonces that we don't know of, for requests that look unsent. Nobody can be asked for them: a pool
shows nothing that lies above a gap, and a node may lag or lie. So the cursor is doubted, and before a request gets a
nonce of it
- the chain has consumed every nonce that we do know of. Should it be above our cursor, the signer is protected.
- then fillers take as many nonces as the window is wide: the lost bytes have no others, because no more than that was
  ever allowed to wait for a block. What becomes of the fillers tells the rest. Each nonce is consumed once: by its
  filler, and then what was lost is lost for good; or by what was lost, and then the signer is protected.
- all of them have ended, as deep in the chain as anything that counts. So it is with any fillers, a person's too.
The doubt lives in the ledger, in the cursor until the fillers are stored and in these rows from then on, so that it
outlives its lane at any line: before that commit the next owner doubts as we did, after it it finds the fillers.

A signer that had just begun, and whose cursor was lost as a whole, looks like a new one. So new ones are doubted as well
for as long as pools keep bytes, after the history began (`YOUNG_HISTORY_S`). Such a sequence begins as low as it may,
because what the chain has consumed of it may be ours: a used address waits for a person then.

What is taken for granted: that the window was no wider before the fail-over than it is now, and that the old server is
gone for good. Where commits can't be lost (`database.failover_loses_commits` is off) nothing is doubted.
"""

from __future__ import annotations

from fencepost.application.holes import fillers
from fencepost.application.lane import Lane
from fencepost.application.ports import Cursor, LaneState
from fencepost.application.protect import protect
from fencepost.domain.lease import history_of
from fencepost.domain.managed import Entry, Kind

# A chain nonce above ours is believed when it was seen for this long, at looks that lie this far apart.
ADOPT_AFTER_S = 4.0
LOOK_EVERY_S = 0.25

# With everything of ours mined, a chain nonce below our cursor is a node that lags: it is asked again.
LAG_RETRY_S = 1.0


def recall_doubt(lane: Lane, state: LaneState) -> None:
    """Whether bytes that the database lost may be out: by its history, or because we found out before, and are at it."""
    if not lane.policy.failover_loses_commits:
        return
    cursor, token = lane.cursor, state.cursor_token
    if cursor is None:
        is_doubted = state.may_be_forgotten
    else:
        is_other = token is not None and history_of(token) != history_of(lane.term.token)
        is_doubted = cursor.is_doubted or is_other
        lane.cursor = cursor.changed(is_doubted=is_doubted)
    lane.doubts_history = is_doubted or _fillers_wait(lane)
    lane.has_doubted |= lane.doubts_history


def _fillers_wait(lane: Lane) -> bool:
    """Until they have ended, their nonces may be consumed by something else."""
    return any(tx.kind is Kind.FILLER for tx in lane.in_flight.values())


async def checked_cursor(lane: Lane) -> Cursor | None:
    """The cursor to allocate from, compared with the chain as often as the policy asks; None when it can't be used."""
    cursor = lane.cursor
    if cursor is None:
        cursor = await begin_sequence(lane)
        if cursor is None or not lane.doubts_history:
            return cursor
    if lane.ahead_looked_s is not None:
        return None
    if lane.doubts_history:
        if lane.unmined:
            return None
        if not await _has_settled(lane, cursor):
            lane.hold_allocation_until_s = lane.clock.now_s() + LAG_RETRY_S
            return None
    now_s, query = lane.clock.now_s(), lane.policy.chain_query
    if query == "off" or is_checked(lane, now_s):
        return cursor
    on_chain = await lane.chain.nonce(lane.signer.address, query)
    lane.chain_checked_at_s = now_s
    return await _judge(lane, cursor, on_chain)


def is_checked(lane: Lane, now_s: float) -> bool:
    """The cursor was compared with the chain a short time ago, or need not be."""
    checked_s = lane.chain_checked_at_s
    if lane.policy.chain_query == "off":
        return True
    return checked_s is not None and now_s - checked_s < lane.policy.state_timeout_s


async def compare_at_take_over(lane: Lane, *, latest: int) -> None:
    """A new term looks at once; a pipelined signer that trusts its ledger looks when it wants a nonce."""
    if lane.cursor is None or lane.is_protected:
        return
    if lane.doubts_history:
        await _look_in_doubt(lane, lane.cursor)
    elif lane.policy.strict:
        await _judge(lane, lane.cursor, latest)


async def look_again(lane: Lane) -> None:
    """The next look at a chain that is ahead of us, when it is time."""
    cursor, query = lane.cursor, lane.policy.chain_query
    if cursor is None or lane.is_protected:
        lane.ahead_looked_s = None
    elif next_look_in_s(lane) > 0:
        return
    elif lane.doubts_history:
        await _look_in_doubt(lane, cursor)
    else:
        tag = "latest" if query == "off" else query
        await _judge(lane, cursor, await lane.chain.nonce(lane.signer.address, tag))


def next_look_in_s(lane: Lane) -> float:
    """Nothing when there is none to wait for, or when the clock was set back."""
    if lane.ahead_looked_s is None:
        return 0.0
    since_s = lane.clock.now_s() - lane.ahead_looked_s
    return LOOK_EVERY_S - since_s if 0 <= since_s < LOOK_EVERY_S else 0.0


async def _judge(lane: Lane, cursor: Cursor, on_chain: int) -> Cursor | None:
    """What a look means: the cursor to go on from, or None when there is none."""
    if on_chain <= cursor.next_nonce:
        lane.ahead_looked_s = None
        return cursor
    if not _is_believed(lane, on_chain):
        return None
    compared = f"the chain's nonce is {on_chain}, ours is {cursor.next_nonce}"
    if lane.has_doubted:
        reason = (
            f"the database may have lost commits: {compared}; requests that look unsent may have been sent"
        )
        await protect(lane, reason)
        return None
    if lane.policy.strict:
        await protect(lane, f"{compared}: somebody else uses this key")
        return None
    adopted = cursor.changed(next_nonce=lane.ahead_nonce)
    entry = Entry("AdoptChainNonce", {"from": cursor.next_nonce, "to": adopted.next_nonce})
    await lane.commit(cursor=adopted, entries=[entry], op="adopt")
    return adopted if on_chain == adopted.next_nonce else await _judge(lane, adopted, on_chain)


def _is_believed(lane: Lane, on_chain: int) -> bool:
    """One more look that shows the chain ahead of us. What all of them showed is the least that any of them did."""
    now_s = lane.clock.now_s()
    if lane.ahead_looked_s is None:
        lane.ahead_nonce, lane.ahead_for_s = on_chain, 0.0
    else:
        lane.ahead_nonce = min(lane.ahead_nonce, on_chain)
        lane.ahead_for_s += min(LOOK_EVERY_S, max(0.0, now_s - lane.ahead_looked_s))
    is_believed = lane.ahead_for_s >= ADOPT_AFTER_S
    lane.ahead_looked_s = None if is_believed else now_s
    return is_believed


async def _look_in_doubt(lane: Lane, cursor: Cursor) -> int | None:
    """How many nonces the chain has consumed, unless it is above our cursor, pools included."""
    address = lane.signer.address
    latest = await lane.chain.nonce(address, "latest")
    on_chain = max(latest, await lane.chain.nonce(address, "pending"))
    return None if await _judge(lane, cursor, on_chain) is None else latest


async def _has_settled(lane: Lane, cursor: Cursor) -> bool:
    """Nothing that the database lost can be mined any more: fillers have consumed its nonces, to full depth."""
    latest = await _look_in_doubt(lane, cursor)
    if latest is None or latest < cursor.next_nonce:
        return False
    if cursor.is_doubted:
        await _fill_doubt(lane, cursor)
    lane.doubts_history = _fillers_wait(lane)
    return not lane.doubts_history


async def _fill_doubt(lane: Lane, cursor: Cursor) -> None:
    nonces = range(cursor.next_nonce, cursor.next_nonce + lane.policy.window)
    made = await fillers(lane, nonces)
    lane.require_trust()
    settling = cursor.past(len(made)).changed(is_doubted=False)
    entry = Entry("FillDoubt", {"from": nonces.start, "to": nonces.stop - 1})
    await lane.commit(cursor=settling, entries=[entry], fillers=made, op="fill_doubt")


async def begin_sequence(lane: Lane) -> Cursor | None:
    """The first use of a signer: where does its sequence begin?"""
    policy, address = lane.policy, lane.signer.address
    if policy.chain_query == "off" and policy.start_from != "chain":
        latest = pending = policy.start_from
    else:
        latest = await lane.chain.nonce(address, "latest")
        pending = max(latest, await lane.chain.nonce(address, "pending"))
    lane.chain_checked_at_s = lane.clock.now_s()
    lowest = 0 if policy.start_from == "chain" else policy.start_from
    if lane.doubts_history and pending > lowest:
        return await _begin(lane, lowest)  # what the chain has above may be ours, forgotten: it is doubted
    if not policy.strict:
        start = pending if policy.start_from == "chain" else max(policy.start_from, pending)
        return await _begin(lane, start)
    if policy.start_from == "chain" and latest == pending:
        return await _begin(lane, latest)
    if policy.start_from in (latest, "chain") and latest != pending:
        await protect(
            lane, f"transactions that are not ours wait in the pool (latest {latest}, pending {pending})"
        )
        return None
    if policy.start_from != latest:
        await protect(
            lane,
            f"the sequence shall start at {policy.start_from}, but the chain's nonce is {latest}:"
            ' the address was used before (start_from = "chain" adopts its nonce)',
        )
        return None
    return await _begin(lane, latest)


async def _begin(lane: Lane, start: int) -> Cursor:
    cursor = Cursor(start, start, is_doubted=lane.doubts_history)
    await lane.commit(cursor=cursor, entries=[Entry("BeginSequence", {"start": start})], op="begin")
    return cursor
