"""Arguments of a method as words on a command line."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.cli.arguments import arguments, parameter_types
from fencepost.errors import InvalidRequest


@pytest.mark.parametrize(
    ("signature", "types"),
    [
        ("f()", []),
        ("transfer(address, uint256)", ["address", "uint256"]),
        ("f((bool,(string,uint8)[])[2],bytes)", ["(bool,(string,uint8)[])[2]", "bytes"]),
        ("f(uint8,)", ["uint8", ""]),
    ],
)
def test_a_signature_is_split_at_its_top_level(signature: str, types: list[str]) -> None:
    assert parameter_types(signature) == types


@pytest.mark.parametrize(
    "signature", ["", "f", "(uint8)", "f(", "f)", "f(uint8", "f(uint8))", "f((uint8)", "f()x"]
)
def test_an_invalid_signature_is_rejected(signature: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parameter_types(signature)
    assert caught.value.field == "method"


@pytest.mark.parametrize(
    ("type_", "word", "value"),
    [
        ("address", "0x12", "0x12"),
        ("uint256", str(2**255), str(2**255)),
        ("string", "true", "true"),
        ("string", "[1]", "[1]"),
        ("bool", "true", True),
        ("bool", "false", False),
        ("uint256[]", f"[1, {2**255}]", [1, 2**255]),
        ("(bool,string)", '[true, "a"]', [True, "a"]),
        ("uint8[]", "[1.5]", ["1.5"]),
    ],
)
def test_words_are_converted_by_their_type(type_: str, word: str, value: Any) -> None:
    assert arguments(f"f({type_})", [word]) == [value]


@pytest.mark.parametrize(
    ("signature", "words", "says"),
    [
        ("f(uint8)", [], "takes 1 arguments, 0 were given"),
        ("f()", ["1"], "takes 0"),
        ("f(bool)", ["1"], "true or false"),
        ("f(uint8[])", ["1,2"], "as JSON"),
        ("f(uint8[])", ["[" * 100_000], "as JSON"),
    ],
)
def test_words_that_do_not_fit_are_rejected(signature: str, words: list[str], says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        arguments(signature, words)
