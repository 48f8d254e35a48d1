"""Arguments of a contract's method, from words on a command line to what the API takes.

The signature says what each word is: an array or a tuple is JSON, a bool is true or false, everything else goes as it is
written, because the API takes numbers and bytes as text. What does not fit is told by the node, which knows the types.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from fencepost import bounded_json
from fencepost.errors import InvalidRequest

_TRUTH = {"true": True, "false": False}


def parameter_types(signature: str) -> list[str]:
    """The types at the top level: "f(uint8,(bool,string)[])" has two."""
    name, opening, rest = signature.replace(" ", "").partition("(")
    if not name or not opening or not rest.endswith(")"):
        raise InvalidRequest('must look like "transfer(address,uint256)"', field="method")
    types, depth, word = [], 0, ""
    for char in rest[:-1]:
        depth += {"(": 1, ")": -1}.get(char, 0)
        if depth < 0:
            raise InvalidRequest("a parenthesis is closed that was not opened", field="method")
        if char == "," and depth == 0:
            types.append(word)
            word = ""
        else:
            word += char
    if depth:
        raise InvalidRequest("a parenthesis is not closed", field="method")
    return [*types, word] if word or types else []


def arguments(signature: str, words: Sequence[str]) -> list[Any]:
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
            # Whole numbers stay whole, whatever their size; others are for the node to refuse, as text.
            return bounded_json.decode(word.encode(), lambda text: json.loads(text, parse_float=str))
        except (ValueError, msgspec.DecodeError):
            raise InvalidRequest(f"argument {number} is a {type_}: write it as JSON", field="args") from None
    if type_ == "bool":
        if word not in _TRUTH:
            raise InvalidRequest(f"argument {number} is a bool: write true or false", field="args")
        return _TRUTH[word]
    return word
