"""A directory of JSON keystores (version 3, as geth and most wallets write them) and a file with their password.

Every file in the directory must be a keystore that the password opens; hidden files, directories and the password file
itself are passed over. The password is the first line of its file. Opening is deliberately slow and takes much memory,
so it happens in one thread, one file after the other, and costs beyond what wallets use are refused: a hostile file
could otherwise ask for any amount.
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

_FILES_MAX = 1000
_FILE_BYTES_MAX = 64 * 1024
_PASSWORD_BYTES_MAX = 4096
_SCRYPT_COST_MAX = 2**23  # n * r * p; 128 bytes each: 1 GiB, four times geth's standard
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
    lines = read_secret_file(path, bytes_max=_PASSWORD_BYTES_MAX).splitlines()
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
        raise SettingError(f"keystore directory {directory} holds no keystore")
    if len(found) > _FILES_MAX:
        raise SettingError(f"keystore directory {directory} holds more than {_FILES_MAX} files")
    return found


def _open(path: Path, password: bytes) -> PrivateKey:
    document = _read_document(path)
    keystore = _check(path, document)
    key = make_private_key(_decrypt(path, document, password), where=f"the key in {path}")
    if keystore.address is not None:
        named = keystore.address.lower().removeprefix("0x")
        if named != address_of(key.public_key)[2:]:
            raise SettingError(f"{path} names another address than its key has")
    return key


def _read_document(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            content = file.read(_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise SettingError(f"cannot read keystore {path}: {error.strerror}") from error
    if len(content) > _FILE_BYTES_MAX:
        raise SettingError(f"{path} is too large for a keystore")
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
        raise SettingError(f"{path} is not a version 3 keystore that can be opened here: {error}") from error
    if scrypt.n * scrypt.r * scrypt.p > _SCRYPT_COST_MAX:
        raise SettingError(f"{path} asks for more memory than any wallet does")
    return keystore


def _decrypt(path: Path, document: dict[str, Any], password: bytes) -> bytes:
    # Imported here: it pulls in a good part of the Ethereum libraries, which nodes without keystores never need.
    from eth_keyfile.exceptions import EthKeyfileValueError
    from eth_keyfile.keyfile import decode_keyfile_json

    try:
        secret: bytes = decode_keyfile_json(document, password)
    except EthKeyfileValueError:  # the message authentication code does not match
        raise SettingError(f"the password does not open {path}") from None
    except ValueError as error:  # hex digits that are none, parameters scrypt refuses
        raise SettingError(f"{path} is damaged: {type(error).__name__}") from None
    if len(secret) != _SECRET_BYTES:
        raise SettingError(f"{path} does not hold a key of 32 bytes")
    return secret
