"""Garbage collection of a process that is a node and nothing else.

What was made until the node is ready (modules, tables, code) lives as long as the process: it is put aside, so that no
collection walks through it again. What a transaction leaves behind goes by reference counts nearly always; collections
are for the rare cycle. A collection walks through what is young and alive, which is transactions under way: at 5,000
objects it was a tenth of a node's work to find nothing. So it comes when 50,000 more were made than let go, which is a
few megabytes. A program that has a node inside decides for itself.
"""

from __future__ import annotations

import gc

YOUNG, MIDDLE, OLD = 50_000, 20, 20


def settle() -> None:
    """Call it once, when everything that stays has been made."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, OLD)
