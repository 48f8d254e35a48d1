"""Define the command `python -m lab`."""

from __future__ import annotations

import click

from fencepost.cli.main import run
from lab.commands.bench import bench
from lab.commands.chaos import chaos, failover
from lab.commands.page import page
from lab.commands.schemes import schemes
from lab.commands.sim import sim


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def lab() -> None:
    """Run experiments on Fencepost: faults, fail-overs, simulations, nonce schemes, benchmarks."""


for command in (bench, chaos, failover, page, schemes, sim):
    lab.add_command(command)

if __name__ == "__main__":
    run(lab)
