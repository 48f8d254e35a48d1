"""Private keys in a file: one a line in hex, with or without 0x; empty lines and what follows a `#` are skipped.

A file that anyone on the machine may read is refused, and so is one that is larger than a file of keys can be.
Messages name the file and the line, never what stands there.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from coincurve import PrivateKey

from fencepost.adapters.evm.encoding import address_of
from fencepost.adapters.signers.local import LocalKeys, parse_private_key
from fencepost.domain.ids import Address
from fencepost.errors import SettingError

_KEY_FILE_BYTES_MAX = 1024 * 1024


def load_key_file(path: Path) -> LocalKeys:
    text = read_secret_file(path, bytes_max=_KEY_FILE_BYTES_MAX)
    lines = [(n, line.split("#", 1)[0].strip()) for n, line in enumerate(text.splitlines(), 1)]
    keys = [parse_private_key(line, where=f"line {n} of key file {path}") for n, line in lines if line]
    if not keys:
        raise SettingError(f"key file {path} holds no key")
    return LocalKeys(keys)


def add_key(path: Path, key: PrivateKey) -> Address:
    """One more key at the end of the file, which is made if it isn't there. All or nothing; the owner alone may read it."""
    text = read_secret_file(path, bytes_max=_KEY_FILE_BYTES_MAX) if path.exists() else ""
    address = address_of(key.public_key)
    if text and address in load_key_file(path).addresses():
        raise SettingError(f"{path} holds the key of {address} already")
    line = f"{key.secret.hex()}  # {address}\n"
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text + ("" if not text or text.endswith("\n") else "\n") + line)
            file.flush()
            os.fsync(descriptor)
        new.replace(path)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise SettingError(f"cannot write {path}: {error.strerror}") from error
    return address


def read_secret_file(path: Path, *, bytes_max: int) -> str:
    """The text of a file that holds secrets, if only its owner and group can reach it."""
    try:
        with path.open("rb") as file:
            _refuse_if_open_to_others(path, os.fstat(file.fileno()).st_mode)
            content = file.read(bytes_max + 1)
    except OSError as error:
        raise SettingError(f"cannot read {path}: {error.strerror}") from error
    if len(content) > bytes_max:
        raise SettingError(f"{path} is larger than {bytes_max} bytes")
    try:
        return content.decode()
    except UnicodeDecodeError:  # its text quotes the bytes
        raise SettingError(f"{path} is not UTF-8 text") from None


def _refuse_if_open_to_others(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise SettingError(f"{path} is not a regular file")
    if os.name == "posix" and mode & stat.S_IRWXO:
        raise SettingError(
            f"{path} holds secrets but everyone on this machine may use it: run chmod o-rwx on it"
        )
