"""Statements are composed of parts and generated sources; a commit uses those that it has rows for."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from fencepost.adapters.postgres.queries import compose, load_all, parse, sql
from fencepost.adapters.postgres.sources import CHANGE, COMMIT_SOURCES, LANE, numbered_arrays

COMMIT = "commit_lanes"
ALWAYS = ["held", "checked", "judged"]


def parameters(text: str) -> list[int]:
    return sorted({int(number) for number in re.findall(r"\$(\d+)", text)})


def numbers_to(last: int) -> list[int]:
    return list(range(1, last + 1))


def test_the_whole_statement_has_all_parts_and_a_parameter_per_argument() -> None:
    assert sql(COMMIT) == compose(COMMIT, numbered_arrays(COMMIT_SOURCES), load_all()[COMMIT].parts)
    assert parameters(sql(COMMIT)) == numbers_to(sum(len(source.arguments) for source in COMMIT_SOURCES))


def test_no_statement_has_an_unfilled_fragment() -> None:
    assert not [name for name, query in load_all().items() if "{{" in query.sql]


@pytest.mark.parametrize(("part", "is_checked"), [("cursors", True), ("txs", True), ("journaled", False)])
def test_a_part_comes_with_its_condition(part: str, *, is_checked: bool) -> None:
    without = compose(COMMIT, numbered_arrays([LANE, CHANGE]), ALWAYS)
    with_it = compose(COMMIT, numbered_arrays([LANE, CHANGE]), [*ALWAYS, part])
    assert f" {part} AS (" in with_it
    assert f" {part} AS (" not in without
    assert "all_written" not in without
    assert ("all_written" in with_it) == is_checked


def test_rows_by_value_have_a_parameter_per_value_and_no_rows_have_none() -> None:
    assert parameters(CHANGE.from_values(1, 3)) == numbers_to(3 * len(CHANGE.arguments))
    assert parameters(CHANGE.without_rows()) == []


@pytest.mark.parametrize("parts", [["nothing_like_it"], [*ALWAYS, "nothing_like_it"]])
def test_an_unknown_part_raises_an_error(parts: Sequence[str]) -> None:
    with pytest.raises(ValueError, match="nothing_like_it"):
        compose(COMMIT, [], parts)


def test_a_block_without_a_description_raises_an_error() -> None:
    with pytest.raises(ValueError, match="part b has no description"):
        parse("-- name: a\n-- Read.\nSELECT 1\n\n-- part: b\nb AS (SELECT 1)\n")
