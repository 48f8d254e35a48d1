"""`python -m fencepost.lab.chaos_node …`: the `fencepost` command with failpoints around its ports. For the lab only.

A node that sleeps at a failpoint can't see that whoever would wake it is gone: on Linux the kernel ends it then.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys
from pathlib import Path

from fencepost.lab.failpoints import ORDER_FILE, Failpoints

_PR_SET_PDEATHSIG = 1

if __name__ == "__main__":
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    Failpoints(Path(os.environ[ORDER_FILE])).install()
    runpy.run_module("fencepost", run_name="__main__", alter_sys=True)
