"""Generate a documented `fencepost.toml` with every key commented out at its default.

A description starts with `# `, a setting with `#` alone: without that sign it is valid TOML with the default value.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from fencepost.settings.fields import Declared
from fencepost.settings.schema.core import CHAIN_KEYS, DECLARED, SIGNER_KEYS

_HEAD = """\
# Fencepost settings. Each line that starts with # and no space shows a default: remove the # to change it.
# An environment variable overrides this file, and a flag overrides both; `fencepost config` shows the values in force.
# Durations are written like 10s, 250ms, 2m, 1h or as a number of seconds; prices are in Gwei.
"""

_CHAINS = """
# One table per chain; without one, there is a single chain "default" on the embedded dev chain.
# FENCEPOST_RPC_URL (separated by commas) and FENCEPOST_CHAIN_ID configure the default chain."""

_SIGNERS = """
# A signer may override {keys} in a table [signers."0x…"] with its address."""


def example_toml() -> str:
    """Return the text of the example file."""
    lines = [_HEAD]
    table = ""
    for key, declared in DECLARED.items():
        group, _, name = key.rpartition(".")
        if group != table:
            lines += ["", f"[{group}]"]
            table = group
        lines += _entry(declared, name, variable=declared.variable)
    lines += [_CHAINS, "#[chains.default]"]
    for name, declared in CHAIN_KEYS.items():
        lines += _entry(declared, name, variable="")
    lines.append(_SIGNERS.format(keys=", ".join(SIGNER_KEYS)))
    return "\n".join(lines) + "\n"


def _entry(declared: Declared, name: str, *, variable: str) -> Iterator[str]:
    rule = declared.rule
    yield f"# {rule.doc}"
    yield f"# Must be {rule.kind.allowed}." + (f" Variable: {variable}" if variable else "")
    # JSON and TOML write booleans, numbers, strings and lists of strings in the same way.
    yield f"#{name} = {json.dumps(rule.default)}"
