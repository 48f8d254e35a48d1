"""The page docs/lab.md, from the figures that the lab's commands print as JSON. What was not run is said to be so.

Nothing on it is written by hand but the words: a figure is there because its file is.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fencepost.lab.checker import INVARIANTS
from fencepost.lab.fault_kinds import KINDS

Figures = Mapping[str, Any]

_HEAD = """\
# How it behaves when things go wrong

Four experiments. Each prints what it found as JSON; this page is made from those files (`docs/figures`) and from nothing
else, by `fencepost lab page > docs/lab.md`.
"""

_NOT_SHOWN = """\
## What is not shown

- Everything runs on one machine: wires between machines fail in more ways than a proxy on the loopback can.
- The chain is Anvil, whose pool and reorgs are simpler than those of a real network. Blocks come every 0.25 s, and
  leases last 3 s, so that much happens in little time.
- The disk is never really full, and no sector is lost: PostgreSQL's promises about what was synced are taken as given.
- What a fail-over lost stays lost, acknowledged or not: nothing can keep what is no longer stored. The last act of the
  chaos run shows that nothing forgotten happens twice, and that its signers stop for a person.
- That nothing forgotten happens twice rests on three things that nobody here can check: the old server is gone for good
  once another one was promoted; the window of a signer was no wider before than after; and no pool keeps bytes for more
  than three hours that belong to a signer whose very first use was forgotten.
- Chaos without a violation is no proof. The mutants say how much the experiments would have noticed.
"""


def page(folder: Path) -> str:
    parts = [_HEAD]
    for name, (title, command, told) in _EXPERIMENTS.items():
        file = folder / f"{name}.json"
        parts.append(f"## {title}\n")
        if not file.exists():
            parts.append("Not run yet.\n")
            continue
        figures = json.loads(file.read_text(encoding="utf-8"))
        parts.append(f"`{command.format_map(figures)}`\n\n{_machine(figures['machine'])}")
        parts += told(figures)
    parts.append(_NOT_SHOWN)
    return "\n".join(parts)


def _machine(facts: Mapping[str, str]) -> str:
    named = ", ".join(
        f"{name} {value}" for name, value in facts.items() if name not in ("cores", "memory", "system")
    )
    return f"On {facts['cores']} cores, {facts['memory']}, {facts['system']}; {named}.\n"


def _chaos(figures: Figures) -> Iterable[str]:
    seconds = figures["faultSeconds"]
    yield _table(
        ("figure", "value"),
        [
            ("seed", figures["seed"]),
            ("time of faults", f"{seconds:g} s"),
            ("nodes", f"{figures['nodes']}, started {figures['nodeStarts']} times"),
            ("faults", f"{figures['faults']:,} of {len(figures['faultsByKind'])} kinds"),
            ("faults a second", f"{figures['faults'] / seconds:.1f}"),
            ("transactions", f"{figures['transactions']:,}"),
            ("transactions a second of faults", f"{figures['transactions'] / seconds:.0f}"),
            ("of them ended while faults still struck", f"{figures['endedUnderFaults']:,}"),
            ("sends, attempts", f"{figures['sends']:,}, {figures['attempts']:,}"),
            ("take-overs of a signer", f"{figures['takeovers']:,}"),
            ("quiet after the last fault", _seconds(figures["quietWithinS"])),
            *_lost_commits(figures.get("lostCommits")),
            ("**violations**", f"**{figures['violationsInAll']}**"),
        ],
    )
    broken = Counter(found["invariant"] for found in figures["violations"])
    yield _table(
        ("", "checked afterwards, on database, chain, and what was sent", "broken"),
        [(number, text, broken[number]) for number, text in INVARIANTS.items()],
    )
    struck = figures["faultsByKind"]
    yield _table(
        ("fault", "what happens", "struck"),
        [(f"`{kind}`", text, struck.get(kind, 0)) for kind, text in KINDS.items()],
    )


def _lost_commits(lost: Figures | None) -> Iterable[tuple[str, str]]:
    if lost is None:
        yield "fail-over with lost commits", "not run yet"
        return
    yield (
        "lost by the fail-over at the end",
        f"{lost['commits']:,} commits, {lost['requests']:,} acknowledged requests",
    )
    yield "sent before it, and forgotten", f"{lost['sentAndForgotten']:,} transactions"
    yield "signers in PROTECT for it", f"{lost['signersProtected']}"
    yield "quiet after it", _seconds(lost["quietWithinS"])


def _failover(figures: Figures) -> Iterable[str]:
    yield (
        "One busy signer, two nodes. From the signal to the node that holds the signer until the other one's first send for"
        f" it, with a lease of {figures['leaseS']:g} s.\n"
    )
    yield _table(
        ("", "runs", "p50 s", "p90 s", "p99 s", "max s"),
        [
            (name, *(figures[key][figure] for figure in ("runs", "p50S", "p90S", "p99S", "maxS")))
            for name, key in (("killed with -9", "kill9"), ("stopped with SIGTERM", "sigterm"))
        ],
    )


def _sim(figures: Figures) -> Iterable[str]:
    yield "The real nodes and lanes on simulated ports; every interleaving and every fault is the seed's choice.\n"
    yield _table(
        ("figure", "value"),
        [
            ("seeds", f"{figures['seeds']:,}"),
            ("simulated time", f"{figures['simulatedHours']:,.1f} h"),
            ("faults", f"{figures['faultCount']:,} of {figures['faultKinds']} kinds"),
            ("requests", f"{figures['requests']:,}, of which {figures['confirmed']:,} were confirmed"),
            ("**seeds with a violation**", f"**{figures['violatingSeeds']}**"),
        ],
    )


def _mutants(figures: Figures) -> Iterable[str]:
    yield (
        "Known mistakes are planted one by one. A schedule made for it must notice each; random seeds of the simulator"
        " should.\n"
    )
    yield _table(
        ("figure", "value"),
        [
            ("mutants", figures["mutants"]),
            ("noticed by schedules", f"{figures['schedulesPercent']:g} %"),
            (f"noticed by {figures['seeds']} random seeds", f"{figures['simulatorPercent']:g} %"),
            ("unsafe statements noticed on PostgreSQL", f"{figures['sqlCaught']} of {len(figures['sql'])}"),
        ],
    )


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:g} s"


def _table(head: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines) + "\n"


_EXPERIMENTS: dict[str, tuple[str, str, Callable[[Figures], Iterable[str]]]] = {
    "chaos": ("Chaos", "./dev chaos --seconds {faultSeconds:g} --seed {seed} --json", _chaos),
    "failover": ("Fail-over", "./dev run fencepost lab failover --runs {kill9[runs]} --json", _failover),
    "sim": ("The simulator", "./dev sim --seeds {seeds} --json", _sim),
    "mutants": ("Mutants", "./dev mutants --seeds {seeds} --json", _mutants),
}
