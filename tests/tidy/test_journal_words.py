"""The names of events are words of ours: nothing from outside gets into them, so the database need not bound them.

Whatever else the journal tells is in the detail of an event, which is JSON. Names travel as the text of an array, without
quotes, and every lane writes some with every commit.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import fencepost

PACKAGE = Path(fencepost.__file__).parent
WORD = re.compile(r"[A-Z][A-Za-z]{2,39}")
# Where the name stands among the arguments; `event=` names it, too.
NAMED_AT = {"Entry": 0, "_moved": 2}


def names_given(path: Path) -> Iterator[ast.expr]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in NAMED_AT:
                yield node.args[NAMED_AT[node.func.id]]
            yield from (keyword.value for keyword in node.keywords if keyword.arg == "event")


def test_every_event_has_a_name_that_is_one_word_of_the_source() -> None:
    names: set[str] = set()
    for path in [*(PACKAGE / "domain").glob("*.py"), *(PACKAGE / "application").glob("*.py")]:
        for given in names_given(path):
            if isinstance(given, ast.Name) and given.id == "event" and path.name == "managed.py":
                continue  # handed on to `_moved`
            for said in (given.body, given.orelse) if isinstance(given, ast.IfExp) else (given,):
                assert isinstance(said, ast.Constant), f"{path.name}:{given.lineno} takes it from elsewhere"
                names.add(str(said.value))
    assert {"AssignNonce", "Bump", "Finish", "Protect"} <= names
    assert not [name for name in names if not WORD.fullmatch(name)]
