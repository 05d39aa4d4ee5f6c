"""/docs: the OpenAPI document as a page to read. No script, nothing from elsewhere: it works without a network."""

from __future__ import annotations

import json
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

HEADERS = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"}

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; width: 100%; margin: .5rem 0 1.5rem }
td, th { border: 1px solid #ddd; padding: .3rem .5rem; text-align: left; vertical-align: top }
pre { background: #f4f4f4; padding: .5rem; overflow: auto }
code { background: #f4f4f4; padding: 0 .2rem } h2 pre { background: #f4f4f4; padding: .5rem; overflow: auto }
code { background: none } a { color: #0550ae }
"""


def render(document: dict[str, Any]) -> str:
    """The page."""
    info, schemas = document["info"], document["components"]["schemas"]
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><title>Hookpool</title>",
        f"<style>{STYLE}</style><h1>{escape(info['title'])}</h1><p>{escape(info['description'])}</p>",
        "<p>For machines: <a href=/openapi.json>/openapi.json</a></p>",
    ]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            parts += _operation(path, method, operation)
    parts.append("<h1>Schemas</h1>")
    for name in sorted(schemas):
        parts += _schema(name, schemas[name])
    return "\n".join([*parts, "</html>"])


def _operation(path: str, method: str, operation: dict[str, Any]) -> Iterator[str]:
    yield f"<h2><code>{method.upper()} {escape(path)}</code></h2><p><b>{escape(operation['summary'])}.</b>"
    yield escape(operation.get("description", "")) + "</p>"
    if "security" in operation:
        yield "<p>Needs <code>Authorization: Bearer KEY</code>.</p>"
    rows = [(one["name"], one["in"], one.get("description", "")) for one in operation.get("parameters", ())]
    if "requestBody" in operation:
        (content,) = operation["requestBody"]["content"].values()
        rows.append(("body", _type(content["schema"]), ""))
        yield f"<pre>{escape(json.dumps(content['example'], indent=2))}</pre>"
    yield from _table(("parameter", "", ""), rows)
    answers = []
    for status, answer in operation["responses"].items():
        types = [_type(content["schema"]) for content in answer.get("content", {}).values()]
        answers.append((status, " ".join(types), answer["description"]))
    yield from _table(("status", "", ""), answers)


def _schema(name: str, schema: dict[str, Any]) -> Iterator[str]:
    yield f'<h2 id="{escape(name)}"><code>{escape(name)}</code></h2><p>{escape(schema.get("description", ""))}</p>'
    if "enum" in schema:
        yield f"<p>{_type(schema)}</p>"
    needed = schema.get("required", ())
    rows = []
    for key, field in schema.get("properties", {}).items():
        default = json.dumps(field["default"]) if "default" in field else "required" if key in needed else ""
        rows.append((key, _type(field), default))
    yield from _table(("key", "type", "default"), rows)


def _table(heads: tuple[str, str, str], rows: list[tuple[str, str, str]]) -> Iterator[str]:
    """The middle column is markup of ours, the others are text."""
    if rows:
        cells = "".join(
            f"<tr><td><code>{escape(first)}</code><td>{middle}<td>{escape(last)}" for first, middle, last in rows
        )
        yield f"<table><tr>{''.join(f'<th>{head}' for head in heads)}{cells}</table>"


def _type(schema: dict[str, Any]) -> str:
    """A schema in a few words."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    for several in ("anyOf", "oneOf", "allOf"):
        if several in schema:
            return " or ".join(map(_type, schema[several]))
    if "enum" in schema:
        return ", ".join(f"<code>{escape(str(value))}</code>" for value in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return escape(str(schema.get("type", "any")))
