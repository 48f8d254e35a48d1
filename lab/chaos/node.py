"""Run the `fencepost` command with failpoints around its ports: `python -m lab.chaos.node …`. For the lab only.

With `--fork-server FD` it forks one node after the other (`lab.chaos.fork_server`).

Its wall clock may be wrong by some seconds. Only the log keeps the lab's time, because the lab reads it; deadlines use the
monotonic clock, which is right.

A node that is paused at a failpoint can't notice that the lab is gone: on Linux the kernel kills it then.
"""

from __future__ import annotations

import ctypes
import importlib
import logging
import os
import runpy
import signal
import socket
import sys
import time
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Any

from fencepost.api import request_parser
from fencepost.api.jsonrpc import send
from lab.chaos.failpoints import ORDER_FILE, Failpoints
from lab.chaos.fork_server import serve_forks

SKEW_S = "LAB_CLOCK_SKEW_S"
_PR_SET_PDEATHSIG = 1


def skew_clock(seconds: float) -> None:
    """Shift the wall clock of this process, but not its log."""
    right_s, make_record = time.time, logging.getLogRecordFactory()

    class Skewed(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Any:
            return datetime.fromtimestamp(right_s() + seconds, tz)

    def record(*args: Any, **named: Any) -> logging.LogRecord:
        made = make_record(*args, **named)
        made.created = right_s()
        return made

    time.time = lambda: right_s() + seconds
    logging.setLogRecordFactory(record)
    for module in (request_parser, send):  # times in requests are read here
        vars(module)["datetime"] = Skewed


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    _die_with_parent()
    if sys.argv[1] == "--fork-server":
        importlib.import_module("fencepost.cli.up")
        serve_forks(socket.socket(fileno=int(sys.argv[2])))
        _die_with_parent()
    Failpoints(Path(os.environ[ORDER_FILE])).install()
    if skew_s := float(os.environ.get(SKEW_S, "0")):
        skew_clock(skew_s)
    runpy.run_module("fencepost", run_name="__main__", alter_sys=True)
