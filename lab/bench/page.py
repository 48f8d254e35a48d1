"""Render `docs/speed.md` and its charts from measured figures.

`render_page` is a pure function of the figures, so that a test can compare the page with them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from fencepost.errors import Unready
from lab.bench import charts
from lab.bench.profile import Profile
from lab.bench.report import Figure, number, rows

_HEAD = """\
# Speed: what Fencepost costs, and where the time goes

Written by `./dev bench --page docs` from [figures/bench.json](figures/bench.json) and
[figures/profile.json](figures/profile.json); do not edit by hand. Measure on your own machine with `./dev bench`
(`--quick` for a first answer, `--only NAME` for one row, `--json` for scripts) and `./dev bench --profile`.

Everything is measured with a real PostgreSQL and chain, with fsync on and every write fenced, and compared with what the
same machine does without Fencepost in the same run. Absolute figures on shared machines vary: read the ratios.
"""


def write_page(folder: Path) -> None:
    """Write the page from `figures/bench.json` and `figures/profile.json` in the same folder.

    `bench.json` may have `notes` about figures that were not measured in the usual way.
    """
    for name, text in render_page(folder / "figures").items():
        (folder / name).write_text(text, encoding="utf-8")


def render_page(folder: Path) -> dict[str, str]:
    """Return the page's files by name."""
    try:
        measured = json.loads((folder / "bench.json").read_text())
        profile = msgspec.json.decode((folder / "profile.json").read_bytes(), type=Profile)
    except FileNotFoundError as error:
        raise Unready(f"{error.filename} is missing: write it with --json first") from error
    figures = [_figure(fields) for fields in measured["figures"]]
    stages = [(stage.stage, stage.p50_ms) for stage in profile.stages]
    packages = [
        (cost.package, cost.us, f"{number(cost.us)} µs ({cost.share:.0%})") for cost in profile.packages
    ]
    stacks = [(stack.frames, stack.share) for stack in profile.stacks]
    growth = [
        (
            figure.name.removeprefix("growth: "),
            figure.ratio or 0.0,
            f"{figure.ratio or 0.0:.2f} of {figure.compared_with}",
        )
        for figure in figures
        if figure.name.startswith("growth: ")
    ]
    return {
        "speed.md": _text(figures, measured, profile),
        "speed-targets.svg": charts.targets(figures, measured["machine"]),
        "speed-stages.svg": charts.stage_timeline(
            f"One transaction at {profile.rate} a second, median milliseconds a stage", stages
        ),
        "speed-growth.svg": charts.bars("How cost grows: CPU a transaction against the smallest", growth),
        "speed-packages.svg": charts.bars("CPU of a node, µs a transaction", packages),
        "speed-flames.svg": charts.flames("CPU of a node at the ceiling", stacks),
    }


def _figure(fields: Mapping[str, Any]) -> Figure:
    return Figure(**{name: fields[name] for name in Figure.__dataclass_fields__})


def _text(figures: Sequence[Figure], measured: Mapping[str, Any], profile: Profile) -> str:
    lines = [
        _HEAD,
        "## Figures",
        "",
        _measured_on(measured["machine"]),
        "",
        *_table(("figure", "value", "compared with", "ratio", "target", ""), rows(figures)),
        "",
        *(f"- not measured: {name} ({why})" for name, why in measured["failures"].items()),
        *(f"- {note}" for note in measured.get("notes", ())),
        "",
        "![Figures against their targets](speed-targets.svg)",
        "",
        "## Where a transaction's time goes",
        "",
        (
            f"At {profile.rate} transactions per second, single `POST /tx`, against a stub chain that answers immediately and mines a"
            " block every 20 ms. Each stage ends where the next begins; HTTP is both directions."
        ),
        "",
        *_table(
            ("stage", "median", "mean"),
            [
                (stage.stage, f"{number(stage.p50_ms)} ms", f"{number(stage.mean_ms)} ms")
                for stage in profile.stages
            ],
        ),
        "",
        "![Stages of a transaction](speed-stages.svg)",
        "",
        "## Where a node's CPU goes",
        "",
        (
            f"{number(profile.node_us)} µs per transaction over {profile.transactions:,} transactions by `/tx/batch`, sampled"
            " every 2 ms of CPU (which costs something itself). The time of a C library counts for the Python function that calls it."
        ),
        "",
        _measured_on(profile.machine),
        "",
        "![CPU by package](speed-packages.svg)",
        "",
        "![Flame graph](speed-flames.svg)",
        "",
        "## How cost grows",
        "",
        "CPU of node and database together; all leases are acquired before the clock starts.",
        "",
        "![Growth](speed-growth.svg)",
        "",
    ]
    return "\n".join(lines)


def _measured_on(facts: Mapping[str, str]) -> str:
    return "Measured on: " + ", ".join(f"{name} {value}" for name, value in facts.items()) + "."


def _table(head: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *body)]
