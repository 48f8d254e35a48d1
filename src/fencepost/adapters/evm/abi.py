"""Calldata from a method and its arguments: a signature like "transfer(address,uint256)", or a name and its ABI.

Arguments come as JSON: whole numbers as numbers, decimal or 0x text; bytes as 0x text; addresses with their checksum
looked at; tuples as arrays, or as objects when the ABI names their members. What does not fit raises `InvalidRequest`
whose field is `method`, `abi`, or `args` with indexes.
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
from fencepost.errors import InvalidRequest

MOST_SIGNATURE_CHARS = 2_000
MOST_ABI_ENTRIES = 2_000

_BASES = frozenset({"uint", "int", "bool", "string", "address", "bytes", "function"})
_NAME = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")


@dataclass(frozen=True, slots=True)
class _Parameter:
    type: ABIType
    members: tuple[_Parameter, ...] = ()
    name: str = ""


def encode_call(*, method: str, abi: Sequence[Any] | None, args: Sequence[Any]) -> bytes:
    """Selector and arguments."""
    if len(method) > MOST_SIGNATURE_CHARS:
        raise InvalidRequest("is too long", field="method")
    if "(" in method:
        name, parameters = _from_signature(method)
    elif abi is None:
        raise InvalidRequest(
            'must be a signature such as "transfer(address,uint256)" when there is no abi', field="method"
        )
    else:
        name, parameters = method, _from_abi(abi, method, len(args))
    return _selector(name, parameters) + _encode(parameters, args)


def selector_of(signature: str) -> bytes | None:
    """The four bytes that a method is called by; None for what is no signature."""
    if len(signature) > MOST_SIGNATURE_CHARS:
        return None
    try:
        name, parameters = _from_signature(signature)
    except InvalidRequest:
        return None
    return _selector(name, parameters)


def _selector(name: str, parameters: tuple[_Parameter, ...]) -> bytes:
    signature = f"{name}({','.join(_text(parameter.type) for parameter in parameters)})"
    return keccak256(signature.encode())[:4]


def encode_constructor(*, abi: Sequence[Any], args: Sequence[Any]) -> bytes:
    """What follows the code of a contract that is deployed."""
    entry = next((entry for entry in _entries(abi) if entry.get("type") == "constructor"), None)
    return _encode(_inputs(entry) if entry is not None else (), args)


def _from_signature(signature: str) -> tuple[str, tuple[_Parameter, ...]]:
    name, _, rest = signature.replace(" ", "").partition("(")
    if not _NAME.fullmatch(name):
        raise InvalidRequest(f"{name[:60]!r} is no name of a method", field="method")
    if rest == ")":
        return name, ()
    listed = _parsed("(" + rest, field="method")
    if not isinstance(listed, TupleType) or listed.is_array:
        raise InvalidRequest('must look like "transfer(address,uint256)"', field="method")
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
        raise InvalidRequest(f"the abi has no function {method[:60]!r}", field="method")
    if not fitting:
        raise InvalidRequest(f"no {method} of the abi takes {count} arguments", field="args")
    if len(fitting) > 1:
        raise InvalidRequest(
            f"the abi has {len(fitting)} functions {method} with {count} arguments: give the whole signature",
            field="method",
        )
    return fitting[0]


def _entries(abi: Sequence[Any]) -> list[Mapping[str, Any]]:
    if len(abi) > MOST_ABI_ENTRIES:
        raise InvalidRequest(f"has more than {MOST_ABI_ENTRIES} entries", field="abi")
    if not all(isinstance(entry, dict) for entry in abi):
        raise InvalidRequest("must be a list of objects", field="abi")
    return list(abi)


def _inputs(entry: Mapping[str, Any]) -> tuple[_Parameter, ...]:
    inputs = entry.get("inputs", [])
    if not isinstance(inputs, list):
        raise InvalidRequest("inputs must be a list", field="abi")
    return tuple(_described(one) for one in inputs)


def _described(one: Any) -> _Parameter:
    if not isinstance(one, dict) or not isinstance(one.get("type"), str):
        raise InvalidRequest("an input has no type", field="abi")
    name, text = str(one.get("name", "")), one["type"]
    if not text.startswith("tuple"):
        return _Parameter(_parsed(text, field="abi"), name=name)
    components = one.get("components")
    if not isinstance(components, list):
        raise InvalidRequest("a tuple has no components", field="abi")
    members = tuple(_described(component) for component in components)
    whole = f"({','.join(_text(member.type) for member in members)}){text.removeprefix('tuple')}"
    return _Parameter(_parsed(whole, field="abi"), members, name)


def _parsed(text: str, *, field: str) -> ABIType:
    if len(text) > MOST_SIGNATURE_CHARS:
        raise InvalidRequest("a type is too long", field=field)
    try:
        abi_type: ABIType = parse(normalize(text))  # type: ignore[no-untyped-call]  # the library leaves this one untyped
        abi_type.validate()  # type: ignore[no-untyped-call]  # the library leaves this one untyped
    except (ABITypeError, ParseError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"{text[:80]!r} is no type: {str(error)[:120]}", field=field) from None
    _check_known(abi_type, field=field)
    return abi_type


def _check_known(abi_type: ABIType, *, field: str) -> None:
    if isinstance(abi_type, TupleType):
        for part in abi_type.components:
            _check_known(part, field=field)
    elif not isinstance(abi_type, BasicType) or abi_type.base not in _BASES:
        raise InvalidRequest(f"{_text(abi_type)[:80]!r} is no type that can be encoded", field=field)


def _text(abi_type: ABIType) -> str:
    return str(abi_type.to_type_str())  # type: ignore[no-untyped-call]  # the library leaves this one untyped


def _encode(parameters: tuple[_Parameter, ...], args: Sequence[Any]) -> bytes:
    if len(args) != len(parameters):
        raise InvalidRequest(f"{len(parameters)} arguments are needed, {len(args)} were given", field="args")
    values = [
        _value(parameter, arg, f"args[{index}]")
        for index, (parameter, arg) in enumerate(zip(parameters, args, strict=True))
    ]
    try:
        return encode([_text(parameter.type) for parameter in parameters], values)
    except (EncodingError, ValueError, OverflowError) as error:
        raise InvalidRequest(str(error)[:200], field="args") from None


def _value(parameter: _Parameter, arg: Any, field: str) -> Any:
    abi_type = parameter.type
    if abi_type.is_array:
        if not isinstance(arg, list):
            raise InvalidRequest("must be an array", field=field)
        item = _Parameter(abi_type.item_type, parameter.members, parameter.name)
        return [_value(item, one, f"{field}[{index}]") for index, one in enumerate(arg)]
    if isinstance(abi_type, TupleType):
        return tuple(
            _value(member, one, f"{field}[{index}]")
            for index, (member, one) in enumerate(
                zip(parameter.members, _members(parameter, arg, field), strict=True)
            )
        )
    assert isinstance(abi_type, BasicType)  # noqa: S101 - the grammar has no third kind
    return _basic(abi_type, arg, field)


def _members(parameter: _Parameter, arg: Any, field: str) -> list[Any]:
    if isinstance(arg, dict):
        names = [member.name for member in parameter.members]
        if set(arg) != set(names) or len(set(names)) != len(names):
            raise InvalidRequest(f"must have the members {', '.join(names)}", field=field)
        return [arg[name] for name in names]
    if not isinstance(arg, list) or len(arg) != len(parameter.members):
        raise InvalidRequest(f"must be an array of {len(parameter.members)}", field=field)
    return arg


def _basic(abi_type: BasicType, arg: Any, field: str) -> Any:
    match abi_type.base:
        case "uint" | "int" as base:
            return _whole(arg, int(abi_type.sub), field, signed=base == "int")
        case "bool" if isinstance(arg, bool):
            return arg
        case "string" if isinstance(arg, str):
            return arg
        case "address" if isinstance(arg, str):
            try:
                return parse_checked_address(arg)
            except ValueError as error:
                raise InvalidRequest(str(error), field=field) from None
        case "bytes" | "function" if isinstance(arg, str) and re.fullmatch(r"0x([0-9a-fA-F]{2})*", arg):
            return bytes.fromhex(arg[2:])
        case "bytes" | "function":
            raise InvalidRequest("must be 0x and an even number of hex digits", field=field)
        case base:
            raise InvalidRequest(f"must be of type {base}", field=field)


def _whole(arg: Any, bits: int, field: str, *, signed: bool) -> int:
    if isinstance(arg, int) and not isinstance(arg, bool):
        number = arg
    elif isinstance(arg, str) and re.fullmatch(r"-?(0x[0-9a-fA-F]{1,64}|[0-9]{1,78})", arg):
        number = int(arg, 16 if "0x" in arg else 10)
    else:
        raise InvalidRequest("must be a whole number: a number, decimal text or 0x text", field=field)
    least, most = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    if not least <= number <= most:
        raise InvalidRequest(f"does not fit {'int' if signed else 'uint'}{bits}", field=field)
    return number
