"""Write every sentence that a person can see into one page, so that a review takes minutes.

    ./dev run python scripts/message_catalogue.py > docs/reference/messages.md

The page lists the API's operations and fields, problems, command help, settings, log lines and error messages, in that
order, each from its source: the tables of the program where there are some, else the source text. A test compares the page.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from fencepost.api.openapi import document
from fencepost.api.operations import operations
from fencepost.api.problems import KINDS
from fencepost.cli.main import cli
from fencepost.settings.schema.core import CHAIN_KEYS, DECLARED

SOURCE = Path(__file__).parents[1] / "src" / "fencepost"
LOG_CALLS = frozenset({"debug", "info", "warning", "error", "exception", "critical"})

HEAD = """\
# Messages

Every sentence that a person can see, made by `./dev run python scripts/message_catalogue.py`. `…` stands for a value.
"""


def catalogue() -> str:
    """Return the whole page."""
    sections = [
        ("API", api_lines()),
        ("Problems", problem_lines()),
        ("Command line", command_lines(cli, "fencepost")),
        ("Settings", setting_lines()),
        ("Log lines", log_lines()),
        ("Errors", error_lines()),
    ]
    parts = [HEAD]
    for title, lines in sections:
        parts.append(f"## {title}\n\n" + "\n".join(f"- {line}" for line in lines) + "\n")
    return "\n".join(parts)


def api_lines() -> Iterator[str]:
    """Yield summaries of operations and descriptions of parameters and fields."""
    page = document(operations(), version="0")
    for path, methods in page["paths"].items():
        for method, operation in methods.items():
            yield f"`{method.upper()} {path}`: {operation.get('summary', '')} {operation.get('description', '')}".strip()
            for parameter in operation.get("parameters", ()):
                if text := parameter.get("description"):
                    yield f"`{method.upper()} {path}` `{parameter['name']}`: {text}"
    for name, schema in sorted(page["components"]["schemas"].items()):
        if text := schema.get("description"):
            yield f"`{name}`: {_line(text)}"
        for field, shape in schema.get("properties", {}).items():
            if text := _description(shape):
                yield f"`{name}.{field}`: {_line(text)}"


def _description(shape: dict[str, Any]) -> str:
    found: str = shape.get("description", "")
    return found or next((one["description"] for one in shape.get("anyOf", ()) if one.get("description")), "")


def problem_lines() -> Iterator[str]:
    for code, kind in KINDS.items():
        yield f"`{code}` ({kind.status}): {kind.title}. {kind.hint}".strip()


def command_lines(command: click.Command, name: str) -> Iterator[str]:
    """Yield the help of a command, of its options, and of the commands below it."""
    yield f"`{name}`: {_line(command.help or '')}"
    for option in command.params:
        if isinstance(option, click.Option) and option.help:
            yield f"`{name} {option.opts[0]}`: {_line(option.help)}"
    if isinstance(command, click.Group):
        context = click.Context(command)
        for child in command.list_commands(context):
            found = command.get_command(context, child)
            if found is not None:
                yield from command_lines(found, f"{name} {child}")


def setting_lines() -> Iterator[str]:
    for key, declared in DECLARED.items():
        yield f"`{key}`: {declared.rule.doc}"
    for key, declared in CHAIN_KEYS.items():
        yield f"`chains.NAME.{key}`: {declared.rule.doc}"


def log_lines() -> Iterator[str]:
    """Yield the text of every call of a module's logger."""
    for path, node in _nodes(ast.Call):
        called = node.func
        if isinstance(called, ast.Attribute) and called.attr in LOG_CALLS and node.args:
            owner = called.value
            if (
                isinstance(owner, ast.Name)
                and owner.id in ("_log", "log", "logger")
                and (text := _text(node.args[0]))
            ):
                yield f"{path}: {text}"


def error_lines() -> Iterator[str]:
    """Yield the text of every error that is raised."""
    for path, node in _nodes(ast.Raise):
        raised = node.exc
        if isinstance(raised, ast.Call) and raised.args and isinstance(raised.func, ast.Name | ast.Attribute):
            texts = [text for argument in raised.args if (text := _text(argument)) and " " in text]
            name = raised.func.id if isinstance(raised.func, ast.Name) else raised.func.attr
            if texts:
                yield f"{path} {name}: {texts[0]}"


def _nodes(kind: type[Any]) -> Iterator[tuple[str, Any]]:
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, kind):
                yield str(path.relative_to(SOURCE)), node


def _text(node: ast.expr) -> str:
    """Return a literal text with `…` for what is filled in; empty if the expression is none."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return _line(node.value)
    if isinstance(node, ast.JoinedStr):
        parts = [part.value if isinstance(part, ast.Constant) else "…" for part in node.values]
        return _line("".join(map(str, parts)))
    if isinstance(node, ast.BinOp):
        return _line(_text(node.left) + _text(node.right))
    return ""


def _line(text: str) -> str:
    return " ".join(text.replace("\b", " ").split())


if __name__ == "__main__":
    sys.stdout.write(catalogue())
