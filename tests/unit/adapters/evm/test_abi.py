"""Calldata from JSON: the same bytes as other encoders, and a precise location for every error."""

from __future__ import annotations

from typing import Any

import pytest
from eth_abi.abi import encode
from hypothesis import given
from hypothesis import strategies as st

from fencepost.adapters.evm.abi import encode_call, encode_constructor, selector_of
from fencepost.adapters.evm.keccak import keccak256
from fencepost.errors import InvalidRequest

RECEIVER = "0x" + "11" * 20
PAIR = {
    "type": "tuple[]",
    "name": "pairs",
    "components": [{"name": "a", "type": "uint8"}, {"name": "b", "type": "bool"}],
}
ABI: list[Any] = [
    {"type": "constructor", "inputs": [{"name": "n", "type": "uint256"}]},
    {"type": "event", "name": "set", "inputs": []},
    {"type": "function", "name": "set", "inputs": [{"name": "n", "type": "uint256"}]},
    {"type": "function", "name": "set", "inputs": [PAIR, {"name": "s", "type": "string"}]},
    {"type": "function", "name": "twice", "inputs": [{"name": "n", "type": "uint8"}]},
    {"type": "function", "name": "twice", "inputs": [{"name": "n", "type": "bytes1"}]},
]


def basic_values() -> st.SearchStrategy[tuple[str, Any, Any]]:
    """Generate types with a value as a caller writes it and as the other library takes it."""

    def integers(bits: int) -> st.SearchStrategy[tuple[str, Any, Any]]:
        return st.integers(0, 2**bits - 1).map(lambda n: (f"uint{bits}", str(n), n)) | st.integers(
            -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
        ).map(lambda n: (f"int{bits}", hex(n), n))

    def fixed_bytes(size: int) -> st.SearchStrategy[tuple[str, Any, Any]]:
        return st.binary(min_size=size, max_size=size).map(lambda b: (f"bytes{size}", "0x" + b.hex(), b))

    return st.one_of(
        st.integers(1, 32).map(lambda eighth: 8 * eighth).flatmap(integers),
        st.integers(1, 32).flatmap(fixed_bytes),
        st.binary(max_size=70).map(lambda b: ("bytes", "0x" + b.hex(), b)),
        st.text(max_size=40).map(lambda text: ("string", text, text)),
        st.booleans().map(lambda truth: ("bool", truth, truth)),
        st.binary(min_size=20, max_size=20).map(lambda b: ("address", "0x" + b.hex(), "0x" + b.hex())),
    )


def arrays(one: tuple[str, Any, Any]) -> st.SearchStrategy[tuple[str, Any, Any]]:
    type_, written, value = one
    return st.integers(0, 3).flatmap(
        lambda count: st.sampled_from([f"{type_}[]", *([f"{type_}[{count}]"] if count else [])]).map(
            lambda whole: (whole, [written] * count, [value] * count)
        )
    )


def typed_values() -> st.SearchStrategy[list[tuple[str, Any, Any]]]:
    def within(inner: st.SearchStrategy[tuple[str, Any, Any]]) -> st.SearchStrategy[tuple[str, Any, Any]]:
        tuples = st.lists(inner, min_size=1, max_size=4).map(
            lambda parts: (
                f"({','.join(type_ for type_, _, _ in parts)})",
                [written for _, written, _ in parts],
                tuple(value for _, _, value in parts),
            )
        )
        return tuples | inner.flatmap(arrays)

    return st.lists(st.recursive(basic_values(), within, max_leaves=8), max_size=4)


def selector(signature: str) -> bytes:
    return keccak256(signature.encode())[:4]


def test_an_erc20_transfer_has_its_known_calldata() -> None:
    data = encode_call(method="transfer(address,uint256)", abi=None, args=[RECEIVER, "5"])
    assert data.hex() == "a9059cbb" + "00" * 12 + "11" * 20 + f"{5:064x}"


@pytest.mark.parametrize(
    ("method", "args", "types", "values"),
    [
        ("f()", [], [], []),
        ("f(uint)", [7], ["uint256"], [7]),
        ("f(int8, int256)", ["-0x80", "-1"], ["int8", "int256"], [-128, -1]),
        ("f(bytes,bytes4)", ["0x", "0x01020304"], ["bytes", "bytes4"], [b"", b"\1\2\3\4"]),
        (
            "f(uint8[2][],bool)",
            [[[1, "2"], ["0x3", 4]], False],
            ["uint8[2][]", "bool"],
            [[[1, 2], [3, 4]], False],
        ),
        ("f((address,string)[])", [[[RECEIVER, "é"]]], ["(address,string)[]"], [[(RECEIVER, "é")]]),
    ],
)
def test_a_signature_with_arguments_is_encoded(
    method: str, args: list[Any], types: list[str], values: list[Any]
) -> None:
    data = encode_call(method=method, abi=None, args=args)
    assert data == selector(f"f({','.join(types)})") + encode(types, values)


def test_a_function_type_is_named_function_in_the_selector_and_encoded_as_24_bytes() -> None:
    pointer = "0x" + "11" * 20 + "a9059cbb"
    data = encode_call(method="f(function[])", abi=None, args=[[pointer]])
    assert data == selector("f(function[])") + encode(["bytes24[]"], [[bytes.fromhex(pointer[2:])]])
    assert selector_of("f(function,(function,uint))") == selector("f(function,(function,uint256))")


@given(typed_values())
def test_generated_types_are_encoded_as_by_eth_abi(typed: list[tuple[str, Any, Any]]) -> None:
    types = [type_ for type_, _, _ in typed]
    data = encode_call(method=f"f({','.join(types)})", abi=None, args=[written for _, written, _ in typed])
    assert data == selector(f"f({','.join(types)})") + encode(types, [value for _, _, value in typed])


def test_a_function_name_is_resolved_by_its_number_of_arguments() -> None:
    assert encode_call(method="set", abi=ABI, args=[9]) == selector("set(uint256)") + encode(["uint256"], [9])
    expected = selector("set((uint8,bool)[],string)") + encode(
        ["(uint8,bool)[]", "string"], [[(1, True)], "x"]
    )
    assert encode_call(method="set", abi=ABI, args=[[{"b": True, "a": 1}], "x"]) == expected
    assert encode_call(method="set", abi=ABI, args=[[[1, True]], "x"]) == expected
    assert encode_constructor(abi=ABI, args=["0x2a"]) == encode(["uint256"], [42])
    assert encode_constructor(abi=[], args=[]) == b""


@pytest.mark.parametrize(
    ("method", "abi", "args", "field"),
    [
        ("f", None, [], "method"),
        ("f(", None, [], "method"),
        ("(uint8)", None, [1], "method"),
        ("f(uint7)", None, [1], "method"),
        ("f(addres)", None, [1], "method"),
        ("f(fixed128x18)", None, [1], "method"),
        ("f" + "(" * 700 + ")" * 700, None, [], "method"),
        ("f(uint8)", None, [], "args"),
        ("f(uint8)", None, [256], "args[0]"),
        ("f(uint8)", None, [True], "args[0]"),
        ("f(uint8)", None, [1.5], "args[0]"),
        ("f(int8)", None, [128], "args[0]"),
        ("f(bool)", None, ["true"], "args[0]"),
        ("f(bool,string)", None, [True, 5], "args[1]"),
        ("f(bytes)", None, ["0x1"], "args[0]"),
        ("f(bytes2)", None, ["0x010203"], "args[0]"),
        ("f(bytes2)", None, ["0x01"], "args[0]"),
        (
            "f(bytes32)",
            None,
            [RECEIVER],
            "args[0]",
        ),  # an address is no bytes32: padded, the transfer would be lost
        ("f(bytes32[])", None, [["0x" + "11" * 32, RECEIVER]], "args[0][1]"),
        ("f(function)", None, [RECEIVER], "args[0]"),
        ("f(bytes0)", None, ["0x"], "method"),
        ("f(bytes33)", None, ["0x" + "11" * 33], "method"),
        ("f(uint08)", None, [1], "method"),
        ("f(uint 8)", None, [1], "method"),
        ("f(uint264)", None, [1], "method"),
        ("f(bool8)", None, [True], "method"),
        ("f(uint8[0])", None, [[]], "method"),
        ("f(uint8[01])", None, [[1]], "method"),
        ("f(uint8[-1])", None, [[1]], "method"),
        ("f(())", None, [[]], "method"),
        ("f(uint8,)", None, [1], "method"),
        ("f(uint8))", None, [1], "method"),
        ("f(uint8)[]", None, [1], "method"),
        ("f(uint8" + "[]" * 17 + ")", None, [[]], "method"),
        ("f(uint8" + "[]" * 900 + ")", None, [[]], "method"),
        ("f(string)", None, ["\ud800"], "args[0]"),
        ("f(uint8[])", None, [[1] * 10_001], "args"),
        ("f((address,uint256)[])", None, [[[RECEIVER, 1]] * 145_000], "args"),
        ("set", [{"name": "set", "inputs": [{"type": "uint8" + "[]" * 900}]}], [[]], "abi"),
        ("set", [{"name": "set", "inputs": [{"type": "tuple", "components": []}]}], [[]], "abi"),
        (
            "set",
            [{"name": "set", "inputs": [{"type": "tuplex", "components": [{"type": "bool"}]}]}],
            [[]],
            "abi",
        ),
        ("f(address)", None, ["0x5AAeb6053F3E94C9b9A09f33669435E7Ef1BeAed"], "args[0]"),
        ("f(uint8[2])", None, [[1]], "args[0]"),
        ("f(uint8[])", None, [1], "args[0]"),
        ("f((uint8,bool))", None, [[1]], "args[0]"),
        ("f((uint8,bool)[])", None, [[[1, 1]]], "args[0][0][1]"),
        ("none", ABI, [], "method"),
        ("set", ABI, [], "args"),
        ("twice", ABI, [1], "method"),
        ("set", [7], [], "abi"),
        ("set", [{"name": "set", "inputs": 3}], [], "abi"),
        ("set", [{"name": "set", "inputs": [{}]}], [1], "abi"),
        ("set", [{"name": "set", "inputs": [{"type": "tuple"}]}], [1], "abi"),
        ("set", ABI, [[{"a": 1}], "x"], "args[0][0]"),
    ],
)
def test_every_error_names_its_location(
    method: str, abi: list[Any] | None, args: list[Any], field: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        encode_call(method=method, abi=abi, args=args)
    assert caught.value.field == field
