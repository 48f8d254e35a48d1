"""Rules for a readable source that a program can check."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fencepost

PACKAGE = Path(fencepost.__file__).parent
TESTS = Path(__file__).parents[1]
LAB = TESTS.parent / "lab"
MAX_FUNCTION_LINES = 70

# Written in two halves, so that the check does not match this file.
_UNFINISHED = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")
_SILENCED = re.compile(r"#\s*(?:no" + r"qa|type:\s*ign" + r"ore|pragma:\s*no cover)(?P<rest>.*)")
_CODES = re.compile(r"^(?::\s*[A-Z]+[0-9]+(?:,\s*[A-Z]+[0-9]+)*|\[[a-z, -]+\])?")


def sources() -> list[Path]:
    return sorted([*PACKAGE.rglob("*.py"), *LAB.rglob("*.py")])


def all_python() -> list[Path]:
    return sources() + sorted(TESTS.rglob("*.py"))


def name_of(path: Path) -> str:
    return str(path.relative_to(PACKAGE.parent if PACKAGE in path.parents else TESTS.parent))


EACH_SOURCE = pytest.mark.parametrize("path", sources(), ids=name_of)
EACH_FILE = pytest.mark.parametrize("path", all_python(), ids=name_of)


def too_long(text: str) -> Iterator[str]:
    """Name each function that is too long."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > MAX_FUNCTION_LINES:
                yield node.name


@EACH_FILE
def test_every_function_has_at_most_seventy_lines(path: Path) -> None:
    assert not set(too_long(path.read_text())), (
        f"a function has at most {MAX_FUNCTION_LINES} lines: split it by what it does"
    )


def test_the_length_check_finds_a_long_function() -> None:
    body = "    x = 1\n" * MAX_FUNCTION_LINES
    assert list(too_long(f"def f():\n{body}"))
    assert not list(too_long("def f():\n" + "    x = 1\n" * (MAX_FUNCTION_LINES - 1)))


@EACH_SOURCE
def test_every_module_begins_with_a_docstring(path: Path) -> None:
    text = path.read_text()
    if path.name == "__init__.py" and not text.strip():
        return
    assert ast.get_docstring(ast.parse(text)), "the first thing in a module says what it promises"


@EACH_FILE
def test_the_source_contains_no_deferred_work_markers(path: Path) -> None:
    left = [line for line in path.read_text().splitlines() if _UNFINISHED.search(line)]
    assert not left


def unexplained(text: str) -> Iterator[str]:
    """Return suppressed warnings without a reason: words must follow the codes."""
    for line in text.splitlines():
        for found in _SILENCED.finditer(line):
            reason = _CODES.sub("", found["rest"], count=1).strip(" -#")
            if len(reason.split()) < 2:
                yield line.strip()


@EACH_FILE
def test_every_suppressed_warning_has_a_reason(path: Path) -> None:
    assert not list(unexplained(path.read_text()))


def test_the_reason_check_finds_a_missing_reason() -> None:
    bad, good = "x = 1  # no" + "qa: S101", "x = 1  # no" + "qa: S101 - it can't be None here"
    assert list(unexplained(bad)) == [bad]
    assert not list(unexplained(good))
    assert list(unexplained("y()  # type: ign" + "ore[arg-type]"))
    assert not list(unexplained("y()  # type: ign" + "ore[arg-type]  # the stub is too narrow"))


def imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(module), level=0):
                yield module
            case ast.ImportFrom():
                yield "a relative import"


# The base class of the domain's values.
_MAKES_VALUES = {"fencepost/domain/struct.py": ["msgspec"]}


@pytest.mark.parametrize("path", sorted((PACKAGE / "domain").rglob("*.py")), ids=name_of)
def test_the_domain_imports_only_the_standard_library_and_itself(path: Path) -> None:
    strange = [
        name
        for name in imports(ast.parse(path.read_text()))
        if name.partition(".")[0] not in sys.stdlib_module_names and not name.startswith("fencepost.domain")
    ]
    assert strange == _MAKES_VALUES.get(name_of(path), [])


# Where fee limits are checked: every signature of a lane is made in this file.
_SIGNS = "fencepost/application/signing.py"


def test_lanes_sign_in_one_module() -> None:
    inside = [*(PACKAGE / "application").glob("*.py"), *(PACKAGE / "runtime").glob("*.py")]
    signing = {name_of(path) for path in inside if re.search(r"keys\.sign(?:_each)?\(", path.read_text())}
    assert signing == {_SIGNS}
