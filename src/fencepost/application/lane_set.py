"""Hold the lanes that have a round together, and keep the failure of one from the others.

The lanes of a set belong to one chain and one node, so they share their ports: one call fetches the receipts of all, signs
for all, writes for all or sends for all. A set of one lane is the usual case on a quiet node.

Two rules keep the lanes apart:

- **No lane waits for another.** Work that only one lane needs and that calls an endpoint, a key service or the ledger for
  that lane is done by `apart`: at once if the lane is the only one of its set. Otherwise the lane leaves the set unchanged
  and has a round of its own, which meets the same situation again and handles it.
- **No lane fails with another.** What a lane raises (`guard`) ends the round for that lane only. A shared call that fails,
  fails for the lanes that took part in it. A write belongs to one lane, under its own token, all or nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from types import TracebackType
from typing import Concatenate, ParamSpec

from fencepost.application.lane import Lane, StateMoved
from fencepost.application.lane_parts import LanePorts
from fencepost.application.ports import LaneWrite
from fencepost.domain.ids import Signer
from fencepost.errors import Fenced, FencepostError

Rest = ParamSpec("Rest")


class NeedsOwnRound(Exception):
    """The lane met a situation that only a round of its own handles."""


class LaneSet:
    """Hold the lanes of a round. Iteration yields those that have neither failed nor left."""

    __slots__ = ("_lanes", "failures", "is_lone")

    def __init__(self, lanes: Sequence[Lane]) -> None:
        """Start a round of these lanes, which share their ports."""
        self._lanes = lanes
        self.is_lone = len(lanes) == 1
        self.failures: dict[Signer, Exception] = {}  # of the lanes whose round has ended early

    def __iter__(self) -> Iterator[Lane]:
        if not self.failures:
            return iter(self._lanes)
        return iter([lane for lane in self._lanes if lane.signer not in self.failures])

    def __contains__(self, lane: Lane) -> bool:
        return lane.signer not in self.failures

    @property
    def ports(self) -> LanePorts:
        """The ports that the lanes share."""
        return self._lanes[0].ports

    def end(self, lane: Lane, error: Exception) -> None:
        """End the round of a lane.

        Beside other lanes it leaves the set, and its own round meets the error again and records it. A lost lease and a
        changed row say all there is to know, and the cause of an unexpected error is best kept.
        """
        is_expected = isinstance(error, FencepostError) and not isinstance(error, Fenced | StateMoved)
        self.failures[lane.signer] = NeedsOwnRound() if is_expected and not self.is_lone else error

    def guard(self, *lanes: Lane) -> _Guard:
        """Return a context in which an error ends the round of these lanes only."""
        return _Guard(self, lanes)

    async def apart(
        self,
        lane: Lane,
        work: Callable[Concatenate[Lane, Rest], Awaitable[object]],
        *args: Rest.args,
        **kwargs: Rest.kwargs,
    ) -> bool:
        """Do work that only this lane needs, unless other lanes would wait for it; return whether it was done."""
        if not self.is_lone:
            self.failures[lane.signer] = NeedsOwnRound()
            return False
        with self.guard(lane):
            await work(lane, *args, **kwargs)
        return lane in self

    async def commit(self, writes: Sequence[tuple[Lane, LaneWrite]], *, op: str) -> None:
        """Commit the writes together. After an error of the ledger it is unknown which writes were stored."""
        if not writes:
            return
        ledger = self.ports.ledger
        try:
            if len(writes) == 1:
                written = [await ledger.commit(writes[0][1])]
            else:
                written = list(await ledger.commit_each([write for _, write in writes]))
        except Exception as error:  # noqa: BLE001 - it is the failure of each of these lanes, and of no other
            for lane, _ in writes:
                self.failures[lane.signer] = error
            return
        for (lane, write), answer in zip(writes, written, strict=True):
            with self.guard(lane):
                lane.apply_result(write, answer, op=op)

    def raise_failure(self) -> None:
        """Raise the error of a lone lane, if its round has failed."""
        for error in self.failures.values():
            raise error


class _Guard:
    __slots__ = ("_lanes", "_set")

    def __init__(self, lane_set: LaneSet, lanes: Sequence[Lane]) -> None:
        self._set, self._lanes = lane_set, lanes

    def __enter__(self) -> None:
        return

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False  # no error, or a cancellation, which ends the whole round
        for lane in self._lanes:
            self._set.end(lane, error)
        return True
