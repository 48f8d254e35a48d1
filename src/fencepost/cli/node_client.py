"""Share options, exit codes and parameter types among the commands that call a node.

Exit codes: 0 success; 1 the node answered with a negative result (the transaction failed, was not found, or has not
reached the milestone); 2 the call could not be made (usage, settings, no node, no permission); 3 a request was sent and
its outcome is unknown.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec

from fencepost import settings
from fencepost.client import Client, wei
from fencepost.client.errors import NotAuthenticated, NotFound, NotReached, WrongState
from fencepost.settings.numeric_types import Duration

OK, NO, FAILURE, OUTCOME_UNKNOWN = 0, 1, 2, 3
_DURATION = Duration(0, 24 * 3600)
RETRY_FOR_S = 5.0  # short: a person waits for the command


def node_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--url`, `--config` and `--json`, and pass the command a `client: Client` and `as_json: bool`."""

    @click.option(
        "--url", "urls", multiple=True, help="URL of a node; may be repeated.  [env: FENCEPOST_URL]"
    )
    @click.option(
        "--config",
        type=click.Path(path_type=Path, dir_okay=False),
        help="Read this file instead of fencepost.toml.",
    )
    @click.option("--json", "as_json", is_flag=True, help="Print JSON.")
    @functools.wraps(command)
    def with_client(*args: Any, urls: tuple[str, ...], config: Path | None, **options: Any) -> Any:
        flags = {"client.urls": ",".join(urls)} if urls else {}
        loaded = settings.load(toml_path=config, flags=flags).settings
        api_key = loaded.client.api_key or None
        with Client(loaded.client.urls, api_key=api_key, retry_for_s=RETRY_FOR_S) as client:
            try:
                return command(*args, client=client, **options)
            except (NotFound, WrongState, NotReached) as error:
                click.echo(f"fencepost: {error}", err=True)
                return NO
            except NotAuthenticated as error:
                hint = (
                    "the key in FENCEPOST_API_KEY is not valid"
                    if api_key
                    else "set FENCEPOST_API_KEY to an API key"
                )
                click.echo(f"fencepost: {error}: {hint} (fencepost keys create makes one)", err=True)
                return FAILURE

    return with_client


def command_options(
    *, timeout: str = "5s", needs_reason: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add `--reason` and `--timeout`, the options of operator commands."""
    reason_option = click.option(
        "--reason", required=needs_reason, help="The reason, stored with the command."
    )
    timeout_option = click.option(
        "--timeout",
        "timeout_s",
        type=SECONDS,
        default=timeout,
        show_default=True,
        help="How long to wait until the command is carried out.",
    )
    return lambda command: timeout_option(reason_option(command))


def print_json(value: Any) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


class Wei(click.ParamType[int]):
    """Parse an amount such as 0.1ether into wei."""

    name = "amount"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return wei(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Seconds(click.ParamType[float]):
    """Parse a duration, written as in the settings, into seconds: 10s, 2m, 250ms."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        try:
            return _DURATION.parse(value)
        except ValueError:
            self.fail(f"{value[:40]!r} is not {_DURATION.allowed}", param, ctx)


WEI, SECONDS = Wei(), Seconds()
