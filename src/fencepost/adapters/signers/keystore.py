"""Read keys from a directory of JSON keystores (version 3, as geth and most wallets write them).

One password, the first line of the password file, must open every file in the directory; hidden files, directories and
the password file itself are skipped. Opening a keystore is slow and takes much memory by design, so the files are opened
in one thread, one after the other, and costs beyond those of wallets are rejected: a hostile file could otherwise
request any amount.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from coincurve import PrivateKey

from fencepost import bounded_json
from fencepost.adapters.evm.encoding import address_of
from fencepost.adapters.signers.keyfile import read_secret_file
from fencepost.adapters.signers.local import LocalKeys, make_private_key
from fencepost.errors import SettingError

_MAX_FILES = 1000
_MAX_FILE_BYTES = 64 * 1024
_MAX_PASSWORD_BYTES = 4096
_MAX_SCRYPT_COST = 2**23  # n * r * p; 128 bytes each: 1 GiB, four times geth's standard
_SECRET_BYTES = 32
_DOCUMENTS = msgspec.json.Decoder(dict[str, Any])


class _Scrypt(msgspec.Struct):
    n: Annotated[int, msgspec.Meta(ge=2)]
    r: Annotated[int, msgspec.Meta(ge=1)]
    p: Annotated[int, msgspec.Meta(ge=1)]
    dklen: Literal[32]
    salt: str


class _Pbkdf2(msgspec.Struct):
    c: Annotated[int, msgspec.Meta(ge=1, le=10_000_000)]
    prf: Literal["hmac-sha256"]
    dklen: Literal[32]
    salt: str


class _CipherParams(msgspec.Struct):
    iv: str


class _Crypto(msgspec.Struct):
    cipher: Literal["aes-128-ctr"]
    cipherparams: _CipherParams
    ciphertext: str
    kdf: Literal["scrypt", "pbkdf2"]
    kdfparams: dict[str, Any]
    mac: str


class _Keystore(msgspec.Struct):
    version: Literal[3]
    crypto: _Crypto
    address: str | None = None


async def load_keystores(directory: Path, *, password_file: Path) -> LocalKeys:
    return await asyncio.to_thread(_open_all, directory, password_file)


def _open_all(directory: Path, password_file: Path) -> LocalKeys:
    password = _read_password(password_file)
    return LocalKeys([_open(path, password) for path in _keystore_files(directory, password_file)])


def _read_password(path: Path) -> bytes:
    lines = read_secret_file(path, bytes_max=_MAX_PASSWORD_BYTES).splitlines()
    if not lines or not lines[0]:
        raise SettingError(f"password file {path} is empty")
    return lines[0].encode()


def _keystore_files(directory: Path, password_file: Path) -> list[Path]:
    try:
        found = sorted(
            path
            for path in directory.iterdir()
            if path.is_file() and not path.name.startswith(".") and not path.samefile(password_file)
        )
    except OSError as error:
        raise SettingError(f"cannot read keystore directory {directory}: {error.strerror}") from error
    if not found:
        raise SettingError(f"keystore directory {directory} contains no keystore")
    if len(found) > _MAX_FILES:
        raise SettingError(f"keystore directory {directory} contains more than {_MAX_FILES} files")
    return found


def _open(path: Path, password: bytes) -> PrivateKey:
    document = _read_document(path)
    keystore = _check(path, document)
    key = make_private_key(_decrypt(path, document, password), where=f"the key in {path}")
    if keystore.address is not None:
        named = keystore.address.lower().removeprefix("0x")
        if named != address_of(key.public_key)[2:]:
            raise SettingError(f"{path} contains an address that its key does not have")
    return key


def _read_document(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise SettingError(f"cannot read keystore {path}: {error.strerror}") from error
    if len(content) > _MAX_FILE_BYTES:
        raise SettingError(f"{path} is too large to be a keystore")
    try:
        document = bounded_json.decode(content, _DOCUMENTS.decode)
    except msgspec.MsgspecError:
        raise SettingError(f"{path} is not a JSON keystore") from None
    return {name.lower(): value for name, value in document.items()}  # old wallets write "Crypto"


def _check(path: Path, document: dict[str, Any]) -> _Keystore:
    try:
        keystore = msgspec.convert(document, _Keystore)
        params = keystore.crypto.kdfparams
        if keystore.crypto.kdf == "pbkdf2":
            msgspec.convert(params, _Pbkdf2)
            return keystore
        scrypt = msgspec.convert(params, _Scrypt)
    except msgspec.ValidationError as error:
        raise SettingError(f"{path} is not a supported version 3 keystore: {error}") from error
    if scrypt.n * scrypt.r * scrypt.p > _MAX_SCRYPT_COST:
        raise SettingError(f"{path} needs more memory to open than the keystores of wallets do")
    return keystore


def _decrypt(path: Path, document: dict[str, Any], password: bytes) -> bytes:
    # Imported here, because it imports many Ethereum libraries that nodes without keystores do not need.
    from eth_keyfile.exceptions import EthKeyfileValueError
    from eth_keyfile.keyfile import decode_keyfile_json

    try:
        secret: bytes = decode_keyfile_json(document, password)
    except EthKeyfileValueError:  # the message authentication code does not match
        raise SettingError(f"the password does not open {path}") from None
    except ValueError as error:  # invalid hex digits, or parameters that scrypt rejects
        raise SettingError(f"{path} is damaged: {type(error).__name__}") from None
    if len(secret) != _SECRET_BYTES:
        raise SettingError(f"{path} does not contain a key of 32 bytes")
    return secret
