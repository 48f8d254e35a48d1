"""The page about explanations has every cause with its meaning, as the code has it."""

from __future__ import annotations

from pathlib import Path

from fencepost.application.explain import HARMLESS, MEANINGS, Cause

PAGE = Path(__file__).parents[2] / "docs" / "explain.md"

# The cause of the transaction in front decides.
WAITS_FOR_ANOTHER = {Cause.BEHIND_OTHER, Cause.WINDOW_FULL}


def needs_operator(cause: Cause) -> str:
    if cause in WAITS_FOR_ANOTHER:
        return "if the one in front does"
    return "no" if cause in HARMLESS else "yes"


def test_the_table_has_every_cause() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `") and line.count("|") == 4]
    table = [f"| `{cause}` | {meaning} | {needs_operator(cause)} |" for cause, meaning in MEANINGS.items()]
    assert [row for row in rows if row in table] == table
