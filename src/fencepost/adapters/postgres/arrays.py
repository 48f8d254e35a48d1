"""Columns as arguments of a statement: one array a column, one element a row.

The driver encodes the elements of a list one by one, which costs several times as much as one text does; so a list is
only for bytes. A column without any value is sent as an empty one: side by side, `unnest` fills up what is shorter with
NULL. It stands in a SELECT list where rows are many or commits are small: in FROM, the server would store each column
before it reads from the first one, which takes two to three times as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

Way = Literal["words", "quoted", "joined", "listed"]

WORDS: Way = "words"  # numbers, flags, ids and words of our own, which need no quotes: the text of an array
QUOTED: Way = "quoted"  # any text: the text of an array, with quotes
JOINED: Way = "joined"  # hashes and JSON, in which a control character never stands as itself: split at one
LISTED: Way = "listed"
_SEPARATOR = "\x1f"
_NOTHING: dict[Way, Any] = {WORDS: "{}", QUOTED: "{}", JOINED: "", LISTED: []}


def columns(rows: Sequence[tuple[Any, ...]], ways: tuple[Way, ...]) -> list[Any]:
    if not rows:
        return [_NOTHING[way] for way in ways]
    if len(rows) == 1:  # nobody else's commit came along: most of them, where there is no crowd
        return [_alone(value, way) for value, way in zip(rows[0], ways, strict=True)]
    return [column(values, way) for values, way in zip(zip(*rows, strict=True), ways, strict=True)]


def _alone(value: Any, way: Way) -> Any:
    """A column of one row."""
    if value is None:
        return _NOTHING[way]
    if way is WORDS:
        return f"{{{value}}}"
    if way is JOINED:
        return value
    return "{" + _quoted(value) + "}" if way is QUOTED else [value]


def column(values: Sequence[Any], way: Way) -> Any:
    if values.count(None) == len(values):
        return _NOTHING[way]
    if way is WORDS:
        return "{" + ",".join(["NULL" if value is None else str(value) for value in values]) + "}"
    if way is JOINED:
        return _SEPARATOR.join([value or "" for value in values])
    if way is QUOTED:
        return "{" + ",".join(["NULL" if value is None else _quoted(value) for value in values]) + "}"
    return list(values)


def _quoted(text: str) -> str:
    if "\\" in text:
        text = text.replace("\\", "\\\\")
    if '"' in text:
        text = text.replace('"', '\\"')
    return f'"{text}"'
