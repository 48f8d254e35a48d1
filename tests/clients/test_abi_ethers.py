"""Compare calldata with ethers: the same bytes for generated types and values, and the same rejections."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fencepost.adapters.evm.abi import encode_call
from fencepost.errors import InvalidRequest
from npm_clients import NpmClients

pytestmark = pytest.mark.timeout(240)  # the first test may have to install the npm clients

COUNT = 600
WITHIN_S = 60


def random_value(chance: random.Random, depth: int = 0) -> tuple[str, Any]:
    """Return a random type with a value as callers write it."""
    kind = chance.randrange(6 if depth > 3 else 9)
    if kind == 0:
        bits = 8 * chance.randint(1, 32)
        return f"uint{bits}", str(chance.choice([0, 2**bits - 1, chance.getrandbits(bits)]))
    if kind == 1:
        bits = 8 * chance.randint(1, 32)
        return f"int{bits}", str(chance.choice([-(2 ** (bits - 1)), 2 ** (bits - 1) - 1, -1, 0]))
    if kind == 2:
        size = chance.randint(1, 32)
        return f"bytes{size}", "0x" + chance.randbytes(size).hex()
    if kind == 3:
        return "bytes", "0x" + chance.randbytes(chance.randrange(70)).hex()
    if kind == 4:
        return chance.choice([("string", "é" * chance.randrange(40)), ("bool", chance.random() < 0.5)])
    if kind == 5:
        return "address", "0x" + chance.randbytes(20).hex()
    if kind == 6:
        members = [random_value(chance, depth + 1) for _ in range(chance.randint(1, 4))]
        return f"({','.join(type_ for type_, _ in members)})", [value for _, value in members]
    type_, value = random_value(chance, depth + 1)
    count = chance.randrange(4)
    length = str(count) if count and chance.random() < 0.5 else ""
    return f"{type_}[{length}]", [value] * count


def wrong_value(chance: random.Random) -> tuple[str, Any]:
    """Return a value that does not fit its type, although padding or truncation would make it fit."""
    size, bits = chance.randint(2, 32), 8 * chance.randint(1, 31)
    return chance.choice(
        [
            (f"bytes{size}", "0x" + chance.randbytes(chance.randrange(size)).hex()),
            (f"bytes{size}", "0x" + chance.randbytes(size + chance.randint(1, 8)).hex()),
            (f"uint{bits}", str(2**bits)),
            (f"uint{bits}", "-1"),
            (f"int{bits}", str(2 ** (bits - 1))),
            ("address", "0x" + chance.randbytes(chance.choice([19, 21, 32])).hex()),
            ("uint8[3]", ["1", "2"]),
            ("(uint8,bool)", ["1"]),
        ]
    )


def encoded(signature: str, args: list[Any]) -> str | None:
    try:
        return "0x" + encode_call(method=signature, abi=None, args=args).hex()
    except InvalidRequest:
        return None


def test_calldata_equals_that_of_ethers(npm_clients: NpmClients, tmp_path: Path) -> None:
    chance = random.Random(1)
    calls: list[tuple[str, list[Any]]] = []
    for number in range(COUNT):
        typed = [random_value(chance) for _ in range(chance.randrange(4))]
        if number % 4 == 0:
            typed.append(wrong_value(chance))
        calls.append((f"f({','.join(type_ for type_, _ in typed)})", [value for _, value in typed]))
    given = tmp_path / "calls.json"
    given.write_text(json.dumps([{"signature": signature, "args": args} for signature, args in calls]))
    script = npm_clients.beside(tmp_path, "encode_ethers.mjs")
    said = subprocess.run(
        [npm_clients.node, script, given], capture_output=True, text=True, check=True, timeout=WITHIN_S
    )
    theirs = json.loads(said.stdout)
    assert theirs.count(None) == COUNT // 4
    for (signature, args), expected in zip(calls, theirs, strict=True):
        assert encoded(signature, args) == expected, (signature, args)
