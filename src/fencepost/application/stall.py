"""Record on the waiting transactions why their lane can't continue, and remove that when it continues.

While the endpoints or the key store do not do what a lane needs, each of its steps fails and is retried. The transactions
do not move meanwhile, so after `STALL_AFTER_S` they are marked STUCK with the error of the last step. A step that succeeds
removes the mark.
"""

from __future__ import annotations

from functools import partial

from fencepost.application.lane import Lane
from fencepost.domain import transaction_state
from fencepost.domain.states import State, SubState
from fencepost.domain.transaction_state import ManagedTx

STALL_AFTER_S = 10.0

# How many transactions are marked: the lowest nonces, and the head of the queue.
MAX_MARKED = 100
MAX_ERROR_CHARS = 500

_PREFIX = "the signer can't continue and is retried: "
_MAY_BE_MARKED = frozenset({None, SubState.STALE})


def is_stalled(lane: Lane) -> bool:
    """Return whether all steps have failed for so long that the transactions should say so."""
    since_s = lane.suspicion.failing_since_s
    return since_s is not None and lane.now_s() - since_s >= STALL_AFTER_S


async def record_stall(lane: Lane, error: Exception) -> None:
    """Mark the transactions that wait, if the lane is stalled and they have no other reason."""
    if not is_stalled(lane) or not lane.is_loaded or lane.is_protected:
        return
    reason = f"{_PREFIX}{error}"[:MAX_ERROR_CHARS]
    waiting = [tx for tx in _waiting(lane) if tx.sub_state in _MAY_BE_MARKED and tx.ending is None]
    if not waiting:
        return
    lane.ports.observer.note(
        "stalled", signer=lane.signer, count=len(waiting), tx=waiting[0].tx_id, reason=reason
    )
    mark = partial(transaction_state.mark_stuck, reason=reason)
    await lane.commit([lane.change(tx, mark) for tx in waiting], op="stall")
    lane.suspicion.has_stall_marks = True


async def clear_stall(lane: Lane) -> None:
    """Remove the marks after a successful step."""
    if not lane.suspicion.has_stall_marks:
        return
    marked = [tx for tx in (*lane.in_flight.values(), *lane.queue) if _is_marked(tx)]
    if marked:
        await lane.commit([lane.change(tx, transaction_state.unmark_stuck) for tx in marked], op="unstall")
    lane.suspicion.has_stall_marks = False


def _waiting(lane: Lane) -> list[ManagedTx]:
    """Return the transactions that the lane should move, lowest nonce first, and the head of its queue."""
    unmined = [tx for tx in lane.unmined if tx.state is not State.SUSPENDED]
    return [*unmined[: MAX_MARKED - 1], *([lane.queue[0]] if lane.queue else [])]


def _is_marked(tx: ManagedTx) -> bool:
    return tx.sub_state is SubState.STUCK and (tx.error or "").startswith(_PREFIX)
