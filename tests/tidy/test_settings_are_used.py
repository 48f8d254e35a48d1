"""Every setting is read by the program and documented."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import fencepost
from fencepost.settings import CHAIN_KEYS, DECLARED, SIGNER_KEYS, example_toml

PACKAGE = Path(fencepost.__file__).parent
DECLARED_THERE = {PACKAGE / "settings", PACKAGE / "cli" / "config.py"}


def sources() -> list[Path]:
    return [path for path in sorted(PACKAGE.rglob("*.py")) if not DECLARED_THERE & {path, *path.parents}]


def owner_and_attribute(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Return owner and attribute: `settings.lease.duration_s`, `self._lease.duration_s` and `lease.duration_s` all give (lease, duration_s)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            match node.value:
                case ast.Attribute(attr=owner) | ast.Name(id=owner):
                    yield owner.lstrip("_"), node.attr
                case ast.Subscript(value=ast.Attribute(attr=owner) | ast.Name(id=owner)):
                    yield owner.lstrip("_"), node.attr
                case _:
                    pass


def accepted_readings() -> dict[str, set[tuple[str, str]]]:
    """Map each setting to the expressions that count as reading it; the source must contain one of them."""
    readings: dict[str, set[tuple[str, str]]] = {"keys.private_keys": {("keys", "private_keys")}}
    for key, declared in DECLARED.items():
        group, _, attribute = declared.attribute.rpartition(".")
        readings[key] = {(group.rpartition(".")[2] or "settings", attribute)}
    for key, declared in CHAIN_KEYS.items():
        readings[f"chains.NAME.{key}"] = {("chain", declared.attribute), ("chains", declared.attribute)}
    for key, declared in SIGNER_KEYS.items():
        # `signer_settings` returns these, with the signer's own values where it has some.
        readings[declared.key].add(("of_signer", key))
    return readings


def test_the_scan_finds_a_reading() -> None:
    tree = ast.parse(
        "wait(settings.lease.duration_s); self._lease.skew_allowance_s; s.chains[n].id; lease.written = 1"
    )
    found = set(owner_and_attribute(tree))
    assert {("lease", "duration_s"), ("lease", "skew_allowance_s"), ("chains", "id")} <= found
    assert ("lease", "written") not in found


def test_every_setting_is_read() -> None:
    found = {
        pair for path in sources() for pair in owner_and_attribute(ast.parse(path.read_text(), str(path)))
    }
    unread = [key for key, readings in accepted_readings().items() if not readings & found]
    assert not unread, "settings that nothing reads: " + ", ".join(unread)


def test_every_setting_has_a_one_sentence_description_and_is_in_the_example() -> None:
    example = example_toml()
    for key, declared in {**DECLARED, **CHAIN_KEYS}.items():
        doc = declared.rule.doc
        assert doc[:1].isupper(), key
        assert doc.endswith("."), key
        assert f"# {doc}\n" in example, key
        assert f"\n#{key.rpartition('.')[2]} = " in example, key
