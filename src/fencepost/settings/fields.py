"""Declare a setting as a dataclass field, and collect all declarations of a group."""

from __future__ import annotations

from dataclasses import Field, dataclass, field, fields, is_dataclass
from typing import Any, TypeVar

from fencepost.settings.types import Plain, SettingType

T = TypeVar("T")
_RULE = "setting"


@dataclass(frozen=True, slots=True)
class SettingField:
    """Hold the declaration of one setting; `default` is written as in a file."""

    kind: SettingType[Any]
    default: Plain
    doc: str
    variable: str = ""  # replaces the variable that is derived from the key


@dataclass(frozen=True, slots=True)
class Declared:
    """Hold a declaration with its key and its attribute path."""

    key: str
    attribute: str  # the path in Python, with the unit
    rule: SettingField

    @property
    def variable(self) -> str:
        """Return the name of the environment variable."""
        return self.rule.variable or "FENCEPOST_" + self.key.upper().replace(".", "_")

    @property
    def flag(self) -> str:
        """Return the name that messages use for the command-line flag."""
        return "--" + self.key.replace(".", "-").replace("_", "-")


def setting(kind: SettingType[T], default: Plain, doc: str, *, variable: str = "") -> T:
    """Declare a setting: a dataclass field with its type, default, description and variable."""
    rule = SettingField(kind, default, doc, variable)
    return field(default=kind.parse(default), metadata={_RULE: rule}, repr=not kind.secret)


def group_of(member: Field[Any]) -> type[Any] | None:
    """Return the class of a nested group, or None if the member is a setting or is filled in by `loading`."""
    # typeshed declares a factory only, not MISSING
    default_factory: object = member.default_factory
    return default_factory if isinstance(default_factory, type) and is_dataclass(default_factory) else None


def key_of(member: Field[Any], *, prefix: str) -> str | None:
    """Return the key of a setting, without the unit, or None if the member is filled in by `loading`."""
    rule: SettingField | None = member.metadata.get(_RULE)
    return None if rule is None else prefix + member.name.removesuffix(rule.kind.suffix)


def declared_in(group: type[Any], *, key_prefix: str = "", attribute_prefix: str = "") -> dict[str, Declared]:
    """Map each key of a group and its nested groups to its declaration, in source order."""
    found: dict[str, Declared] = {}
    for member in fields(group):
        attribute = attribute_prefix + member.name
        inner = group_of(member)
        if inner is not None:
            prefix = f"{key_prefix}{member.name}."
            found |= declared_in(inner, key_prefix=prefix, attribute_prefix=f"{attribute}.")
        elif (key := key_of(member, prefix=key_prefix)) is not None:
            found[key] = Declared(key=key, attribute=attribute, rule=member.metadata[_RULE])
    return found
