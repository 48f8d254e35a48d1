"""`fencepost errors test`: category, rule and action of a text, with the operator's own rules."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from fencepost.cli.errors import errors
from fencepost.errors import SettingError


@pytest.fixture(autouse=True)
def _nothing_around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("FENCEPOST_")]:
        monkeypatch.delenv(name)


def shown(*arguments: str) -> dict[str, object]:
    result = CliRunner().invoke(errors, ["test", *arguments, "--json"], catch_exceptions=False)
    assert result.exit_code == 0
    found: dict[str, object] = json.loads(result.output)
    return found


def test_a_text_shows_its_category_rule_and_action() -> None:
    found = shown("nonce too low: next nonce 82, tx nonce 81")
    assert found["category"] == "nonce_too_low"
    assert found["rule"] == "nonce (?:is )?too low"
    assert found["source"] == "shipped table"
    assert found["chainNonce"] == 82
    assert found["possiblySent"] is True
    assert "receipts" in str(found["action"])


def test_a_replacement_and_a_filler_may_be_treated_differently() -> None:
    result = CliRunner().invoke(errors, ["test", "replacement transaction underpriced"])
    assert "PROTECT" in result.output
    assert "replaces the earlier attempt" in result.output
    fatal = CliRunner().invoke(errors, ["test", "intrinsic gas too low"])
    assert "fail the request" in fatal.output
    assert "send the same bytes again" in fatal.output  # a filler


def test_an_unknown_text_is_possibly_sent() -> None:
    found = shown("the moon is full")
    assert (found["category"], found["rule"], found["possiblySent"]) == ("unknown", None, True)
    assert shown("the moon is full", "--code", "429")["category"] == "node_not_ready"


def test_rules_of_the_operator_come_first() -> None:
    Path("own.toml").write_text(
        "[[rules]]\ncategory = 'pool_full'\npatterns = ['moon is full', 'nonce too low']\n"
    )
    Path("fencepost.toml").write_text("errors.file = 'own.toml'")
    found = shown("the MOON is full")
    assert (found["category"], found["source"]) == ("pool_full", "own.toml")
    assert shown("nonce too low")["category"] == "pool_full"
    assert shown("nonce too high")["source"] == "shipped table"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rules = 3", "must be tables"),
        ("[nonces]\nchain = []", "'nonces' is unknown"),
        ("[[rules]]\ncategory = 'accepted'\npatterns = ['x']", "category must be one of"),
        ("[[rules]]\ncategory = ['fatal']\npatterns = ['x']", "category must be one of"),
        ("[[rules]]\ncategory = 'fatal'\npatterns = []", "a list of patterns"),
        ("[[rules]]\ncategory = 'fatal'\npatterns = ['x']\nwhy = 'y'", "nothing else"),
        ("[[rules]]\ncategory = 'fatal'\npatterns = ['(']", "not a regular expression"),
        ("[[rules]]\ncategory = 'fatal'\npatterns = ['x?']", "matches every text"),
        ("[[rules]]\ncategory = 'fatal'\npatterns = [3]", "a text of 1 to 500"),
        ("[[rules]]\ncategory = 'fatal'\npatterns = [" + "'x'," * 1001 + "]", "at most 1000"),
    ],
)
def test_a_mistake_in_the_file_is_one_line(text: str, message: str) -> None:
    Path("own.toml").write_text(text)
    Path("fencepost.toml").write_text("errors.file = 'own.toml'")
    with pytest.raises(SettingError, match=message):
        CliRunner().invoke(errors, ["test", "x"], catch_exceptions=False)


def test_a_missing_file_is_named() -> None:
    Path("fencepost.toml").write_text("errors.file = 'gone.toml'")
    with pytest.raises(SettingError, match=r"can't read gone\.toml"):
        CliRunner().invoke(errors, ["test", "x"], catch_exceptions=False)
