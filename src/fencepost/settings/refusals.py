"""How a refused setting is told: one line with the key, the value, where it came from, and what is allowed."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable

from fencepost.errors import SettingError
from fencepost.settings.kinds import Kind
from fencepost.settings.masking import HIDDEN

_SHOWN_MAX = 60
_SHOWN_BITS_MAX = 256
_BARE = re.compile(r"[A-Za-z0-9_.-]{1,120}")


def not_allowed(*, key: str, shown: str, source: str, allowed: str) -> SettingError:
    return SettingError(f"{key} = {shown} ({source}): must be {allowed}")


def unknown(*, name: str, what: str, source: str, known: Iterable[str], prefix: str = "") -> SettingError:
    """`prefix` is what all names share: it says nothing about likeness."""
    bare = {candidate.removeprefix(prefix): candidate for candidate in known}
    near = difflib.get_close_matches(name.removeprefix(prefix), bare, n=1)
    advice = f"did you mean {bare[near[0]]}?" if near else "`fencepost config --example` lists all there are"
    return SettingError(f"{quoted(name)}: unknown {what} ({source}); {advice}")


def shown_raw(raw: object, kind: Kind[object]) -> str:
    """A value as it was given, on one line and short; nothing of it when it is a secret."""
    if kind.secret:
        return HIDDEN
    if isinstance(raw, bool):
        return str(raw).lower()
    if isinstance(raw, dict | list):
        return "a table" if isinstance(raw, dict) else "a list"
    if isinstance(raw, int) and raw.bit_length() > _SHOWN_BITS_MAX:
        return "a huge number"  # Python refuses to write out integers of thousands of digits
    text = repr(raw) if isinstance(raw, str) else str(raw)
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…"


def quoted(name: str) -> str:
    return name if _BARE.fullmatch(name) else json.dumps(name[:120])
