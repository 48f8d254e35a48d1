"""Read private keys from a file: one per line in hex, with or without 0x; empty lines and comments (`#`) are skipped.

A file that every user of the machine may read is rejected, and so is one that is too large. Messages name the file and
the line, never its content.
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

_MAX_KEY_FILE_BYTES = 1024 * 1024


def load_key_file(path: Path) -> LocalKeys:
    text = read_secret_file(path, bytes_max=_MAX_KEY_FILE_BYTES)
    lines = [(n, line.split("#", 1)[0].strip()) for n, line in enumerate(text.splitlines(), 1)]
    keys = [parse_private_key(line, where=f"line {n} of key file {path}") for n, line in lines if line]
    if not keys:
        raise SettingError(f"key file {path} contains no key: add one with `fencepost signer add`")
    return LocalKeys(keys)


def add_key(path: Path, key: PrivateKey) -> Address:
    """Append a key to the file, atomically. A new file is readable by its owner only."""
    text = read_secret_file(path, bytes_max=_MAX_KEY_FILE_BYTES) if path.exists() else ""
    address = address_of(key.public_key)
    if text and address in load_key_file(path).addresses():
        raise SettingError(f"{path} already contains the key of {address}")
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
    """Return the text of a file with secrets, if only its owner and group can access it."""
    try:
        with path.open("rb") as file:
            _require_private(path, os.fstat(file.fileno()).st_mode)
            content = file.read(bytes_max + 1)
    except OSError as error:
        raise SettingError(f"cannot read {path}: {error.strerror}") from error
    if len(content) > bytes_max:
        raise SettingError(f"{path} is larger than {bytes_max} bytes")
    try:
        return content.decode()
    except UnicodeDecodeError:  # its message contains the bytes
        raise SettingError(f"{path} is not UTF-8 text") from None


def _require_private(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise SettingError(f"{path} is not a regular file")
    if os.name == "posix" and mode & stat.S_IRWXO:
        raise SettingError(
            f"{path} contains secrets but every user of this machine may access it: run chmod o-rwx on it"
        )
