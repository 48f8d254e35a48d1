"""Share the options that select the settings: the file, and flags for the most common keys."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from fencepost import settings
from fencepost.errors import SettingError

_FLAGS = {
    "dsn": "database.dsn",
    "rpc_url": "rpc_url",
    "chain_id": "chain_id",
    "host": "api.host",
    "port": "api.port",
    "data_dir": "embedded.data_dir",
}


def settings_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options, and pass the command one `loaded: settings.Loaded` in their place."""

    @click.option(
        "--config",
        type=click.Path(path_type=Path, dir_okay=False),
        help="Read this file instead of fencepost.toml.",
    )
    @click.option("--dsn", help="URL of the PostgreSQL to use; without it an embedded one is started.")
    @click.option("--rpc-url", help="RPC endpoint of the default chain; without it a dev chain is started.")
    @click.option("--chain-id", help="Id of the chain that the endpoint must serve.")
    @click.option("--host", help="Address to listen on.")
    @click.option("--port", help="Port to listen on; 0 selects a free one.")
    @click.option("--data-dir", help="Where embedded servers keep their data.")
    @click.option(
        "--set", "pairs", multiple=True, metavar="KEY=VALUE", help="Set any setting; may be repeated."
    )
    @functools.wraps(command)
    def with_settings(
        *args: Any,
        config: Path | None,
        pairs: tuple[str, ...],
        **options: Any,
    ) -> Any:
        flags = {key: options.pop(name) for name, key in _FLAGS.items() if options.get(name) is not None}
        for name in _FLAGS:
            options.pop(name, None)
        for pair in pairs:
            key, separator, value = pair.partition("=")
            if not separator:
                raise SettingError(f"--set {pair}: write it as key=value, for example lease.duration=5s")
            flags[key] = value
        return command(*args, loaded=settings.load(toml_path=config, flags=flags), **options)

    return with_settings
