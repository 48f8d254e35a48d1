"""The `fencepost` command. What goes wrong is said in one line, with exit code 2; a bug keeps its traceback."""

from __future__ import annotations

import importlib
import sys

import click

from fencepost.errors import FencepostError

_COMMANDS = {
    "up": "fencepost.cli.up:up",
    "demo": "fencepost.cli.demo:demo",
    "send": "fencepost.cli.send:send",
    "call-contract": "fencepost.cli.send:call_contract",
    "tx": "fencepost.cli.tx:tx",
    "signer": "fencepost.cli.signer:signer",
    "nonce": "fencepost.cli.nonce:nonce",
    "nodes": "fencepost.cli.nodes:nodes",
    "keys": "fencepost.cli.keys:keys",
    "migrate": "fencepost.cli.migrate:migrate",
    "doctor": "fencepost.cli.doctor:doctor",
    "config": "fencepost.cli.config:config",
    "bench": "fencepost.cli.bench:bench",
    "lab": "fencepost.cli.lab:lab",
    "version": "fencepost.cli.version:version",
}


class LazyGroup(click.Group):
    """Imports a command when it is called: `fencepost version` must not load the whole server."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        place = _COMMANDS.get(cmd_name)
        if place is None:
            return None
        module, _, name = place.partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command


@click.group(
    cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
def cli() -> None:
    """A transaction manager for EVM chains: nonces never repeated, never skipped, however many nodes run."""


def main() -> None:
    try:
        status = cli.main(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except FencepostError as error:
        click.echo(f"fencepost: {error}", err=True)
        sys.exit(2)
    sys.exit(status if isinstance(status, int) else 0)
