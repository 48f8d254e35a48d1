"""Load settings from a file or from variables, and read the one-line errors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from fencepost.errors import SettingError
from fencepost.settings import CHAIN_KEYS, DECLARED, Loaded, load

ALL = {**DECLARED, **{f"chains.default.{key}": declared for key, declared in CHAIN_KEYS.items()}}
KEY_ONE = "0x" + "11" * 32
ADDRESS = "0x" + "aB" * 20


def from_toml(
    text: str, *, environ: Mapping[str, str] | None = None, flags: Mapping[str, str] | None = None
) -> Loaded:
    path = Path("fencepost.toml")
    path.write_text(text)
    return load(toml_path=path, environ=environ or {}, flags=flags or {})


def from_environ(**variables: str) -> Loaded:
    return load(toml_path=None, environ=variables, flags={})


def refusal_of(text: str) -> str:
    with pytest.raises(SettingError) as caught:
        from_toml(text)
    return one_line(caught.value)


def one_line(error: SettingError) -> str:
    message = str(error)
    assert "\n" not in message
    return message
