"""Tables for people: plain, with colour on a terminal only, and never folded when nobody looks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

_PIPE_COLUMNS = 200  # without a terminal nobody folds lines, so nothing should break them


def console() -> Console:
    out = Console(highlight=False)
    return out if out.is_terminal else Console(highlight=False, width=_PIPE_COLUMNS)


def table(columns: Sequence[str], rows: Iterable[Sequence[str | Text]]) -> Table:
    """Cells are text, never markup: a value may well contain square brackets."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column, overflow="fold")
    for row in rows:
        made.add_row(*[cell if isinstance(cell, Text) else Text(cell) for cell in row])
    return made
