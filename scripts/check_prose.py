"""Reject words that hide the actor in prose: docstrings, comments, messages, SQL comments and documents.

Run by `./dev lint`. Files that had such words when the check was added are listed in `prose_baseline.json` with their number;
the number may only fall. `--update` writes lower numbers and never raises one. A line that needs a word ends with
`plain-words: allow`.
"""

from __future__ import annotations

import argparse
import io
import json
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
BASELINE = Path(__file__).with_name("prose_baseline.json")
ALLOWED = "plain-words: allow"

# Name the actor instead: the lease holder, the caller, the operator, PostgreSQL, the endpoint.
BANNED = re.compile(
    r"\b(?:whoever|whomever|told|somebody|nobody|anybody|wish|wishes|wished|elsewhere|who (?:is|has|comes|asks|waits))\b",
    re.IGNORECASE,
)
FOLDERS = ("src", "lab", "tests", "docs", "deploy", "examples", "scripts")
SUFFIXES = frozenset({".py", ".sql", ".md"})


def prose_of_python(text: str) -> Iterator[tuple[int, str]]:
    """Yield line number and text of each comment and string; identifiers are checked by the reviewers."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING):
            for offset, line in enumerate(token.string.splitlines()):
                yield token.start[0] + offset, line


def prose_of(path: Path) -> Iterator[tuple[int, str]]:
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    found = prose_of_python(text) if path.suffix == ".py" else enumerate(lines, 1)
    for number, line in found:
        if ALLOWED not in lines[number - 1]:
            yield number, line


def offences(path: Path) -> list[str]:
    """Describe each banned word of a file, with its place."""
    return [
        f"{path.relative_to(ROOT)}:{number}: {found[0]!r}: name the actor, or end the line with '{ALLOWED}'"
        for number, line in prose_of(path)
        for found in BANNED.finditer(line)
    ]


def checked_files() -> list[Path]:
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES]
    found += ROOT.glob("*.md")
    return sorted(path for path in found if path != Path(__file__) and "node_modules" not in path.parts)


def main() -> int:
    """Compare every file with the baseline; return 1 if one has more banned words than it had."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--update", action="store_true", help="write lower numbers into the baseline")
    arguments = parser.parse_args()
    baseline: dict[str, int] = json.loads(BASELINE.read_text()) if BASELINE.exists() else {}
    failed = False
    counts: dict[str, int] = {}
    for path in checked_files():
        name, found = str(path.relative_to(ROOT)), offences(path)
        if found:
            counts[name] = len(found)
        if len(found) > baseline.get(name, 0) and BASELINE.exists():
            failed = True
            print("\n".join(found))
    if failed:
        print("Words that hide the actor: see docs/glossary.md and CONTRIBUTING.md for the words to use.")
        return 1
    if arguments.update or not BASELINE.exists():
        BASELINE.write_text(json.dumps(counts, indent=1, sort_keys=True) + "\n")
    stale = [name for name, number in baseline.items() if counts.get(name, 0) < number]
    if stale and not arguments.update:
        print(f"{len(stale)} files improved: run `python scripts/check_prose.py --update` to keep that.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
