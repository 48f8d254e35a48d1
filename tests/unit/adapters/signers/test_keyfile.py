"""Key files: loaded, rejected with a reason, and never shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from fencepost.adapters.signers.keyfile import load_key_file
from fencepost.errors import SettingError
from unit.adapters.signers.key_material import (
    ADDRESSES,
    SECRETS,
    assert_no_secret,
    private_file,
)


def test_a_key_file_may_have_comments_and_empty_lines(tmp_path: Path) -> None:
    text = f"# payouts\n{SECRETS[0]}\n\n  0x{SECRETS[1]}  # the second\r\n"
    assert load_key_file(private_file(tmp_path / "keys", text)).addresses() == tuple(ADDRESSES[:2])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{SECRETS[0]}\n{SECRETS[1]}zz\n", "line 2 of key file .* is not 64 hex digits"),
        ("# none yet\n", "contains no key"),
        (f"{SECRETS[0]}\n{SECRETS[0]}", "given twice"),
        ("#" * (1024 * 1024 + 1), "larger than"),
    ],
)
def test_a_malformed_key_file_is_rejected(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SettingError, match=message) as caught:
        load_key_file(private_file(tmp_path / "keys", text))
    assert_no_secret(caught.value)


def test_a_binary_key_file_is_rejected(tmp_path: Path) -> None:
    path = private_file(tmp_path / "keys", "")
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(SettingError, match="not UTF-8"):
        load_key_file(path)


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o644, 0o777])
def test_a_world_readable_key_file_is_rejected(tmp_path: Path, mode: int) -> None:
    path = private_file(tmp_path / "keys", SECRETS[0])
    path.chmod(mode)
    with pytest.raises(SettingError, match="every user of this machine may access it: run chmod o-rwx"):
        load_key_file(path)


@pytest.mark.parametrize("mode", [0o400, 0o600, 0o440, 0o640])
def test_a_key_file_readable_by_owner_and_group_is_read(tmp_path: Path, mode: int) -> None:
    path = private_file(tmp_path / "keys", SECRETS[0])
    path.chmod(mode)
    assert load_key_file(path).addresses() == (ADDRESSES[0],)


def test_a_missing_key_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"cannot read .*keys: No such file"):
        load_key_file(tmp_path / "keys")
    with pytest.raises(SettingError, match="cannot read"):
        load_key_file(tmp_path)


def test_a_key_file_that_is_a_device_is_rejected() -> None:
    with pytest.raises(SettingError, match="not a regular file"):
        load_key_file(Path("/dev/null"))
