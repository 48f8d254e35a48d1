"""How much is done at a time where many want something: for a lane, and for a sweep of lanes."""

from __future__ import annotations

from fencepost.application.allocate import MOST_AT_ONCE

# In a crowd a lane signs this many before it sends: the chain is not left idle until everybody has signed everything.
LEAST_AT_ONCE = 32

# Transactions of a sweep. The least is what fits into one request to a node: a crowd makes several sweeps, side by side,
# and none of them takes long. Where so many stand in line that they have to wait anyway, larger ones cost less.
LEAST_A_SWEEP, MOST_A_SWEEP = 100, 256


def fair_share(lanes: int) -> int:
    """How many nonces each gives at once: they are signed in one go, and the others wait for that."""
    return max(LEAST_AT_ONCE, MOST_AT_ONCE // lanes)


def sweep_size(lanes: int) -> int:
    """With so many in line: a quarter of them, within bounds."""
    return max(LEAST_A_SWEEP, min(MOST_A_SWEEP, lanes // 4))
