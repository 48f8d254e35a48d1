"""Combine all layers into frozen settings and validate them."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from fencepost.domain.ids import Address, parse_address
from fencepost.settings.fields import group_of, key_of
from fencepost.settings.files import expand_home, find_file, read_toml
from fencepost.settings.schema.core import CHAIN_KEYS, DECLARED, ChainSettings, Settings, SignerOverride
from fencepost.settings.sources import (
    PRIVATE_KEYS,
    SHORTCUTS,
    SettingSources,
    read_environment,
    read_flags,
    read_table,
)
from fencepost.settings.types import FilePath
from fencepost.settings.validation import check

G = TypeVar("G")
DEFAULT = "default"
_MAX_LINKS_LOGGED = 8

_log = logging.getLogger(__name__)
_NO_FLAGS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Loaded:
    """Hold the settings with the source of each key: default, the file's name, a variable, or a flag."""

    settings: Settings
    sources: Mapping[str, str]
    file: Path | None


def load(
    *,
    toml_path: Path | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, str] = _NO_FLAGS,
) -> Loaded:
    """Load defaults, then the file, then the environment (by default the process's), then flags.

    Flags are named by the setting's key, `rpc_url` or `chain_id`. Raises a one-line `SettingError` for the first problem.
    """
    environ = os.environ if environ is None else environ
    file = find_file(toml_path, environ)
    reading = SettingSources()
    if file is not None:
        read_table(reading, read_toml(file), source=file.name)
    read_environment(reading, environ)
    if reading.service_links:
        _log.warning(
            "ignored %s: Kubernetes sets these variables for a Service whose name starts with fencepost;"
            " set enableServiceLinks: false in the pod to avoid them",
            ", ".join(reading.service_links[:_MAX_LINKS_LOGGED])
            + (" …" if len(reading.service_links) > _MAX_LINKS_LOGGED else ""),
        )
    read_flags(reading, flags)
    _assign_chain_shortcuts(reading)
    _expand_paths(reading.values, environ)
    settings = _build(reading)
    sources = MappingProxyType(dict.fromkeys(_keys(settings), DEFAULT) | reading.sources)
    check(settings, sources)
    return Loaded(settings=settings, sources=sources, file=file)


def _assign_chain_shortcuts(reading: SettingSources) -> None:
    """Assign the values of `rpc_url` and `chain_id` to the default chain.

    Without any [chains.NAME] there is one chain. It gets the name in `default_chain` only if `rpc_url` was given:
    otherwise a missing file would turn "mainnet" into a dev chain.
    """
    default = reading.values.get("default_chain", Settings().default_chain)
    if not reading.chain_names:
        reading.chain_names.append(default if "rpc_url" in reading.values else Settings().default_chain)
    for shortcut, declared in SHORTCUTS.items():
        if shortcut in reading.values:
            key = f"chains.{default}.{declared.key}"
            reading.values[key] = reading.values.pop(shortcut)
            reading.sources[key] = reading.sources.pop(shortcut)


def _expand_paths(values: dict[str, Any], environ: Mapping[str, str]) -> None:
    for key, declared in DECLARED.items():
        if isinstance(declared.rule.kind, FilePath) and key in values:
            values[key] = expand_home(values[key], environ)


def _build(reading: SettingSources) -> Settings:
    chains = {
        name: _fill(ChainSettings, reading.values, prefix=f"chains.{name}.") for name in reading.chain_names
    }
    overrides: dict[Address, dict[str, Any]] = {}
    for key, value in reading.values.items():
        if key.startswith("signers."):
            _, address, name = key.split(".")
            overrides.setdefault(parse_address(address), {})[name] = value
    return _fill(
        Settings,
        reading.values,
        chains=MappingProxyType(chains),
        signers=MappingProxyType({address: SignerOverride(**given) for address, given in overrides.items()}),
    )


def _fill(group: type[G], values: Mapping[str, Any], *, prefix: str = "", **by_hand: Any) -> G:
    given: dict[str, Any] = dict(by_hand)
    for member in fields(group):  # type: ignore[arg-type]  # every group is a dataclass; a type variable can't say so
        inner = group_of(member)
        if inner is not None:
            given[member.name] = _fill(inner, values, prefix=f"{prefix}{member.name}.")
            continue
        key = key_of(member, prefix=prefix) or prefix + member.name
        if key in values:
            given[member.name] = values[key]
    return group(**given)


def _keys(settings: Settings) -> list[str]:
    chains = [f"chains.{name}.{key}" for name in settings.chains for key in CHAIN_KEYS]
    return [*DECLARED, *chains, *([PRIVATE_KEYS] if settings.keys.private_keys else [])]
