"""What keeps the source readable, as far as a machine can see it."""

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
MOST_LINES = 400

# Spelt in two halves, so that this file does not find itself.
_UNFINISHED = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")
_SILENCED = re.compile(r"#\s*(?:no" + r"qa|type:\s*ign" + r"ore|pragma:\s*no cover)(?P<rest>.*)")
_CODES = re.compile(r"^(?::\s*[A-Z]+[0-9]+(?:,\s*[A-Z]+[0-9]+)*|\[[a-z, -]+\])?")


def sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def all_python() -> list[Path]:
    return sources() + sorted(TESTS.rglob("*.py"))


def name_of(path: Path) -> str:
    return str(path.relative_to(PACKAGE.parent if PACKAGE in path.parents else TESTS.parent))


EACH_SOURCE = pytest.mark.parametrize("path", sources(), ids=name_of)
EACH_FILE = pytest.mark.parametrize("path", all_python(), ids=name_of)


@EACH_FILE
def test_a_module_fits_a_readers_head(path: Path) -> None:
    lines = len(path.read_text().splitlines())
    assert lines <= MOST_LINES, f"{lines} lines; {MOST_LINES} are the most"


@EACH_SOURCE
def test_a_module_opens_with_its_contract(path: Path) -> None:
    text = path.read_text()
    if path.name == "__init__.py" and not text.strip():
        return
    assert ast.get_docstring(ast.parse(text)), "the first thing in a module says what it promises"


@EACH_FILE
def test_nothing_is_left_for_later(path: Path) -> None:
    left = [line for line in path.read_text().splitlines() if _UNFINISHED.search(line)]
    assert not left


def unexplained(text: str) -> Iterator[str]:
    """Silenced warnings without a reason: after the codes there must be words."""
    for line in text.splitlines():
        for found in _SILENCED.finditer(line):
            reason = _CODES.sub("", found["rest"], count=1).strip(" -#")
            if len(reason.split()) < 2:
                yield line.strip()


@EACH_FILE
def test_a_silenced_warning_says_why(path: Path) -> None:
    assert not list(unexplained(path.read_text()))


def test_the_check_for_reasons_can_fail() -> None:
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


# Where the domain says what its values are made of.
_MAKES_VALUES = {"fencepost/domain/value.py": ["msgspec"]}


@pytest.mark.parametrize("path", sorted((PACKAGE / "domain").rglob("*.py")), ids=name_of)
def test_the_domain_knows_the_standard_library_and_itself(path: Path) -> None:
    strange = [
        name
        for name in imports(ast.parse(path.read_text()))
        if name.partition(".")[0] not in sys.stdlib_module_names and not name.startswith("fencepost.domain")
    ]
    assert strange == _MAKES_VALUES.get(name_of(path), [])
