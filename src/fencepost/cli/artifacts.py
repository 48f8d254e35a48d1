"""Read an ABI or a compiler's artifact from a file, and write the signatures of its methods."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from fencepost import bounded_json
from fencepost.errors import InvalidRequest

MAX_FILE_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Artifact:
    """Hold the ABI of a contract, and its code with 0x if the file has it."""

    abi: list[dict[str, Any]]
    bytecode: str = ""


def read_artifact(path: Path) -> Artifact:
    """Read an ABI (a list), or an artifact of Foundry, Hardhat or solc (an object with abi and bytecode)."""
    if path.stat().st_size > MAX_FILE_BYTES:
        raise InvalidRequest(f"{path} is larger than {MAX_FILE_BYTES} bytes", field="abi")
    try:
        found = bounded_json.decode(path.read_bytes(), json.loads)
    except (ValueError, msgspec.DecodeError) as error:
        raise InvalidRequest(f"{path} is not JSON: {error}"[:300], field="abi") from None
    abi = found if isinstance(found, list) else found.get("abi") if isinstance(found, dict) else None
    if not isinstance(abi, list) or not all(isinstance(entry, dict) for entry in abi):
        raise InvalidRequest(f"{path} is neither an ABI nor an artifact with one", field="abi")
    return Artifact(abi, _bytecode(found) if isinstance(found, dict) else "")


def _bytecode(artifact: dict[str, Any]) -> str:
    """Return the code: Hardhat has a text, Foundry an object, solc an object below evm."""
    code = artifact.get("bytecode") or (artifact.get("evm") or {}).get("bytecode")
    if isinstance(code, dict):
        code = code.get("object")
    if not isinstance(code, str) or not code.removeprefix("0x"):
        return ""
    return code if code.startswith("0x") else f"0x{code}"


def method_signature(abi: Sequence[dict[str, Any]], name: str, count: int) -> str:
    """Return the signature of the method with this name and number of arguments."""
    named = [entry for entry in abi if entry.get("type") == "function" and entry.get("name") == name]
    fitting = [entry for entry in named if len(entry.get("inputs") or ()) == count]
    if len(fitting) != 1:
        known = ", ".join(sorted(_signature(name, entry) for entry in named)) or "none"
        raise InvalidRequest(
            f"{name} with {count} arguments is not one method of the ABI (it has: {known}); write the signature",
            field="method",
        )
    return _signature(name, fitting[0])


def constructor_signature(abi: Sequence[dict[str, Any]]) -> str:
    """Return the signature of the constructor; one without arguments if the ABI has none."""
    for entry in abi:
        if entry.get("type") == "constructor":
            return _signature("constructor", entry)
    return "constructor()"


def _signature(name: str, entry: dict[str, Any]) -> str:
    return f"{name}({','.join(map(_type, entry.get('inputs') or ()))})"


def _type(parameter: dict[str, Any]) -> str:
    """Return the type of a parameter; a tuple is written as its components."""
    text = str(parameter.get("type", ""))
    if not text.startswith("tuple"):
        return text
    return f"({','.join(map(_type, parameter.get('components') or ()))}){text.removeprefix('tuple')}"
