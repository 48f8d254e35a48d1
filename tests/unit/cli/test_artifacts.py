"""ABI files and artifacts: which forms are read, and which signatures they have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fencepost.cli.artifacts import constructor_signature, method_signature, read_artifact
from fencepost.errors import InvalidRequest

POINT = {"type": "tuple[]", "components": [{"type": "uint256"}, {"type": "bool"}]}
ABI: list[dict[str, Any]] = [
    {"type": "constructor", "inputs": [{"type": "address"}, POINT]},
    {"type": "function", "name": "set", "inputs": [{"type": "uint8"}]},
    {"type": "function", "name": "set", "inputs": [{"type": "uint8"}, POINT]},
    {"type": "function", "name": "twice", "inputs": [{"type": "uint8"}]},
    {"type": "function", "name": "twice", "inputs": [{"type": "bool"}]},
]


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (ABI, ""),
        ({"abi": ABI, "bytecode": "0x6001"}, "0x6001"),
        ({"abi": ABI, "bytecode": {"object": "0x6001"}}, "0x6001"),
        ({"abi": ABI, "evm": {"bytecode": {"object": "6001"}}}, "0x6001"),
        ({"abi": ABI, "bytecode": "0x"}, ""),
    ],
)
def test_every_usual_form_is_read(tmp_path: Path, content: Any, code: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(content))
    found = read_artifact(path)
    assert (found.abi, found.bytecode) == (ABI, code)


@pytest.mark.parametrize("text", ["{", "{}", "[1]", "7", '{"abi": 1}'])
def test_other_files_are_rejected(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(InvalidRequest):
        read_artifact(path)


def test_signatures_have_tuples_written_out() -> None:
    assert constructor_signature(ABI) == "constructor(address,(uint256,bool)[])"
    assert constructor_signature([]) == "constructor()"
    assert method_signature(ABI, "set", 2) == "set(uint8,(uint256,bool)[])"


@pytest.mark.parametrize(("name", "count"), [("twice", 1), ("set", 3), ("none", 0)])
def test_a_method_must_be_named_without_doubt(name: str, count: int) -> None:
    with pytest.raises(InvalidRequest, match="write the signature"):
        method_signature(ABI, name, count)
