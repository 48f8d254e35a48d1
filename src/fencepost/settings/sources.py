"""Read the layers of settings into two flat mappings: key to parsed value, and key to source.

Each layer is validated completely, even where a later one overrides it, so that mistakes show at once. Chains and
signers have flat keys too: `chains.NAME.id`, `signers.0xADDRESS.mode`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fencepost.domain.ids import parse_address
from fencepost.errors import SettingError
from fencepost.settings.errors import displayed_raw, not_allowed_message, quoted, unknown
from fencepost.settings.fields import Declared
from fencepost.settings.files import CONFIG_VARIABLE
from fencepost.settings.masking import HIDDEN
from fencepost.settings.schema.core import CHAIN_KEYS, DECLARED, SIGNER_KEYS

PRIVATE_KEYS = "keys.private_keys"
SHORTCUTS: Mapping[str, Declared] = {"rpc_url": CHAIN_KEYS["rpc_urls"], "chain_id": CHAIN_KEYS["id"]}
"""Short names for two settings of the default chain, in the environment and as flags."""

_PREFIX = "FENCEPOST_"
_PRIVATE_KEY_PREFIX = "FENCEPOST_KEY_"
_BY_VARIABLE = {declared.variable: declared for declared in DECLARED.values()}
_SHORTCUT_BY_VARIABLE = {_PREFIX + name.upper(): name for name in SHORTCUTS}
_GROUPS = {key[: dot.start()] for key in DECLARED for dot in re.finditer(r"\.", key)}
_PRIVATE_KEY = re.compile(r"(?:0[xX])?([0-9a-fA-F]{64})")
_LINK_URL = re.compile(r"(?:tcp|udp|sctp)://\S+:[0-9]{1,5}")
_LINK_ADDRESS = re.compile(r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}|[0-9a-fA-F:.]*:[0-9a-fA-F:.]*")
_LINK_NUMBER = re.compile(r"[0-9]{1,5}")
_LINKS = (
    (re.compile(r"_PORT$"), _LINK_URL),
    (re.compile(r"_PORT_[0-9]+_(?:TCP|UDP|SCTP)$"), _LINK_URL),
    (re.compile(r"_PORT_[0-9]+_(?:TCP|UDP|SCTP)_PROTO$"), re.compile(r"tcp|udp|sctp")),
    (re.compile(r"_PORT_[0-9]+_(?:TCP|UDP|SCTP)_PORT$"), _LINK_NUMBER),
    (re.compile(r"_PORT_[0-9]+_(?:TCP|UDP|SCTP)_ADDR$"), _LINK_ADDRESS),
    (re.compile(r"_SERVICE_HOST$"), _LINK_ADDRESS),
    (re.compile(r"_SERVICE_PORT(?:_[A-Z0-9_]+)?$"), _LINK_NUMBER),
)
_CHAIN_KEY_DOTS = 2  # chains.NAME.KEY; a chain's name has no dot
_CURVE_ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141


@dataclass(slots=True)
class SettingSources:
    """Collect the values that were read, with the source of each."""

    values: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    chain_names: list[str] = field(default_factory=list)
    service_links: list[str] = field(default_factory=list)  # variables of Kubernetes; not settings

    def add(self, key: str, declared: Declared, raw: object, source: str) -> None:
        """Parse and store a value; raise SettingError if it is not allowed."""
        kind = declared.rule.kind
        try:
            self.values[key] = kind.parse(raw)
        except ValueError:
            shown = displayed_raw(raw, kind)
            raise not_allowed_message(key=key, shown=shown, source=source, allowed=kind.allowed) from None
        self.sources[key] = source

    def add_text(self, key: str, declared: Declared, text: str, source: str) -> None:
        """Parse and store a value that was given as text, in a variable or a flag."""
        self.add(key, declared, declared.rule.kind.from_text(text), source)


def read_table(into: SettingSources, table: Mapping[str, Any], *, source: str) -> None:
    """Read the values of a TOML file."""
    for name, value in table.items():
        if name == "chains":
            for chain, inner in _tables(name, value, source):
                _read_chain(into, chain, inner, source)
        elif name == "signers":
            for address, inner in _tables(name, value, source):
                _read_signer(into, address, inner, source)
        else:
            _read_member(into, name, value, source)


def read_environment(into: SettingSources, environ: Mapping[str, str]) -> None:
    """Read all variables that start with FENCEPOST_."""
    private_keys: dict[str, str] = {}
    for variable in sorted(name for name in environ if name.startswith(_PREFIX)):
        text = environ[variable]
        if is_service_link(variable, text):
            into.service_links.append(variable)
        elif variable in _BY_VARIABLE:
            into.add_text(_BY_VARIABLE[variable].key, _BY_VARIABLE[variable], text, variable)
        elif variable in _SHORTCUT_BY_VARIABLE:
            name = _SHORTCUT_BY_VARIABLE[variable]
            into.add_text(name, SHORTCUTS[name], text, variable)
        elif variable.startswith(_PRIVATE_KEY_PREFIX) and variable != _PRIVATE_KEY_PREFIX:
            private_keys.setdefault(_private_key(variable, text), variable)
        elif variable != CONFIG_VARIABLE:
            known = [*_BY_VARIABLE, *_SHORTCUT_BY_VARIABLE, CONFIG_VARIABLE]
            raise unknown(name=variable, what="variable", source="environment", known=known, prefix=_PREFIX)
    if private_keys:
        into.values[PRIVATE_KEYS] = tuple(private_keys)
        into.sources[PRIVATE_KEYS] = ", ".join(private_keys.values())


def is_service_link(variable: str, text: str) -> bool:
    """Return whether Kubernetes set this variable for a Service whose name starts with fencepost.

    A Service `fencepost` adds FENCEPOST_PORT=tcp://10.0.0.1:8420, FENCEPOST_SERVICE_HOST and others to every pod of its
    namespace. Both name and value must match, so that a setting or a private key is never ignored by mistake.
    """
    if variable in _BY_VARIABLE:  # such as FENCEPOST_API_PORT, where the Service is `fencepost-api`
        return variable.endswith("_PORT") and _LINK_URL.fullmatch(text) is not None
    return any(name.search(variable) and value.fullmatch(text) for name, value in _LINKS)


def read_flags(into: SettingSources, flags: Mapping[str, str]) -> None:
    """Read flags, named by key."""
    for name, text in flags.items():
        if name in SHORTCUTS:
            into.add_text(name, SHORTCUTS[name], text, "--" + name.replace("_", "-"))
        elif name in DECLARED:
            into.add_text(name, DECLARED[name], text, DECLARED[name].flag)
        elif name.startswith("chains.") and name.count(".") == _CHAIN_KEY_DOTS:
            _, chain, inner = name.split(".")
            value = CHAIN_KEYS[inner].rule.kind.from_text(text) if inner in CHAIN_KEYS else text
            _read_chain(into, chain, {inner: value}, "flags")
        else:
            raise unknown(name=name, what="setting", source="flags", known=[*DECLARED, *SHORTCUTS])


def _read_member(into: SettingSources, key: str, value: object, source: str) -> None:
    """Read a setting or a group; the nesting is bounded by that of the declaration."""
    if key in DECLARED:
        into.add(key, DECLARED[key], value, source)
        return
    if key not in _GROUPS:
        raise unknown(name=key, what="key", source=source, known=[*DECLARED, *_GROUPS, "chains", "signers"])
    if not isinstance(value, dict):
        raise _not_a_table(key, source)
    for name, inner in value.items():
        _read_member(into, f"{key}.{name}", inner, source)


def _read_chain(into: SettingSources, name: str, table: Mapping[str, Any], source: str) -> None:
    kind = DECLARED["default_chain"].rule.kind
    try:
        kind.parse(name)
    except ValueError:
        raise not_allowed_message(
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
        into.add(key, CHAIN_KEYS[inner], value, source)


def _read_signer(into: SettingSources, text: str, table: Mapping[str, Any], source: str) -> None:
    try:
        address = parse_address(text)
    except ValueError:
        allowed = "0x and 40 hex digits"
        raise not_allowed_message(
            key="signers.ADDRESS", shown=quoted(text), source=source, allowed=allowed
        ) from None
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
            raise SettingError(
                f"{key}: given twice ({source}), with different spellings of the address; remove one"
            )
        into.add(key, SIGNER_KEYS[inner], value, source)


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
        raise not_allowed_message(key=PRIVATE_KEYS, shown=HIDDEN, source=variable, allowed=allowed)
    return "0x" + written[1].lower()
