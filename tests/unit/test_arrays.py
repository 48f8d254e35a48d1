"""Columns as text: what PostgreSQL reads from it is what was given."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.adapters.postgres.arrays import JOINED, LISTED, QUOTED, WORDS, Way, column, columns
from fencepost.domain.states import State


@pytest.mark.parametrize(
    ("values", "way", "text"),
    [
        ((1, None, 2.5), WORDS, "{1,NULL,2.5}"),
        (('a"b', "c\\d", "{e,f}", "NULL", "", None), QUOTED, '{"a\\"b","c\\\\d","{e,f}","NULL","",NULL}'),
        (('{"a":1}', None), JOINED, '{"a":1}\x1f'),
        ((b"a", b"b"), LISTED, [b"a", b"b"]),
        ((None, None), WORDS, "{}"),
    ],
)
def test_a_column_travels_its_way(values: tuple[object, ...], way: Way, text: object) -> None:
    assert column(values, way) == text


def test_rows_become_columns() -> None:
    assert columns([(1, "a"), (2, None)], (WORDS, QUOTED)) == ["{1,2}", '{"a",NULL}']
    assert columns([], (WORDS, LISTED)) == ["{}", []]


@pytest.mark.parametrize("value", [None, 1, True, 2.5, State.QUEUED, "", "NULL", 'a"b', "c\\d,{e}"])
@pytest.mark.parametrize("way", [WORDS, QUOTED, JOINED, LISTED])
def test_one_row_travels_as_many_do(value: Any, way: Way) -> None:
    if way in (QUOTED, JOINED) and value is not None:
        value = str(value)
    assert columns([(value,)], (way,)) == [column((value,), way)]
