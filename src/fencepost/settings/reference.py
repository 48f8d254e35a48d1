"""The settings as a page of documentation: one table a group, made from the declarations."""

from __future__ import annotations

import json
from collections.abc import Iterable

from fencepost.settings.declaration import CHAIN_KEYS, DECLARED, SIGNER_KEYS
from fencepost.settings.rules import Declared

_HEAD = """\
# Settings

Defaults < `fencepost.toml` < environment < flags. `fencepost config` shows what is in force and where each value came
from; `fencepost config --example` prints a file to start from. A key's variable is `FENCEPOST_` and the key in capitals
with `_` for `.`: `lease.duration` is `FENCEPOST_LEASE_DURATION`. Private keys come from variables `FENCEPOST_KEY_…`.
Durations are written like `10s`, `250ms`, `2m`, `1h` or as a number of seconds; prices are in Gwei.

This page is made by `fencepost config --markdown`.
"""


def reference_markdown() -> str:
    parts = [_HEAD]
    groups: dict[str, list[tuple[str, Declared]]] = {}
    for key, declared in DECLARED.items():
        groups.setdefault(key.partition(".")[0] if "." in key else "general", []).append((key, declared))
    for group, members in groups.items():
        parts.append(_section(group, members))
    parts.append(
        _section(
            "A chain: `[chains.NAME]`",
            [(f"chains.NAME.{name}", declared) for name, declared in CHAIN_KEYS.items()],
        )
    )
    own = ", ".join(f"`{name}`" for name in SIGNER_KEYS)
    parts.append(f'## A signer: `[signers."0x…"]`\n\nMay have {own} of its own.\n')
    return "\n".join(parts)


def _section(title: str, members: Iterable[tuple[str, Declared]]) -> str:
    lines = [f"## {title}", "", "| key | default | meaning |", "|---|---|---|"]
    for key, declared in members:
        rule = declared.rule
        allowed = rule.kind.allowed.replace("|", "\\|")
        short = f" Variable: `{rule.variable}`." if rule.variable else ""
        lines.append(f"| `{key}` | `{json.dumps(rule.default)}` | {rule.doc} Must be {allowed}.{short} |")
    return "\n".join(lines) + "\n"
