"""What the declaration is made of: a field that remembers its rule, and the walk that finds all rules again."""

from __future__ import annotations

from dataclasses import Field, dataclass, field, fields, is_dataclass
from typing import Any, TypeVar

from fencepost.settings.kinds import Kind, Plain

T = TypeVar("T")
_RULE = "setting"


@dataclass(frozen=True, slots=True)
class Rule:
    """What the declaration says of one setting; `default` is written as a file would."""

    kind: Kind[Any]
    default: Plain
    doc: str
    variable: str = ""  # a shorter one than the key would give


@dataclass(frozen=True, slots=True)
class Declared:
    """A rule and the names it goes by."""

    key: str
    attribute: str  # the path in Python, with the unit
    rule: Rule

    @property
    def variable(self) -> str:
        return self.rule.variable or "FENCEPOST_" + self.key.upper().replace(".", "_")

    @property
    def flag(self) -> str:
        return "--" + self.key.replace(".", "-").replace("_", "-")


def setting(kind: Kind[T], default: Plain, doc: str, *, variable: str = "") -> T:
    rule = Rule(kind, default, doc, variable)
    return field(default=kind.parse(default), metadata={_RULE: rule}, repr=not kind.secret)


def group_of(member: Field[Any]) -> type[Any] | None:
    """The class of a nested group, or None when the member is a setting or filled in by hand."""
    # typeshed knows of factories only, not of MISSING
    made_by: object = member.default_factory
    return made_by if isinstance(made_by, type) and is_dataclass(made_by) else None


def key_of(member: Field[Any], *, prefix: str) -> str | None:
    """The key of a setting, without the unit; None when the member is filled in by hand."""
    rule: Rule | None = member.metadata.get(_RULE)
    return None if rule is None else prefix + member.name.removesuffix(rule.kind.suffix)


def declared_in(group: type[Any], *, key_prefix: str = "", attribute_prefix: str = "") -> dict[str, Declared]:
    """Key to declaration, groups within groups included, in the order of the source."""
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
