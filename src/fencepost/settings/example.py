"""A whole `fencepost.toml`, documented, with every key commented out at its default.

A line of prose begins with `# `, a setting with `#` alone: without that sign it is TOML that says what is so anyway.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from fencepost.settings.declaration import CHAIN_KEYS, DECLARED, SIGNER_KEYS
from fencepost.settings.rules import Declared

_HEAD = """\
# Fencepost settings. Every line that begins with # alone shows a default: remove the # and change it.
# An environment variable overrides this file and a flag overrides both; `fencepost config` shows what is in force.
# Durations are written like 10s, 250ms, 2m, 1h or as a number of seconds; prices are in Gwei.
"""

_CHAINS = """
# One table a chain; without any, there is one named "default" on the embedded dev chain.
# FENCEPOST_RPC_URL (commas between) and FENCEPOST_CHAIN_ID set the default chain's."""

_SIGNERS = """
# A signer may have its own {keys} in a table [signers."0x…"] with its address."""


def example_toml() -> str:
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
    # JSON writes truth values, numbers, texts and lists of texts just as TOML does.
    yield f"#{name} = {json.dumps(rule.default)}"
