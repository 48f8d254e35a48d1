"""Keys from settings, files and keystores: opened when they should be, refused with a reason, never shown."""

from __future__ import annotations

import asyncio
import hashlib
import json
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from eth_account import Account
from eth_keyfile.keyfile import create_keyfile_json

from fencepost.adapters.evm.keccak import keccak256
from fencepost.adapters.signers import KeyRing, load_keys
from fencepost.adapters.signers.keyfile import load_key_file
from fencepost.adapters.signers.keystore import load_keystores
from fencepost.adapters.signers.local import TURN_TXS, LocalKeys
from fencepost.adapters.signers.remote import RemoteKeys
from fencepost.domain.ids import parse_address
from fencepost.domain.transaction import Call, Fees, UnsignedTx
from fencepost.errors import SettingError, SigningError, UnknownSigner

SECRETS = ["46" * 32, "47" * 32, "48" * 32]
ADDRESSES = [parse_address(Account.from_key(secret).address) for secret in SECRETS]
PASSWORD = "open sesame"
PLAIN = UnsignedTx(31337, 7, Call(parse_address("0x" + "35" * 20), 1), 21_000, Fees(2, 1))


def _private(path: Path, text: str) -> Path:
    path.touch(mode=0o600)
    path.write_text(text)
    return path


def _no_secret_in(error: BaseException) -> None:
    shown = "".join(traceback.format_exception(error))
    assert not any(secret in shown for secret in (*SECRETS, PASSWORD))


# Keys in the process


@pytest.mark.parametrize(
    "text", [SECRETS[0], "0x" + SECRETS[0], "0X" + SECRETS[0].upper(), f" {SECRETS[0]}\n"]
)
def test_a_key_in_any_spelling(text: str) -> None:
    assert LocalKeys.from_hex([text]).addresses() == (ADDRESSES[0],)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "private key 2 is not 64 hex digits"),
        (SECRETS[1] + "4", "private key 2 is not 64 hex digits"),
        ("0x" + SECRETS[1][:-1] + "g", "private key 2 is not 64 hex digits"),
        ("0" * 64, "private key 2 is not a valid"),
        ("f" * 64, "private key 2 is not a valid"),
    ],
)
def test_a_malformed_key_is_named_by_its_place(text: str, message: str) -> None:
    with pytest.raises(SettingError, match=message) as caught:
        LocalKeys.from_hex([SECRETS[0], text])
    assert len(text) < 60 or text[:60] not in str(caught.value)


def test_a_key_given_twice_is_refused() -> None:
    with pytest.raises(SettingError, match=f"{ADDRESSES[0]} is given twice"):
        LocalKeys.from_hex([SECRETS[0], "0x" + SECRETS[0]])


def test_what_holds_keys_shows_addresses_only() -> None:
    keys = LocalKeys.from_hex(SECRETS)
    for shown in (repr(keys), str(keys), repr(KeyRing([keys])), repr(vars(keys))):
        assert ADDRESSES[0] in shown
        assert not any(secret in shown for secret in SECRETS)


async def _count_turns(stop: asyncio.Event) -> int:
    turns = 0
    while not stop.is_set():
        await asyncio.sleep(0)
        turns += 1
    return turns


@pytest.mark.parametrize(("batches", "size"), [(1, 10 * TURN_TXS), (20, TURN_TXS), (10 * TURN_TXS, 1)])
async def test_the_loop_turns_while_much_is_signed(batches: int, size: int) -> None:
    """However the work comes, a turn of the loop signs no more than its share."""
    keys = LocalKeys.from_hex(SECRETS[:1])
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        counting = group.create_task(_count_turns(stop))
        async with asyncio.TaskGroup() as signing:
            tasks = [signing.create_task(keys.sign(ADDRESSES[0], [PLAIN] * size)) for _ in range(batches)]
        stop.set()
    assert counting.result() >= batches * size // TURN_TXS
    assert all(len(task.result()) == size for task in tasks)


async def test_a_small_batch_does_not_wait_for_a_large_one() -> None:
    keys = LocalKeys.from_hex(SECRETS[:1])
    async with asyncio.TaskGroup() as group:
        large = group.create_task(keys.sign(ADDRESSES[0], [PLAIN] * 20 * TURN_TXS))
        small = group.create_task(keys.sign(ADDRESSES[0], [PLAIN]))
        await small
        assert not large.done()


async def test_whoever_goes_away_holds_nobody_up() -> None:
    keys = LocalKeys.from_hex(SECRETS[:1])
    leaving = asyncio.ensure_future(keys.sign(ADDRESSES[0], [PLAIN] * 1000 * TURN_TXS))
    staying = asyncio.ensure_future(keys.sign(ADDRESSES[0], [PLAIN] * 3 * TURN_TXS))
    await asyncio.sleep(0)
    leaving.cancel()
    assert len(await staying) == 3 * TURN_TXS
    with pytest.raises(asyncio.CancelledError):
        await leaving
    assert not keys._waiting


async def test_a_failure_in_one_batch_is_its_own() -> None:
    keys = LocalKeys.from_hex(SECRETS[:1])
    nonsense = PLAIN.changed(nonce="seven")  # what a bug would hand over
    async with asyncio.TaskGroup() as group:
        good = group.create_task(keys.sign(ADDRESSES[0], [PLAIN] * 2 * TURN_TXS))
        for wrong, error in ((PLAIN.changed(gas=-1), SigningError), (nonsense, TypeError)):
            with pytest.raises(error):
                await keys.sign(ADDRESSES[0], [PLAIN, wrong])
    assert len(good.result()) == 2 * TURN_TXS


# Key files


def test_a_key_file_has_comments_and_empty_lines(tmp_path: Path) -> None:
    text = f"# payouts\n{SECRETS[0]}\n\n  0x{SECRETS[1]}  # the second\r\n"
    assert load_key_file(_private(tmp_path / "keys", text)).addresses() == tuple(ADDRESSES[:2])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{SECRETS[0]}\n{SECRETS[1]}zz\n", "line 2 of key file .* is not 64 hex digits"),
        ("# none yet\n", "holds no key"),
        (f"{SECRETS[0]}\n{SECRETS[0]}", "given twice"),
        ("#" * (1024 * 1024 + 1), "larger than"),
    ],
)
def test_a_faulty_key_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SettingError, match=message) as caught:
        load_key_file(_private(tmp_path / "keys", text))
    _no_secret_in(caught.value)


def test_a_key_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = _private(tmp_path / "keys", "")
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(SettingError, match="not UTF-8"):
        load_key_file(path)


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o644, 0o777])
def test_a_key_file_open_to_everyone_is_refused(tmp_path: Path, mode: int) -> None:
    path = _private(tmp_path / "keys", SECRETS[0])
    path.chmod(mode)
    with pytest.raises(SettingError, match="everyone on this machine may use it: run chmod o-rwx"):
        load_key_file(path)


@pytest.mark.parametrize("mode", [0o400, 0o600, 0o440, 0o640])
def test_a_key_file_for_owner_and_group_is_read(tmp_path: Path, mode: int) -> None:
    path = _private(tmp_path / "keys", SECRETS[0])
    path.chmod(mode)
    assert load_key_file(path).addresses() == (ADDRESSES[0],)


def test_a_key_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"cannot read .*keys: No such file"):
        load_key_file(tmp_path / "keys")
    with pytest.raises(SettingError, match="cannot read"):
        load_key_file(tmp_path)


def test_a_key_file_that_is_a_device_is_refused() -> None:
    with pytest.raises(SettingError, match="not a regular file"):
        load_key_file(Path("/dev/null"))


# Keystores


def _keystore(directory: Path, secret: str, *, kdf: Any = "scrypt", **changes: Any) -> Path:
    cost = {"scrypt": 2, "pbkdf2": 1}[kdf]
    document = (
        create_keyfile_json(bytes.fromhex(secret), PASSWORD.encode(), kdf=kdf, iterations=cost) | changes
    )
    path = directory / f"UTC--{document['id']}"
    path.write_text(json.dumps(document))
    return path


@pytest.fixture
def password_file(tmp_path: Path) -> Path:
    return _private(tmp_path / "password", f"{PASSWORD}\n")


@pytest.fixture
def open_password_file(password_file: Path) -> Path:
    password_file.chmod(0o644)
    return password_file


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "keystores"
    path.mkdir()
    return path


async def test_opens_all_keystores(directory: Path) -> None:
    _keystore(directory, SECRETS[0])
    _keystore(directory, SECRETS[1], kdf="pbkdf2")
    old = json.loads(_keystore(directory, SECRETS[2]).read_text())
    old["Crypto"] = old.pop("crypto")
    del old["address"]
    (directory / f"UTC--{old['id']}").write_text(json.dumps(old))
    (directory / ".hidden").write_text("not a keystore")
    (directory / "folder").mkdir()
    _private(directory / "password", PASSWORD)
    keys = await load_keystores(directory, password_file=directory / "password")
    assert sorted(keys.addresses()) == sorted(ADDRESSES)


async def test_a_wrong_password_opens_nothing(directory: Path, password_file: Path) -> None:
    path = _keystore(directory, SECRETS[0])
    _private(password_file, "wrong")
    with pytest.raises(SettingError, match=f"the password does not open {path}") as caught:
        await load_keystores(directory, password_file=password_file)
    _no_secret_in(caught.value)


def _crypto(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda document: document["crypto"].update(changes)


def _kdf(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda document: document["crypto"]["kdfparams"].update(changes)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda document: document.update(version=4), "version 3"),
        (lambda document: document.pop("crypto"), "crypto"),
        (lambda document: document.update(address="35" * 20), "another address"),
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
async def test_a_faulty_keystore_is_refused(
    directory: Path, password_file: Path, damage: Callable[[dict[str, Any]], None], message: str
) -> None:
    path = _keystore(directory, SECRETS[0])
    document = json.loads(path.read_text())
    damage(document)
    path.write_text(json.dumps(document))
    with pytest.raises(SettingError, match=message) as caught:
        await load_keystores(directory, password_file=password_file)
    assert str(path) in str(caught.value)
    _no_secret_in(caught.value)


async def test_a_keystore_with_something_else_inside_is_refused(directory: Path, password_file: Path) -> None:
    path = _keystore(directory, SECRETS[0])
    document = json.loads(path.read_text())
    crypto = document["crypto"]
    salt, short = bytes.fromhex(crypto["kdfparams"]["salt"]), bytes.fromhex(crypto["ciphertext"])[:-1]
    derived = hashlib.scrypt(PASSWORD.encode(), salt=salt, n=2, r=8, p=1, dklen=32)
    crypto |= {"ciphertext": short.hex(), "mac": keccak256(derived[16:] + short).hex()}
    path.write_text(json.dumps(document))
    with pytest.raises(SettingError, match="does not hold a key of 32 bytes"):
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
async def test_what_is_no_keystore_is_refused(
    directory: Path, password_file: Path, text: str, message: str
) -> None:
    (directory / "notes.txt").write_text(text)
    with pytest.raises(SettingError, match=message):
        await load_keystores(directory, password_file=password_file)


async def test_directory_and_password_file_must_be_usable(directory: Path, password_file: Path) -> None:
    with pytest.raises(SettingError, match="holds no keystore"):
        await load_keystores(directory, password_file=password_file)
    with pytest.raises(SettingError, match="cannot read keystore directory"):
        await load_keystores(directory / "missing", password_file=password_file)
    _keystore(directory, SECRETS[0])
    _private(password_file, "\n")
    with pytest.raises(SettingError, match="is empty"):
        await load_keystores(directory, password_file=password_file)


async def test_a_password_file_open_to_everyone_is_refused(directory: Path, open_password_file: Path) -> None:
    _keystore(directory, SECRETS[0])
    with pytest.raises(SettingError, match="everyone on this machine"):
        await load_keystores(directory, password_file=open_password_file)


# The ring


async def test_a_ring_signs_with_whoever_holds_the_key(
    tmp_path: Path, directory: Path, password_file: Path
) -> None:
    _keystore(directory, SECRETS[2])
    ring = await load_keys(
        private_keys=SECRETS[:1],
        key_file=_private(tmp_path / "keys", SECRETS[1]),
        keystore_dir=directory,
        password_file=password_file,
    )
    assert list(ring.addresses()) == ADDRESSES
    for address, secret in zip(ADDRESSES, SECRETS, strict=True):
        assert await ring.sign(address, [PLAIN]) == await LocalKeys.from_hex([secret]).sign(address, [PLAIN])
    await ring.aclose()


async def test_a_ring_may_be_empty() -> None:
    ring = await load_keys()
    assert not ring.addresses()
    with pytest.raises(UnknownSigner, match="no key is configured"):
        await ring.sign(ADDRESSES[0], [PLAIN])


async def test_two_sources_with_one_key_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=f"two sources of keys hold {ADDRESSES[0]}"):
        await load_keys(private_keys=SECRETS[:1], key_file=_private(tmp_path / "keys", SECRETS[0]))


async def test_a_keystore_and_its_password_come_together(directory: Path, password_file: Path) -> None:
    with pytest.raises(SettingError, match="set together"):
        await load_keys(keystore_dir=directory)
    with pytest.raises(SettingError, match="set together"):
        await load_keys(password_file=password_file)


def test_only_keys_of_this_process_sign_at_once() -> None:
    class Elsewhere(LocalKeys):
        signs_at_once = RemoteKeys.signs_at_once

    ring = KeyRing([LocalKeys.from_hex(SECRETS[:1]), Elsewhere.from_hex(SECRETS[1:2])])
    assert [ring.signs_at_once(address) for address in ADDRESSES] == [True, False, False]
