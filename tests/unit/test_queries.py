"""A statement without some of its parts names, and is given, only what is left."""

from __future__ import annotations

import re

import pytest

from fencepost.adapters.postgres.queries import lean, repeated, sql

COMMIT = "commit_lanes"


def named(text: str) -> list[int]:
    return sorted({int(number) for number in re.findall(r"\$(\d+)", text)})


def test_with_all_its_parts_it_is_as_it_stands() -> None:
    whole = lean(COMMIT, frozenset())
    assert whole.sql == sql(COMMIT)
    assert whole.parameters == tuple(range(1, len(whole.parameters) + 1))


@pytest.mark.parametrize("part", ["cursors", "txs", "new_attempts", "journaled", "commands"])
def test_what_is_left_out_is_gone_and_the_parameters_are_numbered_anew(part: str) -> None:
    statement = lean(COMMIT, frozenset({part}))
    assert f" {part} AS (" in sql(COMMIT)
    assert f" {part} AS (" not in statement.sql
    assert named(statement.sql) == list(range(1, len(statement.parameters) + 1))


def test_arguments_follow_their_parameters() -> None:
    whole = list(range(1, 100))
    statement = lean(COMMIT, frozenset({"new_attempts", "fillers"}))
    assert statement.arguments(whole) == list(statement.parameters)
    assert len(statement.parameters) < len(lean(COMMIT, frozenset()).parameters)


def test_a_part_that_is_not_there_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="nothing_like_it"):
        lean(COMMIT, frozenset({"nothing_like_it"}))


def test_arrays_have_as_many_rows_as_are_asked_for() -> None:
    once, often = repeated("commit_lane", (1, 1, 1)), repeated("commit_lane", (2, 0, 3))
    assert once == sql("commit_lane")
    assert [often.count(kind) for kind in ("ROW(", "ARRAY[]::new_attempt[]")] == [1 + 2 + 0 + 3, 1]
    assert named(often) == list(range(1, 10 + 2 * 20 + 3 * 5 + 1 + 1))
