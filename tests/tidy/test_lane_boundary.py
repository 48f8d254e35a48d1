"""A lane stays readable: its parts are small, and the runtime reaches it through methods only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from fencepost.application import lane_parts
from fencepost.application.lane import Lane

MAX_FIELDS = 14

SOURCE = Path(lane_parts.__file__).parents[1]
CALLERS = sorted([*(SOURCE / "runtime").glob("*.py"), *(SOURCE / "bootstrap").glob("*.py")])

# The fields of a lane that are facts for its callers; the others belong to the use cases.
PUBLIC = {"term", "settings", "reconciled"}
INTERNAL = {field.name for field in fields(Lane)} - PUBLIC

PARTS = [
    Lane,
    lane_parts.LanePorts,
    lane_parts.OpenCommands,
    lane_parts.BlockWatch,
    lane_parts.ChainAhead,
    lane_parts.SupersededCheck,
    lane_parts.Suspicion,
    lane_parts.SendState,
]


def violations(text: str) -> Iterator[str]:
    """Yield the accesses to internals of a lane, and all assignments to one."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Attribute) or not _is_lane(node.value):
            continue
        if node.attr in INTERNAL or not isinstance(node.ctx, ast.Load):
            yield f"line {node.lineno}: lane.{node.attr}"


def _is_lane(node: ast.expr) -> bool:
    return (isinstance(node, ast.Name) and node.id == "lane") or (
        isinstance(node, ast.Attribute) and node.attr == "lane"
    )


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__)
def test_every_part_of_a_lane_has_few_fields(part: type) -> None:
    assert len(fields(part)) <= MAX_FIELDS


@pytest.mark.parametrize("path", CALLERS, ids=lambda path: path.name)
def test_the_runtime_reaches_a_lane_through_methods(path: Path) -> None:
    assert not list(violations(path.read_text()))


@pytest.mark.parametrize(
    "text", ["lane.blocks.forked_at = 1", "x = slot.lane.queue", "slot.lane.reconciled = False"]
)
def test_the_check_finds_access_to_internals(text: str) -> None:
    assert list(violations(text))
