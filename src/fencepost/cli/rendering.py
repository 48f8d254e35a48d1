"""Print tables: with colour and line folding on a terminal, plain and wide when the output is piped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

_PIPE_COLUMNS = 200  # programs that read a pipe expect one row per line


def console() -> Console:
    """Return a console for standard output, as wide as the terminal or `_PIPE_COLUMNS`."""
    out = Console(highlight=False)
    return out if out.is_terminal else Console(highlight=False, width=_PIPE_COLUMNS)


def table(columns: Sequence[str], rows: Iterable[Sequence[str | Text]]) -> Table:
    """Build a table. Cells are plain text, not rich markup: a value may contain square brackets."""
    built = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        built.add_column(column, overflow="fold")
    for row in rows:
        built.add_row(*[cell if isinstance(cell, Text) else Text(cell) for cell in row])
    return built
