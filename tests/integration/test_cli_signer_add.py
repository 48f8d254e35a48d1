"""`fencepost signer add` writes a key only to the key file of this machine."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner

from fencepost.adapters.signers.keyfile import load_key_file
from fencepost.cli.signer import signer
from fencepost.errors import SettingError

KEY = "0x" + "11" * 32
ADDRESS = "0x19e7e376e7c213b7e7e7e46cc70a5dd086daff2a"


def test_a_typed_key_is_added_once_and_never_shown(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("22" * 32)
    path.chmod(0o600)
    result = CliRunner().invoke(signer, ["add", f"--set=keys.file={path}"], input=f"{KEY}\n")
    assert result.exit_code == 0, result.output
    assert ADDRESS in result.output
    assert "11" * 32 not in result.output
    assert len(load_key_file(path).addresses()) == 2
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    again = CliRunner().invoke(signer, ["add", f"--set=keys.file={path}"], input=f"{KEY}\n")
    assert isinstance(again.exception, SettingError)
    assert "already" in str(again.exception)
    assert len(load_key_file(path).addresses()) == 2


def test_a_new_key_can_be_generated(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    result = CliRunner().invoke(signer, ["add", "--generate", "--json", f"--set=keys.file={path}"])
    assert json.loads(result.output)["address"] in load_key_file(path).addresses()


@pytest.mark.parametrize("typed", ["nonsense", "00" * 32, "11" * 31])
def test_an_invalid_key_changes_nothing(tmp_path: Path, typed: str) -> None:
    path = tmp_path / "keys"
    result = CliRunner().invoke(signer, ["add", f"--set=keys.file={path}"], input=f"{typed}\n")
    assert isinstance(result.exception, SettingError)
    assert not path.exists()


def test_without_a_key_file_the_error_says_what_to_do() -> None:
    result = CliRunner().invoke(signer, ["add", "--generate"])
    assert isinstance(result.exception, SettingError)
    assert "keys.file" in str(result.exception)
