"""A statement without some of its parts names, and is given, only what is left."""

from __future__ import annotations

import re

import pytest

from fencepost.adapters.postgres.queries import lean, sql

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
