"""Count how often the lane of a signer fails in the same way, to stop what would otherwise be an endless loop.

A lane that fails is dropped and acquired again, because the outcome is unknown after a database error. If the cause is a
stored row or a defect of Fencepost, the next lane fails in the same way. So the pauses between the lanes grow, and after
`MAX_EQUAL_FAILURES` failures the signer is put into PROTECT with the error, until an operator decides.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fencepost.domain.ids import Signer

MAX_EQUAL_FAILURES = 5
FIRST_PAUSE_S = 0.5
MAX_PAUSE_S = 60.0
MAX_ERROR_CHARS = 500

# Failures that are further apart than this do not belong together.
MAX_APART_S = 120.0
MAX_DOUBLINGS = 6


@dataclass(slots=True)
class _FailureCount:
    kind: str
    text: str
    count: int = 0


@dataclass(slots=True)
class RepeatedFailures:
    """Count failures by signer."""

    _by_signer: dict[Signer, _FailureCount] = field(default_factory=dict)
    _paused: dict[Signer, tuple[float, float]] = field(default_factory=dict)  # the first and the last pause
    _handed_over: dict[Signer, int] = field(default_factory=dict)

    def pause(self, signer: Signer, now_s: float) -> float:
        """Count a step that failed for lack of an endpoint or a key; return since when all steps have failed."""
        since_s = self.failing_since_s(signer, now_s)
        self._paused[signer] = (now_s if since_s is None else since_s, now_s)
        return self._paused[signer][0]

    def failing_since_s(self, signer: Signer, now_s: float) -> float | None:
        """Return since when all steps of the signer have failed here, or None. It outlasts the signer's lanes."""
        since_s, last_s = self._paused.get(signer, (0.0, 0.0))
        return since_s if signer in self._paused and 0 <= now_s - last_s < MAX_APART_S else None

    def add(self, signer: Signer, error: BaseException) -> float:
        """Count a failure, and return the seconds to wait before the signer is acquired again."""
        kind = _kind(error)
        failure = self._by_signer.get(signer)
        if failure is None or failure.kind != kind:
            failure = self._by_signer[signer] = _FailureCount(kind, "")
        failure.count += 1
        failure.text = f"{type(error).__name__}: {error}"[:MAX_ERROR_CHARS]
        return min(MAX_PAUSE_S, FIRST_PAUSE_S * float(1 << min(failure.count - 1, 10)))

    def hand_over_after_s(self, signer: Signer, first_s: float) -> float:
        """Return how long the steps must fail before the signer is handed over; longer after each time in vain."""
        return first_s * float(1 << min(self._handed_over.get(signer, 0), MAX_DOUBLINGS))

    def handed_over(self, signer: Signer) -> None:
        """Count that the signer was handed over because its steps failed here."""
        self._handed_over[signer] = self._handed_over.get(signer, 0) + 1
        self._paused.pop(signer, None)

    def forget(self, signer: Signer) -> None:
        """Reset the count after a successful step of the signer."""
        if self._by_signer:
            self._by_signer.pop(signer, None)
        if self._paused:
            self._paused.pop(signer, None)
        if self._handed_over:
            self._handed_over.pop(signer, None)

    def alarm(self, signer: Signer) -> str | None:
        """Return the reason to protect the signer, or None."""
        failure = self._by_signer.get(signer)
        if failure is None or failure.count < MAX_EQUAL_FAILURES:
            return None
        return (
            f"the lane failed {failure.count} times in the same way: {failure.text};"
            " see the log of the node, remove the cause, then unprotect the signer"
        )


def _kind(error: BaseException) -> str:
    """Identify a failure by its type and place; its text may differ each time."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace is not None else ""
    return f"{type(error).__name__} {where}"
