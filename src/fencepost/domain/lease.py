"""Define a lease term: its fencing token, and how long the lease holder may trust it.

Safety never depends on a clock: every write names the token, and the database rejects an old one. Time only decides when
the lease holder stops starting new work. `renewed_at_s` is monotonic time read *before* the renewal was sent, so in the
database the lease never ends earlier than the holder assumes.
"""

from __future__ import annotations

from fencepost.domain.ids import Signer
from fencepost.domain.struct import Struct, changed

# The lease holder starts no new work when this share of the lease's duration has passed without a renewal.
TRUSTED_SHARE = 0.6


# The bits of a token above this one hold the number of the database's history, so that a history that lost commits can't
# issue the same token again. `lease.sql` and `load.sql` use the same number.
HISTORY_BITS = 32


def history_of(token: int) -> int:
    return token >> HISTORY_BITS


class Term(Struct, frozen=True):
    signer: Signer
    token: int
    renewed_at_s: float
    duration_s: float

    def is_trusted(self, now_s: float) -> bool:
        return now_s - self.renewed_at_s < self.duration_s * TRUSTED_SHARE

    def renewed(self, at_s: float) -> Term:
        return changed(self, renewed_at_s=at_s)
