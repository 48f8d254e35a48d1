"""Define the `fencepost` command.

A `FencepostError` is printed as one line, with exit code 2. Any other exception is a bug and keeps its traceback.
"""

from __future__ import annotations

import importlib
import sys
from typing import NoReturn

import click

from fencepost.errors import FencepostError

_COMMANDS = {
    "up": "fencepost.cli.up:up",
    "demo": "fencepost.cli.demo:demo",
    "send": "fencepost.cli.send:send",
    "call-contract": "fencepost.cli.send:call_contract",
    "deploy": "fencepost.cli.send:deploy",
    "tx": "fencepost.cli.tx:tx",
    "status": "fencepost.cli.status:status",
    "signer": "fencepost.cli.signer:signer",
    "events": "fencepost.cli.events:events",
    "subscription": "fencepost.cli.subscription:subscription",
    "command": "fencepost.cli.command:command",
    "nonce": "fencepost.cli.nonce:nonce",
    "nodes": "fencepost.cli.nodes:nodes",
    "keys": "fencepost.cli.keys:keys",
    "migrate": "fencepost.cli.migrate:migrate",
    "restore": "fencepost.cli.restore:restore",
    "doctor": "fencepost.cli.doctor:doctor",
    "fees": "fencepost.cli.fees:fees",
    "errors": "fencepost.cli.errors:errors",
    "config": "fencepost.cli.config:config",
    "version": "fencepost.cli.version:version",
}


class LazyGroup(click.Group):
    """Import a command only when it is called: `fencepost version` must not load the whole server."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        target = _COMMANDS.get(cmd_name)
        if target is None:
            return None
        module, _, name = target.partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command


@click.group(
    cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(package_name="fencepost", message="%(version)s")
def cli() -> None:
    """Fencepost, a transaction manager for EVM chains: no nonce is used twice or skipped, with any number of nodes."""


def main() -> None:
    """Run the command line and exit with its status."""
    run(cli)


def run(command: click.Command) -> NoReturn:
    """Run a command and exit with its status; print a `FencepostError` as one line."""
    try:
        status = command.main(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except FencepostError as error:
        click.echo(f"fencepost: {error}", err=True)
        sys.exit(2)
    sys.exit(status if isinstance(status, int) else 0)
