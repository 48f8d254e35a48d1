"""Where a process spends its CPU: its stack, every two milliseconds of CPU time, told by package and by function.

The kernel counts CPU and signals; the interpreter takes the stack at its next instruction. So what a C library does
counts for the Python function that called it, and what C does with no Python above it (uvloop, asyncpg's protocol, the
HTTP parser) for the event loop.
"""

from __future__ import annotations

import signal
import sysconfig
from collections import Counter
from functools import cache
from pathlib import Path
from types import FrameType

EVERY_S = 0.002
_OURS = str(Path(__file__).parents[2]) + "/"
_LIBRARIES = {sysconfig.get_paths()[name] + "/" for name in ("purelib", "platlib")}
_STANDARD = sysconfig.get_paths()["stdlib"] + "/"
_LOOP = {_STANDARD + "asyncio/runners.py"}
EVENT_LOOP = "event loop and its C parts"


class Sampler:
    def __init__(self) -> None:
        self.stacks: Counter[tuple[str, ...]] = Counter()

    def start(self) -> None:
        """May be called again."""
        signal.signal(signal.SIGPROF, self._sample)
        signal.setitimer(signal.ITIMER_PROF, EVERY_S, EVERY_S)

    def stop(self) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)

    def _sample(self, _signal: int, frame: FrameType | None) -> None:
        names: list[str] = []
        while frame is not None:
            name = named(frame.f_code.co_filename, frame.f_code.co_name)
            if not names or names[-1] != name:
                names.append(name)
            frame = frame.f_back
        self.stacks[tuple(reversed(names))] += 1


@cache
def named(path: str, function: str) -> str:
    """Our own code by module and function, libraries by their name alone."""
    if path.startswith(_OURS):
        module = path.removeprefix(_OURS).removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        return f"fencepost.{module}:{function}"
    for folder in _LIBRARIES:
        if path.startswith(folder):
            return path.removeprefix(folder).split("/", 1)[0].removesuffix(".py")
    if path in _LOOP:
        return EVENT_LOOP
    if path == "<string>":
        return "dataclasses, named tuples"  # the methods that those write
    return path.removeprefix(_STANDARD).split("/", 1)[0].removesuffix(".py").strip("<>")


def package_of(name: str) -> str:
    """`fencepost.adapters.evm.rlp:encode` belongs to fencepost.adapters.evm, `aiohttp` to itself."""
    if not name.startswith("fencepost."):
        return name
    parts = name.split(":", 1)[0].split(".")
    if parts[1] == "adapters":
        return ".".join(parts[:3])
    return ".".join(parts[:2])
