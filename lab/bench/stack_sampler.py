"""Sample the stack of a process every two milliseconds of CPU time, by package and by function.

The kernel counts CPU time and sends a signal; the interpreter takes the stack at its next instruction. So the time of a C
library counts for the Python function that called it, and C code without Python above it (uvloop, asyncpg's protocol, the
HTTP parser) counts for the event loop.
"""

from __future__ import annotations

import signal
import sysconfig
from collections import Counter
from functools import cache
from pathlib import Path
from types import FrameType

import fencepost
import lab

EVERY_S = 0.002
_ROOTS = (Path(fencepost.__file__).parents[1], Path(lab.__file__).parents[1])
_OURS = {f"{root}/{package}/": f"{root}/" for package, root in zip(("fencepost", "lab"), _ROOTS, strict=True)}
_LIBRARIES = {sysconfig.get_paths()[name] + "/" for name in ("purelib", "platlib")}
_STANDARD = sysconfig.get_paths()["stdlib"] + "/"
_LOOP = {_STANDARD + "asyncio/runners.py"}
EVENT_LOOP = "event loop and its C parts"


class Sampler:
    """Count the stacks of this process."""

    def __init__(self) -> None:
        self.stacks: Counter[tuple[str, ...]] = Counter()

    def start(self) -> None:
        """Start sampling; it may be called again."""
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
    """Return module and function for the project's own code, and only the library's name for others."""
    for package, root in _OURS.items():
        if path.startswith(package):
            module = path.removeprefix(root).removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            return f"{module}:{function}"
    for folder in _LIBRARIES:
        if path.startswith(folder):
            return path.removeprefix(folder).split("/", 1)[0].removesuffix(".py")
    if path in _LOOP:
        return EVENT_LOOP
    if path == "<string>":
        return "dataclasses, named tuples"  # generated methods
    return path.removeprefix(_STANDARD).split("/", 1)[0].removesuffix(".py").strip("<>")


def package_of(name: str) -> str:
    """Return the package of a sampled name: `fencepost.adapters.evm` for `fencepost.adapters.evm.rlp:encode`."""
    if name.startswith("lab."):
        return "lab"
    if not name.startswith("fencepost."):
        return name
    parts = name.split(":", 1)[0].split(".")
    if parts[1] == "adapters":
        return ".".join(parts[:3])
    return ".".join(parts[:2])
