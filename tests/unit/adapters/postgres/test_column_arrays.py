"""Columns as text: PostgreSQL reads exactly the given values."""

from __future__ import annotations

import pytest

from fencepost.adapters.postgres.column_arrays import JOINED, LISTED, QUOTED, SCALAR, WORDS, Encoding, column


@pytest.mark.parametrize(
    ("values", "way", "text"),
    [
        ((1, None, 2.5), WORDS, "{1,NULL,2.5}"),
        (('a"b', "c\\d", "{e,f}", "NULL", "", None), QUOTED, '{"a\\"b","c\\\\d","{e,f}","NULL","",NULL}'),
        (('{"a":1}', None), JOINED, '{"a":1}\x1f'),
        ((b"a", b"b"), LISTED, [b"a", b"b"]),
        ((None, None), WORDS, "{}"),
        (("a", "a"), SCALAR, "a"),
    ],
)
def test_each_column_type_is_encoded(values: tuple[object, ...], way: Encoding, text: object) -> None:
    assert column(values, way) == text
