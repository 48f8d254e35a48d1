"""SQL lives in `sql/*.sql` as named blocks; this is the one reader.

A block begins with `-- name: the_name`, then one comment line that says what it does, then one statement. Names are
unique over all files. A statement that writes to a signer's records says how it is fenced in a third line,
`-- fenced: by its term` or `-- unfenced: why`; a test holds every mutating statement to that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

_HEAD = re.compile(r"^-- name: ([a-z_]+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Query:
    name: str
    description: str
    fencing: str | None
    sql: str


def parse(text: str) -> list[Query]:
    parts = _HEAD.split(text)
    queries = []
    for name, body in zip(parts[1::2], parts[2::2], strict=True):
        lines = body.strip().splitlines()
        comments = [line[3:] for line in lines if line.startswith("-- ")]
        if not comments:
            raise ValueError(f"query {name} has no description")
        fencing = next((line for line in comments if line.startswith(("fenced:", "unfenced:"))), None)
        sql = "\n".join(line for line in lines if not line.startswith("--")).strip()
        queries.append(Query(name=name, description=comments[0], fencing=fencing, sql=sql))
    return queries


@cache
def load_all() -> Mapping[str, Query]:
    queries: dict[str, Query] = {}
    folder = resources.files(__package__).joinpath("sql")
    for file in sorted(folder.iterdir(), key=lambda file: file.name):
        for query in parse(file.read_text(encoding="utf-8")):
            if query.name in queries:
                raise ValueError(f"two queries are named {query.name}")
            queries[query.name] = query
    return queries


def sql(name: str) -> str:
    return load_all()[name].sql
