"""Encode rows as arguments of a statement: one array per column, one element per row.

asyncpg encodes the elements of a list one by one, which costs several times as much as one text; so lists are used only
for free text and bytes. A column without any value is sent as an empty array: `unnest` pads shorter arrays with NULL. The
statements call `unnest` in the SELECT list: in FROM, PostgreSQL would materialize each column before it reads the first row,
which takes two to three times as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

Encoding = Literal["words", "quoted", "joined", "listed", "scalar"]

WORDS: Encoding = (
    "words"  # numbers, flags, ids and Fencepost's own words, which need no quotes: an array literal
)
QUOTED: Encoding = "quoted"  # any text: an array literal with quotes
JOINED: Encoding = "joined"  # hashes and JSON, which never contain a raw control character: joined with one
LISTED: Encoding = "listed"  # a list that asyncpg encodes
SCALAR: Encoding = "scalar"  # the same value in all rows: sent once
_SEPARATOR = "\x1f"
_EMPTY: dict[Encoding, Any] = {WORDS: "{}", QUOTED: "{}", JOINED: "", LISTED: [], SCALAR: None}


def column(values: Sequence[Any], encoding: Encoding) -> Any:
    """Encode the values of a column, one per row."""
    if values.count(None) == len(values):
        return _EMPTY[encoding]
    if encoding is WORDS:
        return "{" + ",".join(["NULL" if value is None else str(value) for value in values]) + "}"
    if encoding is JOINED:
        return _SEPARATOR.join([value or "" for value in values])
    if encoding is QUOTED:
        return "{" + ",".join(["NULL" if value is None else _quoted(value) for value in values]) + "}"
    return values[0] if encoding is SCALAR else list(values)


def _quoted(text: str) -> str:
    if "\\" in text:
        text = text.replace("\\", "\\\\")
    if '"' in text:
        text = text.replace('"', '\\"')
    return f'"{text}"'
