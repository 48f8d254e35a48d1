"""What the commands that talk to a node share: how they find it, their exit codes, and values that people type.

Exit codes: 0 it is well; 1 the node answered, and the answer is no (the transaction failed, was not found, has not come
that far); 2 it could not be asked: usage, settings, no node, no right.
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
from fencepost.client.errors import NotFound, NotReached, WrongState
from fencepost.settings.quantities import Duration

OK, NO = 0, 1
_DURATION = Duration(0, 24 * 3600)
RETRY_FOR_S = 5.0  # a person sits there


def node_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds `--url`, `--config` and `--json`, and hands the command a `client: Client` and `as_json: bool`."""

    @click.option("--url", "urls", multiple=True, help="A node; may be repeated.  [env: FENCEPOST_URL]")
    @click.option("--config", type=click.Path(path_type=Path, dir_okay=False), help="A fencepost.toml.")
    @click.option("--json", "as_json", is_flag=True, help="Print JSON.")
    @functools.wraps(command)
    def with_client(*args: Any, urls: tuple[str, ...], config: Path | None, **options: Any) -> Any:
        flags = {"client.urls": ",".join(urls)} if urls else {}
        client = settings.load(toml_path=config, flags=flags).settings.client
        with Client(client.urls, api_key=client.api_key or None, retry_for_s=RETRY_FOR_S) as asked:
            try:
                return command(*args, client=asked, **options)
            except (NotFound, WrongState, NotReached) as error:
                click.echo(f"fencepost: {error}", err=True)
                return NO

    return with_client


def wish_options(
    *, timeout: str = "5s", needs_reason: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`--reason` and `--timeout`, for what is asked of lanes."""
    reason = click.option("--reason", required=needs_reason, help="Why, for those who read it later.")
    within = click.option(
        "--timeout",
        "timeout_s",
        type=SECONDS,
        default=timeout,
        show_default=True,
        help="Wait so long for it.",
    )
    return lambda command: within(reason(command))


def print_json(value: Any) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


class Wei(click.ParamType[int]):
    """An amount like 0.1ether."""

    name = "amount"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return wei(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Seconds(click.ParamType[float]):
    """A duration as settings have it: 10s, 2m, 250ms."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        try:
            return _DURATION.parse(value)
        except ValueError:
            self.fail(f"{value[:40]!r} is not {_DURATION.allowed}", param, ctx)


WEI, SECONDS = Wei(), Seconds()
