"""The layers of settings, read into flat values: key to parsed value, and key to where it came from.

Each layer is checked as a whole, also where a later one overrides it, so that a mistake does not lie in wait. Chains
and signers are flat as well: `chains.NAME.id`, `signers.0xADDRESS.mode`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fencepost.domain.ids import parse_address
from fencepost.errors import SettingError
from fencepost.settings.declaration import CHAIN_KEYS, DECLARED, SIGNER_KEYS
from fencepost.settings.files import CONFIG_VARIABLE
from fencepost.settings.masking import HIDDEN
from fencepost.settings.refusals import not_allowed, quoted, shown_raw, unknown
from fencepost.settings.rules import Declared

PRIVATE_KEYS = "keys.private_keys"
SHORTCUTS: Mapping[str, Declared] = {"rpc_url": CHAIN_KEYS["rpc_urls"], "chain_id": CHAIN_KEYS["id"]}
"""Short names for two settings of the default chain, in the environment and as flags."""

_PREFIX = "FENCEPOST_"
_PRIVATE_KEY_PREFIX = "FENCEPOST_KEY_"
_BY_VARIABLE = {declared.variable: declared for declared in DECLARED.values()}
_SHORTCUT_BY_VARIABLE = {_PREFIX + name.upper(): name for name in SHORTCUTS}
_GROUPS = {key[: dot.start()] for key in DECLARED for dot in re.finditer(r"\.", key)}
_PRIVATE_KEY = re.compile(r"(?:0[xX])?([0-9a-fA-F]{64})")
_CHAIN_KEY_DOTS = 2  # chains.NAME.KEY; a chain's name has no dot
_CURVE_ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141


@dataclass(slots=True)
class Reading:
    values: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    chain_names: list[str] = field(default_factory=list)

    def take(self, key: str, declared: Declared, raw: object, source: str) -> None:
        kind = declared.rule.kind
        try:
            self.values[key] = kind.parse(raw)
        except ValueError:
            shown = shown_raw(raw, kind)
            raise not_allowed(key=key, shown=shown, source=source, allowed=kind.allowed) from None
        self.sources[key] = source

    def take_text(self, key: str, declared: Declared, text: str, source: str) -> None:
        self.take(key, declared, declared.rule.kind.from_text(text), source)


def read_table(into: Reading, table: Mapping[str, Any], *, source: str) -> None:
    for name, value in table.items():
        if name == "chains":
            for chain, inner in _tables(name, value, source):
                _read_chain(into, chain, inner, source)
        elif name == "signers":
            for address, inner in _tables(name, value, source):
                _read_signer(into, address, inner, source)
        else:
            _read_member(into, name, value, source)


def read_environment(into: Reading, environ: Mapping[str, str]) -> None:
    private_keys: dict[str, str] = {}
    for variable in sorted(name for name in environ if name.startswith(_PREFIX)):
        text = environ[variable]
        if variable in _BY_VARIABLE:
            into.take_text(_BY_VARIABLE[variable].key, _BY_VARIABLE[variable], text, variable)
        elif variable in _SHORTCUT_BY_VARIABLE:
            name = _SHORTCUT_BY_VARIABLE[variable]
            into.take_text(name, SHORTCUTS[name], text, variable)
        elif variable.startswith(_PRIVATE_KEY_PREFIX) and variable != _PRIVATE_KEY_PREFIX:
            private_keys.setdefault(_private_key(variable, text), variable)
        elif variable != CONFIG_VARIABLE:
            known = [*_BY_VARIABLE, *_SHORTCUT_BY_VARIABLE, CONFIG_VARIABLE]
            raise unknown(name=variable, what="variable", source="environment", known=known, prefix=_PREFIX)
    if private_keys:
        into.values[PRIVATE_KEYS] = tuple(private_keys)
        into.sources[PRIVATE_KEYS] = ", ".join(private_keys.values())


def read_flags(into: Reading, flags: Mapping[str, str]) -> None:
    for name, text in flags.items():
        if name in SHORTCUTS:
            into.take_text(name, SHORTCUTS[name], text, "--" + name.replace("_", "-"))
        elif name in DECLARED:
            into.take_text(name, DECLARED[name], text, DECLARED[name].flag)
        elif name.startswith("chains.") and name.count(".") == _CHAIN_KEY_DOTS:
            _, chain, inner = name.split(".")
            value = CHAIN_KEYS[inner].rule.kind.from_text(text) if inner in CHAIN_KEYS else text
            _read_chain(into, chain, {inner: value}, "flags")
        else:
            raise unknown(name=name, what="setting", source="flags", known=[*DECLARED, *SHORTCUTS])


def _read_member(into: Reading, key: str, value: object, source: str) -> None:
    """A setting, or a group of them; TOML nests no deeper here than the declaration does."""
    if key in DECLARED:
        into.take(key, DECLARED[key], value, source)
        return
    if key not in _GROUPS:
        raise unknown(name=key, what="key", source=source, known=[*DECLARED, *_GROUPS, "chains", "signers"])
    if not isinstance(value, dict):
        raise _not_a_table(key, source)
    for name, inner in value.items():
        _read_member(into, f"{key}.{name}", inner, source)


def _read_chain(into: Reading, name: str, table: Mapping[str, Any], source: str) -> None:
    kind = DECLARED["default_chain"].rule.kind
    try:
        kind.parse(name)
    except ValueError:
        raise not_allowed(
            key="chains.NAME", shown=quoted(name), source=source, allowed=kind.allowed
        ) from None
    if name not in into.chain_names:
        into.chain_names.append(name)
    for inner, value in table.items():
        key = f"chains.{name}.{inner}"
        if inner not in CHAIN_KEYS:
            raise unknown(
                name=key, what="key", source=source, known=[f"chains.{name}.{known}" for known in CHAIN_KEYS]
            )
        into.take(key, CHAIN_KEYS[inner], value, source)


def _read_signer(into: Reading, text: str, table: Mapping[str, Any], source: str) -> None:
    try:
        address = parse_address(text)
    except ValueError:
        allowed = "0x and 40 hex digits"
        raise not_allowed(key="signers.ADDRESS", shown=quoted(text), source=source, allowed=allowed) from None
    for inner, value in table.items():
        key = f"signers.{address}.{inner}"
        if inner not in SIGNER_KEYS:
            raise unknown(
                name=key,
                what="key",
                source=source,
                known=[f"signers.{address}.{known}" for known in SIGNER_KEYS],
            )
        if key in into.values:
            raise SettingError(f"{key}: given twice ({source}), with the address in different spellings")
        into.take(key, SIGNER_KEYS[inner], value, source)


def _tables(key: str, value: object, source: str) -> list[tuple[str, dict[str, Any]]]:
    if not isinstance(value, dict):
        raise _not_a_table(key, source)
    for name, inner in value.items():
        if not isinstance(inner, dict):
            raise _not_a_table(f"{key}.{quoted(name)}", source)
    return list(value.items())


def _not_a_table(key: str, source: str) -> SettingError:
    return SettingError(f"{key}: must be a table, not a value ({source}); write [{key}]")


def _private_key(variable: str, text: str) -> str:
    written = _PRIVATE_KEY.fullmatch(text.strip())
    if written is None or not 0 < int(written[1], 16) < _CURVE_ORDER:
        allowed = "a private key: 0x and 64 hex digits"
        raise not_allowed(key=PRIVATE_KEYS, shown=HIDDEN, source=variable, allowed=allowed)
    return "0x" + written[1].lower()
