"""Render the page docs/lab.md from the JSON results of the lab's commands.

The page contains no figure without a result file; an experiment without one is shown as not run.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lab.chaos.fault_kinds import KINDS
from lab.checker.invariants import INVARIANTS

Figures = Mapping[str, Any]

_HEAD = """\
# Behaviour under faults

Four experiments. Each prints its results as JSON. `./dev run python -m lab page > docs/lab.md` renders this page from those
files (`docs/figures`) only.
"""

_NOT_SHOWN = """\
## What is not shown

- Everything runs on one machine: networks fail in more ways than a proxy on the loopback interface.
- The chain is Anvil, whose pool and reorgs are simpler than those of a real network. Blocks come every 0.25 s and
  leases last 3 s, so that much happens in a short time.
- The disk is never really full, and no sector is lost: the lab trusts what PostgreSQL has synced.
- Commits that a fail-over lost stay lost, acknowledged or not. The last phase of the chaos run shows that no forgotten
  transaction happens twice, and that its signers enter PROTECT.
- That no forgotten transaction happens twice depends on three things that the lab can't check: the old server is gone for
  good after the promotion; the window of a signer was no wider before than after; and no pool keeps for more than three
  hours the bytes of a signer whose first use was forgotten.
- A chaos run without a violation is no proof. The mutants show how much the experiments would have found.
"""


def render_page(folder: Path) -> str:
    parts = [_HEAD]
    for name, (title, command, render) in _EXPERIMENTS.items():
        file = folder / f"{name}.json"
        parts.append(f"## {title}\n")
        if not file.exists():
            parts.append("Not run yet.\n")
            continue
        figures = json.loads(file.read_text(encoding="utf-8"))
        parts.append(f"`{command.format_map(figures)}`\n\n{_machine(figures['machine'])}")
        parts += render(figures)
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
            ("faults per second", f"{figures['faults'] / seconds:.1f}"),
            ("transactions", f"{figures['transactions']:,}"),
            ("transactions per second of faults", f"{figures['transactions'] / seconds:.0f}"),
            ("of them ended during the faults", f"{figures['endedUnderFaults']:,}"),
            ("sends, attempts", f"{figures['sends']:,}, {figures['attempts']:,}"),
            ("take-overs of a signer", f"{figures['takeovers']:,}"),
            ("quiet after the last fault", _seconds(figures["quietWithinS"])),
            *_restored_copy(figures.get("restoredCopy")),
            *_lost_commits(figures.get("lostCommits")),
            ("**violations**", f"**{figures['violationsInAll']}**"),
        ],
    )
    broken = Counter(found["invariant"] for found in figures["violations"])
    yield _table(
        ("", "checked afterwards, on database, chain, and what was sent", "broken"),
        [(number, text, broken[number]) for number, text in INVARIANTS.items()],
    )
    counts = figures["faultsByKind"]
    yield _table(
        ("fault", "what happens", "count"),
        [(f"`{kind}`", text, counts.get(kind, 0)) for kind, text in KINDS.items()],
    )


def _restored_copy(facts: Figures | None) -> Iterable[tuple[str, str]]:
    if facts is None:
        yield "restore from an older copy", "not run yet"
        return
    yield (
        "restored from a copy without its last seconds",
        f"{facts['lostS']:g} s, {facts['requestsWithoutNonce']:,} requests without a nonce in it",
    )
    yield "of them already executed, and attached", f"{facts['requestsAttached']:,}"
    yield "nonces that fillers took because of the doubt", f"{facts['noncesFilled']:,}"
    yield "quiet after the restore", _seconds(facts["quietWithinS"])


def _lost_commits(lost: Figures | None) -> Iterable[tuple[str, str]]:
    if lost is None:
        yield "fail-over with lost commits", "not run yet"
        return
    yield (
        "lost by the fail-over at the end",
        f"{lost['commits']:,} commits, {lost['requests']:,} acknowledged requests",
    )
    yield "sent before it and forgotten", f"{lost['sentAndForgotten']:,} transactions"
    yield "signers in PROTECT because of it", f"{lost['signersProtected']}"
    yield "quiet after it", _seconds(lost["quietWithinS"])


def _failover(figures: Figures) -> Iterable[str]:
    yield (
        "One busy signer, two nodes: the time from the signal to the lease holder until the other node's first send, with"
        f" a lease of {figures['leaseS']:g} s.\n"
    )
    yield _table(
        ("", "runs", "p50 s", "p90 s", "p99 s", "max s"),
        [
            (name, *(figures[key][figure] for figure in ("runs", "p50S", "p90S", "p99S", "maxS")))
            for name, key in (("kill -9", "kill9"), ("SIGTERM", "sigterm"))
        ],
    )


def _sim(figures: Figures) -> Iterable[str]:
    yield "Real nodes and lanes on simulated ports; the seed chooses every interleaving and every fault.\n"
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
        "Known flaws are planted one by one. A schedule made for it must catch each; random seeds of the simulator"
        " should.\n"
    )
    yield _table(
        ("figure", "value"),
        [
            ("mutants", figures["mutants"]),
            ("caught by schedules", f"{figures['schedulesPercent']:g} %"),
            (f"caught by {figures['seeds']} random seeds", f"{figures['simulatorPercent']:g} %"),
            ("unsafe statements caught on PostgreSQL", f"{figures['sqlCaught']} of {len(figures['sql'])}"),
        ],
    )


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:g} s"


def _table(head: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines) + "\n"


_EXPERIMENTS: dict[str, tuple[str, str, Callable[[Figures], Iterable[str]]]] = {
    "chaos": ("Chaos", "./dev chaos --seconds {faultSeconds:g} --seed {seed} --json", _chaos),
    "failover": ("Fail-over", "./dev failover --runs {kill9[runs]} --json", _failover),
    "sim": ("The simulator", "./dev sim --seeds {seeds} --json", _sim),
    "mutants": ("Mutants", "./dev mutants --seeds {seeds} --json", _mutants),
}
