"""`python -m fencepost.lab.chaos_node …`: the `fencepost` command with failpoints around its ports. For the lab only.

With `--nursery FD` it is one node after the other, forked (`nursery`).

Its wall clock may be wrong by some seconds: whatever asks for the time of day gets a wrong one. Only the log keeps the
lab's own time, since it is the lab that reads it; deadlines are measured on the monotonic clock, which is right.

A node that sleeps at a failpoint can't see that whoever would wake it is gone: on Linux the kernel ends it then.
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

from fencepost.api import intake, jsonrpc_send
from fencepost.lab.failpoints import ORDER_FILE, Failpoints
from fencepost.lab.nursery import raise_nodes

SKEW_S = "LAB_CLOCK_SKEW_S"
_PR_SET_PDEATHSIG = 1


def skew_clock(seconds: float) -> None:
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
    for module in (intake, jsonrpc_send):  # what is said about the time of a request comes through here
        vars(module)["datetime"] = Skewed


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    _die_with_parent()
    if sys.argv[1] == "--nursery":
        importlib.import_module("fencepost.cli.up")
        raise_nodes(socket.socket(fileno=int(sys.argv[2])))
        _die_with_parent()
    Failpoints(Path(os.environ[ORDER_FILE])).install()
    if skew_s := float(os.environ.get(SKEW_S, "0")):
        skew_clock(skew_s)
    runpy.run_module("fencepost", run_name="__main__", alter_sys=True)
