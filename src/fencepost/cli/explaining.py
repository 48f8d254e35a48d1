"""Print an explanation: the cause, what was seen, what takes place by itself, and the commands that help."""

from __future__ import annotations

from datetime import datetime

from rich.console import Console
from rich.text import Text

from fencepost.application.explain import HARMLESS
from fencepost.cli.rendering import console
from fencepost.client import ExplanationOut


def needs_action(found: ExplanationOut) -> bool:
    """Return whether the cause, or that of the transaction in front, does not end by itself."""
    cause = found.cause if found.blocked_by is None else found.blocked_by.cause
    return cause not in HARMLESS


def print_explanation(found: ExplanationOut, *, err: bool = False) -> None:
    """Print it as lines; commands stand alone on their line, so that they can be copied."""
    out = Console(stderr=True, highlight=False, width=200) if err else console()
    style = "bold red" if needs_action(found) else "bold green"
    out.print(Text.assemble((f"{'cause':<14}", "bold"), (found.cause, style), f": {found.summary}"))
    if found.since is not None:
        out.print(Text.assemble((f"{'since':<14}", "bold"), _time(found.since)))
    if found.blocked_by is not None:
        blocked_by = f"{found.blocked_by.tx_id} ({found.blocked_by.cause}): {found.blocked_by.summary}"
        out.print(Text.assemble((f"{'blocked by':<14}", "bold"), blocked_by))
    for one in found.evidence:
        at = f", {_time(one.at)}" if one.at is not None else ""
        out.print(Text.assemble((f"{'seen':<14}", "bold"), f"{one.text} ({one.source}{at})"))
    if found.expected:
        out.print(Text.assemble((f"{'expected':<14}", "bold"), found.expected))
    for action in found.actions:
        out.print(Text.assemble((f"{'do':<14}", "bold"), action.command), soft_wrap=True)
        out.print(Text(f"{'':<14}{action.consequence}"))


def _time(at: datetime) -> str:
    return at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
