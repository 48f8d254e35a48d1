"""Event names are identifiers of the source: no external text gets into them, so the database need not bound them.

Other data of a journal entry is in its detail, which is JSON. Names travel as text in an array, without quotes, and every lane
writes some with every commit.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import fencepost

PACKAGE = Path(fencepost.__file__).parent
WORD = re.compile(r"[A-Z][A-Za-z]{2,39}")
# The position of the name among the arguments; `event=` works, too.
NAMED_AT = {"JournalEntry": 0, "_transition": 2}


def names_given(path: Path) -> Iterator[ast.expr]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in NAMED_AT:
                yield node.args[NAMED_AT[node.func.id]]
            yield from (keyword.value for keyword in node.keywords if keyword.arg == "event")


def names_of_entries() -> set[str]:
    """Return the names of all journal entries that the source writes."""
    names: set[str] = set()
    for path in [*(PACKAGE / "domain").glob("*.py"), *(PACKAGE / "application").glob("*.py")]:
        for given in names_given(path):
            if isinstance(given, ast.Name) and given.id == "event" and path.name == "transaction_state.py":
                continue  # passed on to `_transition`
            for said in (given.body, given.orelse) if isinstance(given, ast.IfExp) else (given,):
                assert isinstance(said, ast.Constant), f"{path.name}:{given.lineno} does not pass a literal"
                names.add(str(said.value))
    return names


def test_every_event_name_is_one_word_in_the_source() -> None:
    names = names_of_entries()
    assert {"AssignNonce", "Bump", "Finish", "Protect"} <= names
    assert not [name for name in names if not WORD.fullmatch(name)]
