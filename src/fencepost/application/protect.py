"""The alarm of a lane: what it relies on does not hold."""

from __future__ import annotations

from fencepost.application.lane import Lane
from fencepost.application.ports import Cursor
from fencepost.domain.managed import Entry
from fencepost.domain.states import CursorState
from fencepost.domain.value import changed


async def protect(lane: Lane, reason: str) -> None:
    """A precondition is broken: nothing more goes out for this signer until a person decides."""
    if lane.is_protected:
        return
    await lane.write_held()  # what went out before the alarm is told before it
    start = lane.policy.start_from if isinstance(lane.policy.start_from, int) else 0
    base = lane.cursor or Cursor(start, start, is_doubted=lane.doubts_history)
    cursor = changed(base, state=CursorState.PROTECT, reason=reason[:2000])
    await lane.commit(cursor=cursor, entries=[Entry("Protect", {"reason": reason})], op="protect")
    lane.observer.note("protect", signer=lane.signer, token=lane.term.token, reason=reason)
