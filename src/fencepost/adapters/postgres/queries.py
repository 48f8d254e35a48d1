"""SQL lives in `sql/*.sql` as named blocks; this is the one reader.

A block begins with `-- name: the_name`, then one comment line that says what it does, then one statement. Names are
unique over all files. A statement that writes to a signer's records says how it is fenced in a third line,
`-- fenced: by its term` or `-- unfenced: why`; a test holds every mutating statement to that.

A statement of many parts (`WITH a AS (…), b AS (…)`) can be had without some of them: the server prepares, opens and
checks only what is left, and the driver encodes only the parameters that are still named. One that takes arrays of rows
(`ARRAY[ROW(…)]`) shows a row of each, and can be had with any number of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import count
from typing import Any

_HEAD = re.compile(r"^-- name: ([a-z_]+)$", re.MULTILINE)
_PARAMETER = re.compile(r"\$(\d+)")
_ROWS = re.compile(r"ARRAY\[(ROW.*?)\]::", re.DOTALL)
_PART_ENDS, _LAST_PART_ENDS = "\n), ", "\n)\nSELECT "


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


@dataclass(frozen=True, slots=True)
class Lean:
    """A statement with only some of its parts, and which of the whole one's parameters it takes, in order."""

    sql: str
    parameters: tuple[int, ...]

    def arguments(self, of_the_whole: Sequence[Any]) -> list[Any]:
        return [of_the_whole[parameter - 1] for parameter in self.parameters]


@cache
def lean(name: str, without: frozenset[str]) -> Lean:
    """The query without some of its common table expressions: nothing else may read from those."""
    body, end, answer = sql(name).rpartition(_LAST_PART_ENDS)
    parts = body.split(_PART_ENDS)
    kept = [part for part in parts if part.partition(" AS ")[0] not in without]
    if len(parts) - len(kept) != len(without):
        raise ValueError(f"{name} does not have all of {sorted(without)}")
    text = _PART_ENDS.join(kept) + end + answer
    parameters = tuple(sorted({int(number) for number in _PARAMETER.findall(text)}))
    place = {parameter: position for position, parameter in enumerate(parameters, start=1)}
    return Lean(_PARAMETER.sub(lambda found: f"${place[int(found[1])]}", text), parameters)


@cache
def repeated(name: str, counts: tuple[int, ...]) -> str:
    """The query with so many rows in each of its arrays, and its parameters numbered as they come."""
    left = iter(counts)
    text = _ROWS.sub(lambda found: f"ARRAY[{', '.join([found[1]] * next(left))}]::", sql(name))
    numbers = count(1)
    return _PARAMETER.sub(lambda _: f"${next(numbers)}", text)
