"""`python -m fencepost.lab.chaos_node …`: the `fencepost` command with failpoints around its ports. For the lab only."""

from __future__ import annotations

import os
import runpy
from pathlib import Path

from fencepost.lab.failpoints import ORDER_FILE, Failpoints

if __name__ == "__main__":
    Failpoints(Path(os.environ[ORDER_FILE])).install()
    runpy.run_module("fencepost", run_name="__main__", alter_sys=True)
