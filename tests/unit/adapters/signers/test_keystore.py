"""Keystores: opened, rejected with a reason, and never shown."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fencepost.adapters.evm.keccak import keccak256
from fencepost.adapters.signers.keystore import load_keystores
from fencepost.errors import SettingError
from unit.adapters.signers.key_material import (
    ADDRESSES,
    PASSWORD,
    SECRETS,
    assert_no_secret,
    private_file,
    write_keystore,
)


async def test_every_keystore_in_the_directory_is_opened(directory: Path) -> None:
    write_keystore(directory, SECRETS[0])
    write_keystore(directory, SECRETS[1], kdf="pbkdf2")
    old = json.loads(write_keystore(directory, SECRETS[2]).read_text())
    old["Crypto"] = old.pop("crypto")
    del old["address"]
    (directory / f"UTC--{old['id']}").write_text(json.dumps(old))
    (directory / ".hidden").write_text("not a keystore")
    (directory / "folder").mkdir()
    private_file(directory / "password", PASSWORD)
    keys = await load_keystores(directory, password_file=directory / "password")
    assert sorted(keys.addresses()) == sorted(ADDRESSES)


async def test_a_wrong_password_opens_nowrite_keystore(directory: Path, password_file: Path) -> None:
    path = write_keystore(directory, SECRETS[0])
    private_file(password_file, "wrong")
    with pytest.raises(SettingError, match=f"the password does not open {path}") as caught:
        await load_keystores(directory, password_file=password_file)
    assert_no_secret(caught.value)


def _crypto(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda document: document["crypto"].update(changes)


def _kdf(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda document: document["crypto"]["kdfparams"].update(changes)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda document: document.update(version=4), "version 3"),
        (lambda document: document.pop("crypto"), "crypto"),
        (lambda document: document.update(address="35" * 20), "an address that its key does not have"),
        (_crypto(kdf="argon2"), "argon2"),
        (_crypto(cipher="aes-256-cbc"), "aes-256-cbc"),
        (_crypto(mac="zz" * 32), "is damaged"),
        (_crypto(ciphertext="abc"), "is damaged"),
        (_kdf(n=2**24), "more memory"),
        (_kdf(n=3), "is damaged"),
        (_kdf(p=0), "kdfparams|>= 1"),
        (_kdf(dklen=16), "16"),
        (_kdf(salt=None), "salt"),
    ],
)
async def test_a_malformed_keystore_is_rejected(
    directory: Path, password_file: Path, damage: Callable[[dict[str, Any]], None], message: str
) -> None:
    path = write_keystore(directory, SECRETS[0])
    document = json.loads(path.read_text())
    damage(document)
    path.write_text(json.dumps(document))
    with pytest.raises(SettingError, match=message) as caught:
        await load_keystores(directory, password_file=password_file)
    assert str(path) in str(caught.value)
    assert_no_secret(caught.value)


async def test_a_keystore_with_another_content_is_rejected(directory: Path, password_file: Path) -> None:
    path = write_keystore(directory, SECRETS[0])
    document = json.loads(path.read_text())
    crypto = document["crypto"]
    salt, short = bytes.fromhex(crypto["kdfparams"]["salt"]), bytes.fromhex(crypto["ciphertext"])[:-1]
    derived = hashlib.scrypt(PASSWORD.encode(), salt=salt, n=2, r=8, p=1, dklen=32)
    crypto |= {"ciphertext": short.hex(), "mac": keccak256(derived[16:] + short).hex()}
    path.write_text(json.dumps(document))
    with pytest.raises(SettingError, match="does not contain a key of 32 bytes"):
        await load_keystores(directory, password_file=password_file)


async def test_the_number_of_keystores_is_bounded(directory: Path, password_file: Path) -> None:
    for n in range(1001):
        (directory / f"{n}.json").touch()
    with pytest.raises(SettingError, match="more than 1000 files"):
        await load_keystores(directory, password_file=password_file)


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "not a JSON keystore"), ("[]", "not a JSON keystore"), (" " * 65_537, "too large")],
)
async def test_a_file_that_is_no_keystore_is_rejected(
    directory: Path, password_file: Path, text: str, message: str
) -> None:
    (directory / "notes.txt").write_text(text)
    with pytest.raises(SettingError, match=message):
        await load_keystores(directory, password_file=password_file)


async def test_an_unusable_directory_or_password_file_is_rejected(
    directory: Path, password_file: Path
) -> None:
    with pytest.raises(SettingError, match="contains no keystore"):
        await load_keystores(directory, password_file=password_file)
    with pytest.raises(SettingError, match="cannot read keystore directory"):
        await load_keystores(directory / "missing", password_file=password_file)
    write_keystore(directory, SECRETS[0])
    private_file(password_file, "\n")
    with pytest.raises(SettingError, match="is empty"):
        await load_keystores(directory, password_file=password_file)


async def test_a_world_readable_password_file_is_rejected(directory: Path, open_password_file: Path) -> None:
    write_keystore(directory, SECRETS[0])
    with pytest.raises(SettingError, match="every user of this machine"):
        await load_keystores(directory, password_file=open_password_file)
