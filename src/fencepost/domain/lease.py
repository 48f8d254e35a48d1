"""The right to act for a signer: a term with its fencing token, and how long this node may trust it.

Safety never rests on a clock: every write names the token, and the database refuses an old one. Time only decides when
a holder stops starting new work. `renewed_at_s` is monotonic time read *before* the renewal was sent, so the lease as
the database sees it ends later than we think, never earlier.
"""

from __future__ import annotations

from fencepost.domain.ids import Signer
from fencepost.domain.value import Value, changed

# Beyond this share of the lease's duration without a renewal, no new work is started.
TRUSTED_SHARE = 0.6


# The database's history stands above this bit of a token, so that a history that lost commits can't repeat one.
HISTORY_BITS = 40


def history_of(token: int) -> int:
    return token >> HISTORY_BITS


class Term(Value, frozen=True):
    signer: Signer
    token: int
    renewed_at_s: float
    duration_s: float

    def is_trusted(self, now_s: float) -> bool:
        return now_s - self.renewed_at_s < self.duration_s * TRUSTED_SHARE

    def renewed(self, at_s: float) -> Term:
        return changed(self, renewed_at_s=at_s)
