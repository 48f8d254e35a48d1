"""Encode calldata from a method and its arguments: a signature like "transfer(address,uint256)", or a name and its ABI.

Arguments come as JSON: whole numbers as numbers, decimal or 0x text; bytes as 0x text; addresses with their checksum
verified; tuples as arrays, or as objects when the ABI names their members. A value fits its type exactly or is rejected:
nothing is padded, cut or rounded. What does not fit raises `InvalidRequest` whose field is `method`, `abi`, or `args` with
indexes. Types are bounded in length and depth and arguments in number, before anything is encoded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fencepost.adapters.evm.encoding import parse_checked_address
from fencepost.adapters.evm.keccak import keccak256
from fencepost.errors import InvalidRequest

MAX_SIGNATURE_CHARS = 2_000
MAX_ABI_ENTRIES = 2_000
MAX_TYPE_DEPTH = 16  # arrays and tuples within each other
MAX_VALUES = 10_000  # twice as many as there are words in the longest calldata that nodes take, and more

_WORD_BYTES = 32
_FUNCTION_BYTES = 24
_INTEGER_BITS = frozenset(range(8, 257, 8))
_FIXED_BYTES = frozenset(range(1, 33))
_ALIASES = {"uint": "uint256", "int": "int256", "byte": "bytes1"}

_METHOD = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")
_AROUND_PUNCTUATION = re.compile(r"\s*([(),\[\]])\s*")
_WORD = re.compile(r"[a-z0-9]+")
_BASIC = re.compile(r"([a-z]+)([1-9][0-9]{0,2})?")
_ARRAY = re.compile(r"\[([1-9][0-9]{0,8})?\]")
_HEX = re.compile(r"0x(?:[0-9a-fA-F]{2})*")
_NUMBER = re.compile(r"-?(?:0x[0-9a-fA-F]{1,64}|[0-9]{1,78})")


@dataclass(frozen=True, slots=True)
class _Type:
    """A type of the contract ABI.

    `kind` is the type without its size, or "array" or "tuple". `size` is the bits of an integer, the bytes of a value with a
    fixed length or the length of a fixed array; None where the value itself decides. `text` is how a selector has it.
    """

    kind: str
    text: str
    size: int | None = None
    parts: tuple[_Type, ...] = ()  # the members of a tuple; the one item type of an array
    names: tuple[str, ...] = ()  # of a tuple's members, where the ABI has them
    is_dynamic: bool = False
    head_bytes: int = _WORD_BYTES  # how much it takes in the head of what surrounds it
    depth: int = 0  # how many arrays and tuples stand within each other


def encode_call(*, method: str, abi: Sequence[Any] | None, args: Sequence[Any]) -> bytes:
    """Encode selector and arguments."""
    if len(method) > MAX_SIGNATURE_CHARS:
        raise InvalidRequest(f"has more than {MAX_SIGNATURE_CHARS} characters", field="method")
    if "(" in method:
        name, parameters = _from_signature(method)
    elif abi is None:
        raise InvalidRequest(
            'must be a signature such as "transfer(address,uint256)" when there is no abi', field="method"
        )
    else:
        name, parameters = method, _from_abi(abi, method, len(args))
    return _selector(name, parameters) + _encode(parameters, args)


def encode_constructor(*, abi: Sequence[Any], args: Sequence[Any]) -> bytes:
    """Encode the constructor arguments that follow the code of a contract."""
    entry = next((entry for entry in _entries(abi) if entry.get("type") == "constructor"), None)
    inputs = [] if entry is None else _inputs(entry)
    return _encode(tuple(_described(one, level=0) for one in inputs), args)


def selector_of(signature: str) -> bytes | None:
    """Compute the selector of a method signature; return None if the text is not one."""
    if len(signature) > MAX_SIGNATURE_CHARS:
        return None
    try:
        name, parameters = _from_signature(signature)
    except InvalidRequest:
        return None
    return _selector(name, parameters)


def _selector(name: str, parameters: tuple[_Type, ...]) -> bytes:
    signature = f"{name}({','.join(parameter.text for parameter in parameters)})"
    return keccak256(signature.encode())[:4]


# ---- types


def _from_signature(signature: str) -> tuple[str, tuple[_Type, ...]]:
    name, _, rest = _AROUND_PUNCTUATION.sub(r"\1", signature.strip()).partition("(")
    if not _METHOD.fullmatch(name):
        raise InvalidRequest(f"{name[:60]!r} is not a method name", field="method")
    if rest == ")":
        return name, ()
    members, end = _members_at(rest, 0, level=0, field="method")
    if end != len(rest):
        raise InvalidRequest('must have the form "transfer(address,uint256)"', field="method")
    return name, tuple(members)


def _members_at(text: str, at: int, *, level: int, field: str) -> tuple[list[_Type], int]:
    """Parse the types of a list up to its closing parenthesis; `at` is behind the opening one."""
    members = []
    while True:
        member, at = _type_at(text, at, level=level, field=field)
        members.append(member)
        if text.startswith(")", at):
            return members, at + 1
        if not text.startswith(",", at):
            raise InvalidRequest(f"{text[:80]!r} has no type, comma or parenthesis at {at}", field=field)
        at += 1


def _type_at(text: str, at: int, *, level: int, field: str) -> tuple[_Type, int]:
    """Parse the type that begins there; the number is where it ends."""
    if level > MAX_TYPE_DEPTH:
        raise _too_deep(field)
    if text.startswith("(", at):
        members, at = _members_at(text, at + 1, level=level + 1, field=field)
        found = _tuple(members, field=field)
    else:
        word = _WORD.match(text, at)
        found = _basic(word[0] if word else "", field=field)
        at = word.end() if word else at
    while length := _ARRAY.match(text, at):
        found, at = _array(found, length[1] or "", field=field), length.end()
    return found, at


def _basic(text: str, *, field: str) -> _Type:
    text = _ALIASES.get(text, text)
    match = _BASIC.fullmatch(text)
    kind, size = (match[1], int(match[2]) if match[2] else None) if match else ("", None)
    match kind, size:
        case (("uint" | "int"), bits) if bits in _INTEGER_BITS:
            return _Type(kind, text, size)
        case "bytes", length if length in _FIXED_BYTES:
            return _Type(kind, text, size)
        case (("bytes" | "string"), None):
            return _Type(kind, text, is_dynamic=True)
        case (("bool" | "address"), None):
            return _Type(kind, text)
        case "function", None:  # an address and a selector; encoded as bytes24, but named so in selectors
            return _Type("bytes", text, _FUNCTION_BYTES)
        case _:
            raise InvalidRequest(f"{text[:80]!r} is not a type that can be encoded", field=field)


def _tuple(members: Sequence[_Type], *, field: str, names: Sequence[str] = ()) -> _Type:
    is_dynamic = any(member.is_dynamic for member in members)
    return _bounded(
        _Type(
            "tuple",
            f"({','.join(member.text for member in members)})",
            parts=tuple(members),
            names=tuple(names),
            is_dynamic=is_dynamic,
            head_bytes=_WORD_BYTES if is_dynamic else sum(member.head_bytes for member in members),
            depth=1 + max(member.depth for member in members),
        ),
        field,
    )


def _array(item: _Type, length: str, *, field: str) -> _Type:
    size = int(length) if length else None
    is_dynamic = size is None or item.is_dynamic
    return _bounded(
        _Type(
            "array",
            f"{item.text}[{length}]",
            size,
            parts=(item,),
            is_dynamic=is_dynamic,
            head_bytes=_WORD_BYTES if is_dynamic else (size or 0) * item.head_bytes,
            depth=1 + item.depth,
        ),
        field,
    )


def _bounded(built: _Type, field: str) -> _Type:
    if built.depth > MAX_TYPE_DEPTH:
        raise _too_deep(field)
    if len(built.text) > MAX_SIGNATURE_CHARS:
        raise InvalidRequest(f"a type has more than {MAX_SIGNATURE_CHARS} characters", field=field)
    return built


def _too_deep(field: str) -> InvalidRequest:
    return InvalidRequest(
        f"a type has more than {MAX_TYPE_DEPTH} arrays and tuples in each other", field=field
    )


# ---- the JSON ABI


def _from_abi(abi: Sequence[Any], method: str, count: int) -> tuple[_Type, ...]:
    named = [
        _inputs(entry)
        for entry in _entries(abi)
        if entry.get("type", "function") == "function" and entry.get("name") == method
    ]
    fitting = [inputs for inputs in named if len(inputs) == count]
    if not named:
        raise InvalidRequest(f"the abi has no function {method[:60]!r}", field="method")
    if not fitting:
        raise InvalidRequest(f"no {method} of the abi takes {count} arguments", field="args")
    if len(fitting) > 1:
        raise InvalidRequest(
            f"the abi has {len(fitting)} functions {method} with {count} arguments: give the whole signature",
            field="method",
        )
    return tuple(_described(one, level=0) for one in fitting[0])


def _entries(abi: Sequence[Any]) -> list[Mapping[str, Any]]:
    if len(abi) > MAX_ABI_ENTRIES:
        raise InvalidRequest(f"has more than {MAX_ABI_ENTRIES} entries", field="abi")
    if not all(isinstance(entry, dict) for entry in abi):
        raise InvalidRequest("must be a list of objects", field="abi")
    return list(abi)


def _inputs(entry: Mapping[str, Any]) -> list[Any]:
    inputs = entry.get("inputs", [])
    if not isinstance(inputs, list):
        raise InvalidRequest("inputs must be a list", field="abi")
    return inputs


def _described(one: Any, *, level: int) -> _Type:
    """Build the type that an entry of `inputs` or `components` describes."""
    if level > MAX_TYPE_DEPTH:
        raise _too_deep("abi")
    text = one.get("type") if isinstance(one, dict) else None
    if not isinstance(text, str):
        raise InvalidRequest("an input has no type", field="abi")
    if text.startswith("tuple"):
        components = one.get("components")
        if not isinstance(components, list) or not components:
            raise InvalidRequest("a tuple has no components", field="abi")
        members = [_described(component, level=level + 1) for component in components]
        names = [str(component.get("name", "")) for component in components]
        found, at = _tuple(members, field="abi", names=names), len("tuple")
        while length := _ARRAY.match(text, at):
            found, at = _array(found, length[1] or "", field="abi"), length.end()
    else:
        found, at = _type_at(text, 0, level=level, field="abi")
    if at != len(text):
        raise InvalidRequest(f"{text[:80]!r} is no type", field="abi")
    return found


# ---- values


def _encode(parameters: tuple[_Type, ...], args: Sequence[Any]) -> bytes:
    if len(args) != len(parameters):
        raise InvalidRequest(f"{len(parameters)} arguments are needed, {len(args)} were given", field="args")
    return _Encoder().sequence(parameters, args, "args")


@dataclass(slots=True)
class _Encoder:
    """Check and encode the arguments of one call, in one pass."""

    left: int = MAX_VALUES

    def sequence(self, types: Sequence[_Type], values: Sequence[Any], field: str) -> bytes:
        """Encode values side by side: fixed ones in the head, the others behind it, with their place in the head."""
        self.left -= len(values)
        if self.left < 0:
            raise InvalidRequest(f"has more than {MAX_VALUES} values", field="args")
        head, tail = [], []
        place = sum(type_.head_bytes for type_ in types)
        for index, (type_, value) in enumerate(zip(types, values, strict=True)):
            encoded = self.value(type_, value, f"{field}[{index}]")
            if type_.is_dynamic:
                head.append(place.to_bytes(_WORD_BYTES))
                tail.append(encoded)
                place += len(encoded)
            else:
                head.append(encoded)
        return b"".join(head + tail)

    def value(self, type_: _Type, arg: Any, field: str) -> bytes:
        match type_.kind:
            case "uint" | "int":
                return _integer(type_, arg, field)
            case "address":
                return _address(arg, field)
            case "bytes":
                return _bytes(type_, arg, field)
            case "bool":
                if not isinstance(arg, bool):
                    raise InvalidRequest("must be true or false", field=field)
                return arg.to_bytes(_WORD_BYTES)
            case "string":
                return _string(arg, field)
            case "array":
                return self._array(type_, arg, field)
            case _:
                return self.sequence(type_.parts, _members(type_, arg, field), field)

    def _array(self, type_: _Type, arg: Any, field: str) -> bytes:
        if not isinstance(arg, list):
            raise InvalidRequest("must be an array", field=field)
        if type_.size is not None and len(arg) != type_.size:
            raise InvalidRequest(f"must be an array of {type_.size}, not of {len(arg)}", field=field)
        length = len(arg).to_bytes(_WORD_BYTES) if type_.size is None else b""
        return length + self.sequence(type_.parts * len(arg), arg, field)


def _members(type_: _Type, arg: Any, field: str) -> list[Any]:
    if isinstance(arg, dict):
        if set(arg) != set(type_.names) or len(set(type_.names)) != len(type_.names):
            named = ", ".join(type_.names) or "none by name: give an array, or the abi with its names"
            raise InvalidRequest(f"must have the members {named}", field=field)
        return [arg[name] for name in type_.names]
    if not isinstance(arg, list) or len(arg) != len(type_.parts):
        raise InvalidRequest(f"must be an array of {len(type_.parts)}", field=field)
    return arg


def _integer(type_: _Type, arg: Any, field: str) -> bytes:
    if isinstance(arg, int) and not isinstance(arg, bool):
        number = arg
    elif isinstance(arg, str) and _NUMBER.fullmatch(arg):
        number = int(arg, 16 if "0x" in arg else 10)
    else:
        raise InvalidRequest("must be a whole number: a number, decimal text or 0x text", field=field)
    bits, is_signed = type_.size or 0, type_.kind == "int"
    least, most = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if is_signed else (0, 2**bits - 1)
    if not least <= number <= most:
        raise InvalidRequest(f"does not fit {type_.text}", field=field)
    return number.to_bytes(_WORD_BYTES, signed=is_signed)


def _address(arg: Any, field: str) -> bytes:
    if not isinstance(arg, str):
        raise InvalidRequest("must be an address: 0x and 40 hex digits", field=field)
    try:
        return bytes.fromhex(parse_checked_address(arg)[2:]).rjust(_WORD_BYTES, b"\0")
    except ValueError as error:
        raise InvalidRequest(str(error), field=field) from None


def _bytes(type_: _Type, arg: Any, field: str) -> bytes:
    if not isinstance(arg, str) or not _HEX.fullmatch(arg):
        raise InvalidRequest("must be 0x and an even number of hex digits", field=field)
    content = bytes.fromhex(arg[2:])
    if type_.size is None:
        return _with_length(content)
    if len(content) != type_.size:
        raise InvalidRequest(f"{type_.text} has {type_.size} bytes, not {len(content)}", field=field)
    return content.ljust(_WORD_BYTES, b"\0")


def _string(arg: Any, field: str) -> bytes:
    if not isinstance(arg, str):
        raise InvalidRequest("must be a string", field=field)
    try:
        return _with_length(arg.encode())
    except UnicodeEncodeError:
        raise InvalidRequest("contains a character that UTF-8 does not allow", field=field) from None


def _with_length(content: bytes) -> bytes:
    return len(content).to_bytes(_WORD_BYTES) + content + b"\0" * (-len(content) % _WORD_BYTES)
