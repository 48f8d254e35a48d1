"""Load the keys of the settings."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TypedDict

from fencepost.adapters.signers import KeyRing, load_keys
from fencepost.settings import Settings


class KeySources(TypedDict):
    """Hold the arguments of `load_keys`."""

    private_keys: Sequence[str]
    key_file: Path | None
    keystore_dir: Path | None
    password_file: Path | None
    remote_url: str | None


def key_sources(settings: Settings, more_private_keys: Sequence[str]) -> KeySources:
    """Return the key sources of the settings, as arguments of `load_keys`."""

    def path(text: str) -> Path | None:
        return Path(text) if text else None

    return KeySources(
        private_keys=[*settings.keys.private_keys, *more_private_keys],
        key_file=path(settings.keys.file),
        keystore_dir=path(settings.keys.keystore_dir),
        password_file=path(settings.keys.keystore_password_file),
        remote_url=settings.keys.remote_url or None,
    )


async def open_keys(settings: Settings, stack: AsyncExitStack, more_private_keys: Sequence[str]) -> KeyRing:
    keys = await load_keys(**key_sources(settings, more_private_keys))
    stack.push_async_callback(keys.aclose)
    return keys
