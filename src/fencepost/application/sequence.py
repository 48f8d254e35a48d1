"""Where a signer's sequence stands: where it begins, and whether the chain agrees with our cursor.

A chain nonce above our cursor means that somebody else used the key, or that the database lost what we had written. It
may also be the word of one endpoint that lies. So it is believed only when every look says so for `ADOPT_AFTER_S`; until
then nothing new gets a nonce. A look counts for a short time only, so that a clock that jumps is no evidence. Then a
strict signer is protected, and a pipelined one goes on from the nonce that all of the looks showed.

After the database lost commits (a replica was promoted that did not have them) bytes of ours may be in a pool, or on
their way to one, at nonces that we don't know of. In the first term of the new history nothing gets a nonce until the
chain has consumed every nonce that we do know of, and no pool that was asked shows more: what lies above them would be
mined then, or at least be waiting. Should the chain go above our cursor in that term, then or later (a node that was asked
may have lagged), the signer is protected.

Known limit: a signer that had just begun, and whose cursor was lost as a whole, looks like a new one. A strict signer
with a fixed start is protected then, as any used address is; with `start_from = "chain"`, and pipelined, the chain's
nonce is taken as it is, and requests that the lost commits had sent are sent once more.
"""

from __future__ import annotations

from dataclasses import replace

from fencepost.application.lane import Lane, protect
from fencepost.application.ports import Cursor
from fencepost.domain.managed import Entry

# A chain nonce above ours is believed when it was seen for this long, at looks that lie this far apart.
ADOPT_AFTER_S = 4.0
LOOK_EVERY_S = 0.25

# With everything of ours mined, a chain nonce below our cursor is a node that lags: it is asked again.
LAG_RETRY_S = 1.0


async def checked_cursor(lane: Lane) -> Cursor | None:
    """The cursor to allocate from, compared with the chain as often as the policy asks; None when it can't be used."""
    cursor = lane.cursor
    if cursor is None:
        return await begin_sequence(lane)
    if lane.ahead_looked_s is not None:
        return None
    if lane.doubts_history:
        if lane.unmined:
            return None
        if not await _is_free_of_doubt(lane, cursor):
            lane.hold_allocation_until_s = lane.clock.now_s() + LAG_RETRY_S
            return None
    now_s, checked_s = lane.clock.now_s(), lane.chain_checked_at_s
    is_fresh = checked_s is not None and now_s - checked_s < lane.policy.state_timeout_s
    if lane.policy.chain_query == "off" or is_fresh:
        return cursor
    on_chain = await lane.chain.nonce(lane.signer.address, lane.policy.chain_query)
    lane.chain_checked_at_s = now_s
    return await _judge(lane, cursor, on_chain)


async def compare_at_take_over(lane: Lane, *, latest: int) -> None:
    """A new term looks at once; a pipelined signer that trusts its ledger looks when it wants a nonce."""
    if lane.cursor is None or lane.is_protected:
        return
    if lane.doubts_history:
        await _is_free_of_doubt(lane, lane.cursor)
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
        await _is_free_of_doubt(lane, cursor)
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
    if lane.is_first_of_history:
        reason = f"the database lost commits: {compared}; requests that look unsent may have been sent"
        await protect(lane, reason)
        return None
    if lane.policy.strict:
        await protect(lane, f"{compared}: somebody else uses this key")
        return None
    adopted = replace(cursor, next_nonce=lane.ahead_nonce)
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


async def _is_free_of_doubt(lane: Lane, cursor: Cursor) -> bool:
    """The chain stands where our cursor does: nothing that the database lost is left above it."""
    address = lane.signer.address
    latest = await lane.chain.nonce(address, "latest")
    on_chain = max(latest, await lane.chain.nonce(address, "pending"))
    if await _judge(lane, cursor, on_chain) is None:
        return False
    lane.doubts_history = bool(lane.unmined) or latest < cursor.next_nonce
    return not lane.doubts_history


async def begin_sequence(lane: Lane) -> Cursor | None:
    """The first use of a signer: where does its sequence begin?"""
    policy, address = lane.policy, lane.signer.address
    if policy.chain_query == "off" and policy.start_from != "chain":
        latest = pending = policy.start_from
    else:
        latest = await lane.chain.nonce(address, "latest")
        pending = max(latest, await lane.chain.nonce(address, "pending"))
    lane.chain_checked_at_s = lane.clock.now_s()
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
    cursor = Cursor(next_nonce=start, start_nonce=start)
    await lane.commit(cursor=cursor, entries=[Entry("BeginSequence", {"start": start})], op="begin")
    return cursor
