"""Keys, a transaction and file helpers for the tests of the key sources."""

from __future__ import annotations

import json
import traceback
from pathlib import Path
from typing import Any

from eth_account import Account
from eth_keyfile.keyfile import create_keyfile_json

from fencepost.domain.ids import parse_address
from fencepost.domain.transaction import Call, Fees, UnsignedTx

SECRETS = ["46" * 32, "47" * 32, "48" * 32]
ADDRESSES = [parse_address(Account.from_key(secret).address) for secret in SECRETS]
PASSWORD = "open sesame"
PLAIN = UnsignedTx(31337, 7, Call(parse_address("0x" + "35" * 20), 1), 21_000, Fees(2, 1))


def private_file(path: Path, text: str) -> Path:
    path.touch(mode=0o600)
    path.write_text(text)
    return path


def assert_no_secret(error: BaseException) -> None:
    shown = "".join(traceback.format_exception(error))
    assert not any(secret in shown for secret in (*SECRETS, PASSWORD))


def write_keystore(directory: Path, secret: str, *, kdf: Any = "scrypt", **changes: Any) -> Path:
    cost = {"scrypt": 2, "pbkdf2": 1}[kdf]
    document = (
        create_keyfile_json(bytes.fromhex(secret), PASSWORD.encode(), kdf=kdf, iterations=cost) | changes
    )
    path = directory / f"UTC--{document['id']}"
    path.write_text(json.dumps(document))
    return path
