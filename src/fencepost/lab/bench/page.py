"""The page about speed, written from figures that were measured: `docs/speed.md` and its pictures.

`page` is a pure function of the figures, so that a test can hold what is printed against what was measured.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from fencepost.errors import Unready
from fencepost.lab.bench import charts
from fencepost.lab.bench.profile import Profile
from fencepost.lab.bench.report import Figure, number, rows

_HEAD = """\
# Speed: what it costs, and where the time goes

Written by `./dev bench --page docs` from [figures/bench.json](figures/bench.json) and
[figures/profile.json](figures/profile.json); do not edit by hand. Measure on your own machine with `./dev bench`
(`--quick` for a first answer, `--only NAME` for one row, `--json` for scripts) and `./dev bench --profile`.

Everything is measured on real parts, with fsync on and every write fenced, and stands beside what the same machine does
without Fencepost in the same run. Absolute figures on shared machines mean little: read the ratios.
"""


def write_page(folder: Path) -> None:
    """From `figures/bench.json` and `figures/profile.json` in the same folder.

    Whoever keeps figures may add `notes` to those of the benchmark: how they came about, where that isn't the usual way.
    """
    for name, text in page(folder / "figures").items():
        (folder / name).write_text(text, encoding="utf-8")


def page(figures: Path) -> dict[str, str]:
    """The page's files by name."""
    try:
        measured = json.loads((figures / "bench.json").read_text())
        profile = msgspec.json.decode((figures / "profile.json").read_bytes(), type=Profile)
    except FileNotFoundError as error:
        raise Unready(f"{error.filename} is missing: write it with --json first") from error
    told = [_figure(fields) for fields in measured["figures"]]
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
        for figure in told
        if figure.name.startswith("growth: ")
    ]
    return {
        "speed.md": _text(told, measured, profile),
        "speed-targets.svg": charts.targets(told, measured["machine"]),
        "speed-stages.svg": charts.line_of_stages(
            f"One transaction at {profile.rate} a second, median milliseconds a stage", stages
        ),
        "speed-growth.svg": charts.bars("How cost grows: CPU a transaction against the smallest", growth),
        "speed-packages.svg": charts.bars("CPU of a node, µs a transaction", packages),
        "speed-flames.svg": charts.flames("CPU of a node at the ceiling", stacks),
    }


def _figure(fields: Mapping[str, Any]) -> Figure:
    return Figure(**{name: fields[name] for name in Figure.__dataclass_fields__})


def _text(told: Sequence[Figure], measured: Mapping[str, Any], profile: Profile) -> str:
    lines = [
        _HEAD,
        "## Figures",
        "",
        _measured_on(measured["machine"]),
        "",
        *_table(("figure", "value", "compared with", "ratio", "target", ""), rows(told)),
        "",
        *(f"- not measured: {name} ({why})" for name, why in measured["failures"].items()),
        *(f"- {note}" for note in measured.get("notes", ())),
        "",
        "![Figures against their targets](speed-targets.svg)",
        "",
        "## Where a transaction's time goes",
        "",
        (
            f"At {profile.rate} transactions a second, single `POST /tx`, against a chain that answers at once and makes a"
            " block every 20 ms. Each stage ends where the next begins; HTTP is there and back."
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
            f"{number(profile.node_us)} µs a transaction over {profile.transactions:,} transactions by `/tx/batch`, sampled"
            " every 2 ms of CPU (which costs something itself). What a C library does counts for the Python function above it."
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
        "CPU of node and database together, with all leases taken before the clock runs.",
        "",
        "![Growth](speed-growth.svg)",
        "",
    ]
    return "\n".join(lines)


def _measured_on(facts: Mapping[str, str]) -> str:
    return "Measured on: " + ", ".join(f"{name} {value}" for name, value in facts.items()) + "."


def _table(head: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *body)]
