"""The names of events are words of ours: nothing from outside gets into them, so the database need not bound them.

Whatever else the journal tells is in the detail of an event, which is JSON. Names travel as the text of an array, without
quotes, and every lane writes some with every commit.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import fencepost

PACKAGE = Path(fencepost.__file__).parent
WORD = re.compile(r"[A-Z][A-Za-z]{2,39}")
# Where the name stands among the arguments. `_moved` hands on what it was given.
NAMED_AT = {"Entry": 0, "_moved": 2}


def test_every_event_has_a_name_that_is_one_word_of_the_source() -> None:
    names: set[str] = set()
    for path in PACKAGE.rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
                continue
            if (place := NAMED_AT.get(call.func.id)) is None:
                continue
            name = call.args[place]
            if isinstance(name, ast.Name) and name.id == "event" and path.name == "managed.py":
                continue
            for said in (name.body, name.orelse) if isinstance(name, ast.IfExp) else (name,):
                assert isinstance(said, ast.Constant), f"{path.name}:{call.lineno} takes it from elsewhere"
                names.add(str(said.value))
    assert {"AssignNonce", "Finish", "Protect"} <= names
    assert not [name for name in names if not WORD.fullmatch(name)]
