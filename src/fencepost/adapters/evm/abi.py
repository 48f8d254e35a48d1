"""Calldata from a method and its arguments: a signature like "transfer(address,uint256)", or a name and its ABI.

Arguments come as JSON: whole numbers as numbers, decimal or 0x text; bytes as 0x text; addresses with their checksum
looked at; tuples as arrays, or as objects when the ABI names their members. What does not fit raises `ArgumentError`
with the place of the argument.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eth_abi.abi import encode
from eth_abi.exceptions import ABITypeError, EncodingError, ParseError
from eth_abi.grammar import ABIType, BasicType, TupleType, normalize, parse

from fencepost.adapters.evm.encoding import parse_checked_address
from fencepost.adapters.evm.keccak import keccak256

MOST_SIGNATURE_CHARS = 2_000
MOST_ABI_ENTRIES = 2_000

_BASES = frozenset({"uint", "int", "bool", "string", "address", "bytes", "function"})
_NAME = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")


class ArgumentError(ValueError):
    """`place` names what is wrong: "method", "abi", or "args" with indexes."""

    def __init__(self, message: str, *, place: str) -> None:
        super().__init__(message)
        self.place = place


@dataclass(frozen=True, slots=True)
class _Parameter:
    type: ABIType
    members: tuple[_Parameter, ...] = ()
    name: str = ""


def encode_call(*, method: str, abi: Sequence[Any] | None, args: Sequence[Any]) -> bytes:
    """Selector and arguments."""
    if len(method) > MOST_SIGNATURE_CHARS:
        raise ArgumentError("is too long", place="method")
    if "(" in method:
        name, parameters = _from_signature(method)
    elif abi is None:
        raise ArgumentError(
            'must be a signature such as "transfer(address,uint256)" when there is no abi', place="method"
        )
    else:
        name, parameters = method, _from_abi(abi, method, len(args))
    signature = f"{name}({','.join(_text(parameter.type) for parameter in parameters)})"
    return keccak256(signature.encode())[:4] + _encode(parameters, args)


def encode_constructor(*, abi: Sequence[Any], args: Sequence[Any]) -> bytes:
    """What follows the code of a contract that is deployed."""
    entry = next((entry for entry in _entries(abi) if entry.get("type") == "constructor"), None)
    return _encode(_inputs(entry) if entry is not None else (), args)


def _from_signature(signature: str) -> tuple[str, tuple[_Parameter, ...]]:
    name, _, rest = signature.replace(" ", "").partition("(")
    if not _NAME.fullmatch(name):
        raise ArgumentError(f"{name[:60]!r} is no name of a method", place="method")
    if rest == ")":
        return name, ()
    listed = _parsed("(" + rest, place="method")
    if not isinstance(listed, TupleType) or listed.is_array:
        raise ArgumentError('must look like "transfer(address,uint256)"', place="method")
    return name, tuple(_bare(component) for component in listed.components)


def _bare(abi_type: ABIType) -> _Parameter:
    members = tuple(_bare(part) for part in abi_type.components) if isinstance(abi_type, TupleType) else ()
    return _Parameter(abi_type, members)


def _from_abi(abi: Sequence[Any], method: str, count: int) -> tuple[_Parameter, ...]:
    named = [
        entry
        for entry in _entries(abi)
        if entry.get("type", "function") == "function" and entry.get("name") == method
    ]
    fitting = [inputs for inputs in map(_inputs, named) if len(inputs) == count]
    if not named:
        raise ArgumentError(f"the abi has no function {method[:60]!r}", place="method")
    if not fitting:
        raise ArgumentError(f"no {method} of the abi takes {count} arguments", place="args")
    if len(fitting) > 1:
        raise ArgumentError(
            f"the abi has {len(fitting)} functions {method} with {count} arguments: give the whole signature",
            place="method",
        )
    return fitting[0]


def _entries(abi: Sequence[Any]) -> list[Mapping[str, Any]]:
    if len(abi) > MOST_ABI_ENTRIES:
        raise ArgumentError(f"has more than {MOST_ABI_ENTRIES} entries", place="abi")
    if not all(isinstance(entry, dict) for entry in abi):
        raise ArgumentError("must be a list of objects", place="abi")
    return list(abi)


def _inputs(entry: Mapping[str, Any]) -> tuple[_Parameter, ...]:
    inputs = entry.get("inputs", [])
    if not isinstance(inputs, list):
        raise ArgumentError("inputs must be a list", place="abi")
    return tuple(_described(one) for one in inputs)


def _described(one: Any) -> _Parameter:
    if not isinstance(one, dict) or not isinstance(one.get("type"), str):
        raise ArgumentError("an input has no type", place="abi")
    name, text = str(one.get("name", "")), one["type"]
    if not text.startswith("tuple"):
        return _Parameter(_parsed(text, place="abi"), name=name)
    components = one.get("components")
    if not isinstance(components, list):
        raise ArgumentError("a tuple has no components", place="abi")
    members = tuple(_described(component) for component in components)
    whole = f"({','.join(_text(member.type) for member in members)}){text.removeprefix('tuple')}"
    return _Parameter(_parsed(whole, place="abi"), members, name)


def _parsed(text: str, *, place: str) -> ABIType:
    if len(text) > MOST_SIGNATURE_CHARS:
        raise ArgumentError("a type is too long", place=place)
    try:
        abi_type = parse(normalize(text))  # type: ignore[no-untyped-call]  # the library leaves this one untyped
        abi_type.validate()
    except (ABITypeError, ParseError, ValueError, RecursionError) as error:
        raise ArgumentError(f"{text[:80]!r} is no type: {str(error)[:120]}", place=place) from None
    _check_known(abi_type, place=place)
    return abi_type


def _check_known(abi_type: ABIType, *, place: str) -> None:
    if isinstance(abi_type, TupleType):
        for part in abi_type.components:
            _check_known(part, place=place)
    elif not isinstance(abi_type, BasicType) or abi_type.base not in _BASES:
        raise ArgumentError(f"{_text(abi_type)[:80]!r} is no type that can be encoded", place=place)


def _text(abi_type: ABIType) -> str:
    return str(abi_type.to_type_str())  # type: ignore[no-untyped-call]  # the library leaves this one untyped


def _encode(parameters: tuple[_Parameter, ...], args: Sequence[Any]) -> bytes:
    if len(args) != len(parameters):
        raise ArgumentError(f"{len(parameters)} arguments are needed, {len(args)} were given", place="args")
    values = [
        _value(parameter, arg, f"args[{index}]")
        for index, (parameter, arg) in enumerate(zip(parameters, args, strict=True))
    ]
    try:
        return encode([_text(parameter.type) for parameter in parameters], values)
    except (EncodingError, OverflowError) as error:
        raise ArgumentError(str(error)[:200], place="args") from None


def _value(parameter: _Parameter, arg: Any, place: str) -> Any:
    abi_type = parameter.type
    if abi_type.is_array:
        if not isinstance(arg, list):
            raise ArgumentError("must be an array", place=place)
        item = _Parameter(abi_type.item_type, parameter.members, parameter.name)
        return [_value(item, one, f"{place}[{index}]") for index, one in enumerate(arg)]
    if isinstance(abi_type, TupleType):
        return tuple(
            _value(member, one, f"{place}[{index}]")
            for index, (member, one) in enumerate(
                zip(parameter.members, _members(parameter, arg, place), strict=True)
            )
        )
    assert isinstance(abi_type, BasicType)  # noqa: S101 - the grammar has no third kind
    return _basic(abi_type, arg, place)


def _members(parameter: _Parameter, arg: Any, place: str) -> list[Any]:
    if isinstance(arg, dict):
        names = [member.name for member in parameter.members]
        if set(arg) != set(names) or len(set(names)) != len(names):
            raise ArgumentError(f"must have the members {', '.join(names)}", place=place)
        return [arg[name] for name in names]
    if not isinstance(arg, list) or len(arg) != len(parameter.members):
        raise ArgumentError(f"must be an array of {len(parameter.members)}", place=place)
    return arg


def _basic(abi_type: BasicType, arg: Any, place: str) -> Any:
    match abi_type.base:
        case "uint" | "int" as base:
            return _whole(arg, int(abi_type.sub), place, signed=base == "int")
        case "bool" if isinstance(arg, bool):
            return arg
        case "string" if isinstance(arg, str):
            return arg
        case "address" if isinstance(arg, str):
            try:
                return parse_checked_address(arg)
            except ValueError as error:
                raise ArgumentError(str(error), place=place) from None
        case "bytes" | "function" if isinstance(arg, str) and re.fullmatch(r"0x([0-9a-fA-F]{2})*", arg):
            return bytes.fromhex(arg[2:])
        case "bytes" | "function":
            raise ArgumentError("must be 0x and an even number of hex digits", place=place)
        case base:
            raise ArgumentError(f"must be of type {base}", place=place)


def _whole(arg: Any, bits: int, place: str, *, signed: bool) -> int:
    if isinstance(arg, int) and not isinstance(arg, bool):
        number = arg
    elif isinstance(arg, str) and re.fullmatch(r"-?(0x[0-9a-fA-F]{1,64}|[0-9]{1,78})", arg):
        number = int(arg, 16 if "0x" in arg else 10)
    else:
        raise ArgumentError("must be a whole number: a number, decimal text or 0x text", place=place)
    least, most = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    if not least <= number <= most:
        raise ArgumentError(f"does not fit {'int' if signed else 'uint'}{bits}", place=place)
    return number
