"""Format settings for display: each value as in `fencepost.toml`, with secrets masked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter

from fencepost.domain.ids import parse_address
from fencepost.settings.fields import Declared
from fencepost.settings.masking import HIDDEN
from fencepost.settings.schema.core import CHAIN_KEYS, DECLARED, SIGNER_KEYS, Settings
from fencepost.settings.sources import SHORTCUTS
from fencepost.settings.types import Plain


@dataclass(frozen=True, slots=True)
class DisplayedSetting:
    """Hold one setting with its masked value and its source."""

    key: str
    value: Plain
    source: str


def displayed_settings(settings: Settings, sources: Mapping[str, str]) -> Iterator[DisplayedSetting]:
    """Yield one entry per key of `sources`, in that order."""
    for key, source in sources.items():
        yield DisplayedSetting(key=key, value=_concealed(key, value_at(settings, key)), source=source)


def mask(key: str, value: object) -> str:
    """Format a value, parsed or as text, with secrets masked; mask the value of an undeclared key completely."""
    return plain_text(_concealed(key, value))


def plain_text(value: Plain) -> str:
    """Format a value as one line of text."""
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(value) if isinstance(value, list) else str(value)


def value_at(settings: Settings, key: str) -> object:
    """Return the value of a declared key, of a key of a chain, or of an override of a signer."""
    table, _, rest = key.partition(".")
    if table == "chains":
        name, _, inner = rest.partition(".")
        return attrgetter(CHAIN_KEYS[inner].attribute)(settings.chains[name])
    if table == "signers":
        address, _, inner = rest.partition(".")
        return getattr(settings.signers[parse_address(address)], inner)
    return attrgetter(DECLARED[key].attribute if key in DECLARED else key)(settings)


def _concealed(key: str, value: object) -> Plain:
    declared = _declared(key)
    if declared is None:
        return HIDDEN
    kind = declared.rule.kind
    if isinstance(value, str):
        try:
            value = kind.parse(kind.from_text(value))
        except ValueError:
            return HIDDEN if kind.secret else str(value)
    return kind.conceal(value)


def _declared(key: str) -> Declared | None:
    table, _, rest = key.partition(".")
    if table == "chains":
        return CHAIN_KEYS.get(rest.partition(".")[2])
    if table == "signers":
        return SIGNER_KEYS.get(rest.partition(".")[2])
    return DECLARED.get(key) or SHORTCUTS.get(key)
