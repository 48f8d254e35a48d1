"""Settings for people's eyes: each value as a file would have it, secrets hidden."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter

from fencepost.domain.ids import parse_address
from fencepost.settings.declaration import CHAIN_KEYS, DECLARED, SIGNER_KEYS, Settings
from fencepost.settings.kinds import Plain
from fencepost.settings.masking import HIDDEN
from fencepost.settings.reading import SHORTCUTS
from fencepost.settings.rules import Declared


@dataclass(frozen=True, slots=True)
class Shown:
    key: str
    value: Plain
    source: str


def shown_settings(settings: Settings, sources: Mapping[str, str]) -> Iterator[Shown]:
    """One for each key in `sources`, in that order."""
    for key, source in sources.items():
        yield Shown(key=key, value=_concealed(key, value_at(settings, key)), source=source)


def mask(key: str, value: object) -> str:
    """The value, parsed or as text, as it may be shown; of a key nobody declared nothing may."""
    return plain_text(_concealed(key, value))


def plain_text(value: Plain) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(value) if isinstance(value, list) else str(value)


def value_at(settings: Settings, key: str) -> object:
    """The value of a key of DECLARED, of a chain, or of a signer that has its own."""
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
