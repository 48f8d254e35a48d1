"""Garbage collection of a process that is a node and nothing else.

What was made until the node is ready (modules, tables, code) lives as long as the process: it is put aside, so that no
collection walks through it again. What a transaction leaves behind goes by reference counts nearly always; full
collections are for the rare cycle, and come rarely. A program that has a node inside decides for itself.
"""

from __future__ import annotations

import gc

YOUNG, MIDDLE, OLD = 5_000, 20, 100


def settle() -> None:
    """Call it once, when everything that stays has been made."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, OLD)
