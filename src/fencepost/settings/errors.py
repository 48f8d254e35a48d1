"""Build the one-line messages for rejected settings: the key, the value, its source, and what is allowed."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable

from fencepost.errors import SettingError
from fencepost.settings.masking import HIDDEN
from fencepost.settings.types import SettingType

_MAX_SHOWN = 60
_MAX_SHOWN_BITS = 256
_BARE = re.compile(r"[A-Za-z0-9_.-]{1,120}")


def not_allowed_message(*, key: str, shown: str, source: str, allowed: str) -> SettingError:
    """Build the error for a value that is not allowed."""
    return SettingError(f"{key} = {shown} ({source}): must be {allowed}")


def unknown(*, name: str, what: str, source: str, known: Iterable[str], prefix: str = "") -> SettingError:
    """Build the error for an unknown name, with the most similar known name; `prefix`, common to all, is not compared."""
    bare = {candidate.removeprefix(prefix): candidate for candidate in known}
    near = difflib.get_close_matches(name.removeprefix(prefix), bare, n=1)
    advice = f"did you mean {bare[near[0]]}?" if near else "run `fencepost config --example` for a list"
    return SettingError(f"{quoted(name)}: unknown {what} ({source}); {advice}")


def displayed_raw(raw: object, kind: SettingType[object]) -> str:
    """Format a rejected value on one short line; hide it if it is a secret."""
    if kind.secret:
        return HIDDEN
    if isinstance(raw, bool):
        return str(raw).lower()
    if isinstance(raw, dict | list):
        return "a table" if isinstance(raw, dict) else "a list"
    if isinstance(raw, int) and raw.bit_length() > _MAX_SHOWN_BITS:
        return "a huge number"  # Python does not format integers of thousands of digits
    text = repr(raw) if isinstance(raw, str) else str(raw)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"


def quoted(name: str) -> str:
    """Quote a name unless it is a bare key; cut it to 120 characters."""
    return name if _BARE.fullmatch(name) else json.dumps(name[:120])
