"""Convert command-line arguments of a contract method to the values that the API accepts.

The method's signature gives the type of each argument: arrays and tuples are JSON, a bool is true or false. Every other
argument is passed on as text, because the API accepts numbers and bytes as text. The node checks the values.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from fencepost import bounded_json
from fencepost.errors import InvalidRequest

_BOOLS = {"true": True, "false": False}


def parameter_types(signature: str) -> list[str]:
    """Split a signature into its top-level parameter types: "f(uint8,(bool,string)[])" has two."""
    name, opening, rest = signature.replace(" ", "").partition("(")
    if not name or not opening or not rest.endswith(")"):
        raise InvalidRequest('must have the form "transfer(address,uint256)"', field="method")
    types, depth, word = [], 0, ""
    for char in rest[:-1]:
        depth += {"(": 1, ")": -1}.get(char, 0)
        if depth < 0:
            raise InvalidRequest("a closing parenthesis has no opening one", field="method")
        if char == "," and depth == 0:
            types.append(word)
            word = ""
        else:
            word += char
    if depth:
        raise InvalidRequest("a parenthesis is not closed", field="method")
    return [*types, word] if word or types else []


def arguments(signature: str, words: Sequence[str]) -> list[Any]:
    """Convert one word per parameter; raise `InvalidRequest` if the number or the form is wrong."""
    types = parameter_types(signature)
    if len(words) != len(types):
        raise InvalidRequest(
            f"{signature} takes {len(types)} arguments, {len(words)} were given", field="args"
        )
    return [
        _argument(type_, word, number)
        for number, (type_, word) in enumerate(zip(types, words, strict=True), 1)
    ]


def _argument(type_: str, word: str, number: int) -> Any:
    if type_.endswith("]") or type_.startswith("("):
        try:
            # Integers of any size stay exact. Fractions are passed on as text, and the node rejects them.
            return bounded_json.decode(word.encode(), lambda text: json.loads(text, parse_float=str))
        except (ValueError, msgspec.DecodeError):
            raise InvalidRequest(
                f"argument {number} has type {type_}: write it as JSON", field="args"
            ) from None
    if type_ == "bool":
        if word not in _BOOLS:
            raise InvalidRequest(f"argument {number} has type bool: write true or false", field="args")
        return _BOOLS[word]
    return word
