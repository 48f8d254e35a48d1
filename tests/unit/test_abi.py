"""Calldata from JSON: what encoders elsewhere make of it, and a clear place for every fault."""

from __future__ import annotations

from typing import Any

import pytest
from eth_abi.abi import encode

from fencepost.adapters.evm.abi import encode_call, encode_constructor
from fencepost.adapters.evm.keccak import keccak256
from fencepost.errors import InvalidRequest

SOMEBODY = "0x" + "11" * 20
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


def selector(signature: str) -> bytes:
    return keccak256(signature.encode())[:4]


def test_a_transfer_is_what_everybody_knows() -> None:
    data = encode_call(method="transfer(address,uint256)", abi=None, args=[SOMEBODY, "5"])
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
        ("f((address,string)[])", [[[SOMEBODY, "é"]]], ["(address,string)[]"], [[(SOMEBODY, "é")]]),
    ],
)
def test_a_signature_with_arguments(
    method: str, args: list[Any], types: list[str], values: list[Any]
) -> None:
    data = encode_call(method=method, abi=None, args=args)
    assert data == selector(f"f({','.join(types)})") + encode(types, values)


def test_a_name_is_looked_up_in_the_abi_by_how_many_arguments_it_has() -> None:
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
        ("f(bytes2)", None, ["0x010203"], "args"),
        ("f(address)", None, ["0x5AAeb6053F3E94C9b9A09f33669435E7Ef1BeAed"], "args[0]"),
        ("f(uint8[2])", None, [[1]], "args"),
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
def test_every_fault_has_its_place(method: str, abi: list[Any] | None, args: list[Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        encode_call(method=method, abi=abi, args=args)
    assert caught.value.field == field
