"""Read the named SQL statements from `sql/*.sql`.

A block begins with `-- name: the_name`, then a comment that says what it does, then one statement. Names are unique
over all files. A statement that writes has a comment line `-- fenced: how` or `-- unfenced: why`; a test checks every such
statement. `{{name}}` stands for a fragment: a list of columns (`fragments.py`).

The statement `commit_lanes` is composed: its sources are generated (`sources.py`), and its parts, one common table expression
each, are blocks that begin with `-- part: the_name`. A commit uses the parts that it has rows for. A block that begins with
`-- condition: the_name` is a condition of the statement if it has the part of that name.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources

from fencepost.adapters.postgres.fragments import FRAGMENTS
from fencepost.adapters.postgres.sources import COMMIT_SOURCES, numbered_arrays

_HEAD = re.compile(r"^-- (name|part|condition): ([a-z_]+)$", re.MULTILINE)
_FRAGMENT = re.compile(r"\{\{([a-z_]+)\}\}")


@dataclass(frozen=True, slots=True)
class Query:
    name: str
    description: str
    fencing: str | None
    sql: str
    parts: Mapping[str, str] = field(default_factory=dict)  # by name, in the order of the file
    conditions: Mapping[str, str] = field(default_factory=dict)  # by the name of the part


def parse(text: str) -> list[Query]:
    pieces = _HEAD.split(text)
    queries: list[Query] = []
    for kind, name, body in zip(pieces[1::3], pieces[2::3], pieces[3::3], strict=True):
        lines = body.strip().splitlines()
        comments = [line[3:] for line in lines if line.startswith("-- ")]
        if not comments:
            raise ValueError(f"{kind} {name} has no description")
        sql = "\n".join(line for line in lines if not line.startswith("--")).strip()
        if kind == "part":
            query = queries.pop()
            queries.append(replace(query, parts={**query.parts, name: sql}))
        elif kind == "condition":
            query = queries.pop()
            queries.append(replace(query, conditions={**query.conditions, name: sql}))
        else:
            fencing = next((line for line in comments if line.startswith(("fenced:", "unfenced:"))), None)
            queries.append(Query(name, comments[0], fencing, sql))
    return queries


@cache
def _templates() -> Mapping[str, Query]:
    queries: dict[str, Query] = {}
    folder = resources.files(__package__).joinpath("sql")
    for file in sorted(folder.iterdir(), key=lambda file: file.name):
        for query in parse(file.read_text(encoding="utf-8")):
            if query.name in queries:
                raise ValueError(f"two queries are named {query.name}")
            queries[query.name] = query
    return queries


@cache
def load_all() -> Mapping[str, Query]:
    """Return the statements by name; a composed one has all its parts."""
    every_source = numbered_arrays(COMMIT_SOURCES)
    return {
        name: replace(
            query, sql=compose(name, every_source, query.parts) if query.parts else _filled(query.sql)
        )
        for name, query in _templates().items()
    }


def sql(name: str) -> str:
    return load_all()[name].sql


def compose(name: str, sources: Sequence[str], parts: Collection[str]) -> str:
    """Return the statement with these sources, and with the named parts in the order of the file."""
    query = _templates()[name]
    unknown = set(parts) - query.parts.keys()
    if unknown:
        raise ValueError(f"{name} does not have the parts {sorted(unknown)}")
    chosen = [text for part, text in query.parts.items() if part in parts]
    conditions = [text for part, text in query.conditions.items() if part in parts] or ["true"]
    return _filled(
        query.sql, sources=", ".join(sources), parts=", ".join(chosen), conditions=" AND ".join(conditions)
    )


def _filled(template: str, **fragments: str) -> str:
    """Replace the fragments of the text, and those of the fragments. Raises `KeyError` for an unknown name."""
    given = {**FRAGMENTS, **fragments}
    while _FRAGMENT.search(template):
        template = _FRAGMENT.sub(lambda found: given[found[1]], template)
    return template
