"""Check that the catalogue of messages matches the program."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_catalogue_lists_every_message() -> None:
    made = subprocess.run(
        [sys.executable, str(ROOT / "scripts/message_catalogue.py")],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert made == (ROOT / "docs/reference/messages.md").read_text(), (
        "run: ./dev run python scripts/message_catalogue.py > docs/reference/messages.md"
    )


def test_the_prose_check_finds_banned_words(tmp_path: Path) -> None:
    script = tmp_path / "scripts" / "check_prose.py"
    script.parent.mkdir()
    script.write_text((ROOT / "scripts/check_prose.py").read_text())
    (script.parent / "prose_baseline.json").write_text("{}")
    (tmp_path / "docs").mkdir()
    page = tmp_path / "docs" / "page.md"
    for word, allowed, expected in (
        ("some" + "body", "", 1),
        ("some" + "body", "plain-words: allow", 0),
        ("the caller", "", 0),
    ):
        page.write_text(f"{word} decides {allowed}\n")
        assert (
            subprocess.run([sys.executable, str(script)], check=False, capture_output=True).returncode
            == expected
        )
