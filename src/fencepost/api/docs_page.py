"""Render the OpenAPI document as the HTML page at /docs, without scripts or external resources."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

_STYLE = """
:root { color-scheme: light dark }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem }
code { font: 0.9em ui-monospace, monospace }
h2 { margin-top: 2.5rem }
summary { cursor: pointer; padding: 0.4rem 0 }
details { border-bottom: 1px solid #8884 }
details > :not(summary) { margin-left: 1rem }
table { border-collapse: collapse; margin: 0.5rem 0 1rem }
td, th { text-align: left; padding: 0.15rem 1rem 0.15rem 0; vertical-align: top }
.method { display: inline-block; min-width: 3.5rem; font-weight: 600 }
.quiet { opacity: 0.7 }
"""


def render(document: Mapping[str, Any]) -> str:
    info = document["info"]
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        f"<title>{escape(info['title'])} API</title>",
        '<meta name="viewport" content="width=device-width">',
        f"<style>{_STYLE}</style></head><body>",
        f'<h1>{escape(info["title"])} API <span class="quiet">{escape(info["version"])}</span></h1>',
        f"<p>{_prose(info['description'])} ",
        'Machine-readable: <a href="/openapi.json">openapi.json</a>.</p>',
        *_operations(document),
        *_types(document["components"]["schemas"]),
        *_problems(document["x-problems"]),
        "</body></html>",
    ]
    return "\n".join(parts)


def _operations(document: Mapping[str, Any]) -> Iterator[str]:
    groups: dict[str, list[tuple[str, str, Mapping[str, Any]]]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            groups.setdefault(operation["tags"][0], []).append((path, method, operation))
    for group, listed in groups.items():
        yield f"<h2>{escape(group)}</h2>"
        for path, method, operation in listed:
            yield from _operation(path, method, operation)


def _operation(path: str, method: str, operation: Mapping[str, Any]) -> Iterator[str]:
    yield f'<details id="{escape(operation["operationId"])}"><summary><code>'
    yield f'<span class="method">{escape(method.upper())}</span> {escape(path)}</code>'
    yield f"<br>{_prose(operation['summary'])}</summary>"
    if "description" in operation:
        yield f'<p class="quiet">{_prose(operation["description"])}</p>'
    if operation["parameters"]:
        yield "<table>"
        for parameter in operation["parameters"]:
            is_required = "required" if parameter.get("required") else parameter["in"]
            about = parameter.get("description") or parameter["schema"].get("description", "")
            shape = _shape(parameter["schema"])
            yield _row(f"<code>{escape(parameter['name'])}</code>", shape, escape(is_required), _prose(about))
        yield "</table>"
    if "requestBody" in operation:
        yield f"<p>Body: {_shape(operation['requestBody']['content']['application/json']['schema'])}</p>"
    yield "<table>"
    for status, response in operation["responses"].items():
        shape = _shape(next(iter(response["content"].values()))["schema"])
        yield _row(f"<code>{escape(status)}</code>", shape, _prose(response["description"]))
    yield "</table></details>"


def _types(schemas: Mapping[str, Any]) -> Iterator[str]:
    yield "<h2>Types</h2>"
    for name, schema in schemas.items():
        yield f'<details id="type-{escape(name)}"><summary><code>{escape(name)}</code></summary>'
        if "description" in schema:
            yield f"<p>{_prose(schema['description'])}</p>"
        if "enum" in schema:
            yield f"<p>{_shape(schema)}</p>"
        yield "<table>"
        for field, inner in schema.get("properties", {}).items():
            is_required = "required" if field in schema.get("required", ()) else ""
            about = _prose(_about(inner))
            yield _row(f"<code>{escape(field)}</code>", _shape(inner), escape(is_required), about)
        yield "</table></details>"


def _problems(problems: Mapping[str, Any]) -> Iterator[str]:
    yield "<h2>Problems</h2><table>"
    for code, kind in problems.items():
        yield _row(
            f"<code>{escape(code)}</code>", str(kind["status"]), escape(kind["title"]), _prose(kind["hint"])
        )
    yield "</table>"


def _row(*cells: str) -> str:
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _about(schema: Mapping[str, Any]) -> str:
    if "description" in schema:
        return str(schema["description"])
    return " ".join(
        str(option["description"]) for option in schema.get("anyOf", ()) if "description" in option
    )


def _shape(schema: Mapping[str, Any]) -> str:
    """Describe a type in a few words."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#type-{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(_shape(option) for option in schema["anyOf"])
    if "enum" in schema:
        return " ".join(f"<code>{escape(str(value))}</code>" for value in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_shape(schema.get('items', {}))}"
    return escape(str(schema.get("format") or schema.get("type") or "anything"))


def _prose(text: str) -> str:
    """Escape text for HTML; render text between backticks as code."""
    pieces = escape(text).split("`")
    return "".join(f"<code>{piece}</code>" if index % 2 else piece for index, piece in enumerate(pieces))
