"""The OpenAPI page: all endpoints with their fields and an example each, as plain HTML without outside requests."""

import json
from collections.abc import Iterator
from html import escape
from typing import Any

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h2 { font-size: 1.1rem; margin: 2.5rem 0 0; overflow-wrap: anywhere; }
table { border-collapse: collapse; width: 100%; display: block; overflow-x: auto; }
th, td { text-align: left; vertical-align: top; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid #8884; }
code, pre { font: .9em ui-monospace, monospace; }
pre { background: #8882; padding: .7rem; overflow-x: auto; }
"""


def api_page(schema: dict[str, Any]) -> str:
    """Return an OpenAPI description as a page."""
    info = schema["info"]
    operations = [
        _operation(schema, path, method, operation)
        for path, methods in schema["paths"].items()
        for method, operation in methods.items()
    ]
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(info["title"])} endpoints</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style>'
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1><p>{escape(info['description'])}</p>"
        f'<p><a href="/openapi.json">openapi.json</a> &middot; <a href="/">explorer</a></p>{"".join(operations)}</html>'
    )


def _operation(schema: dict[str, Any], path: str, method: str, operation: dict[str, Any]) -> str:
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    statuses = ", ".join(sorted(operation["responses"]))
    parts = [
        f"<h2><code>{method.upper()} {escape(path)}</code></h2><p><b>{escape(operation['summary'])}.</b> ",
        f"{escape(operation.get('description', ''))}</p>",
    ]
    if body is not None:
        fields = _resolve(schema, body)
        rows = "".join(
            f"<tr><td><code>{escape(name)}</code></td><td>{escape(_type(schema, field))}</td>"
            f"<td>{'required' if name in fields.get('required', ()) else escape(_default(field))}</td>"
            f"<td>{escape(field.get('description', ''))}</td></tr>"
            for name, field in fields["properties"].items()
        )
        parts.append(f"<table><tr><th>field<th>type<th>default<th>meaning</tr>{rows}</table>")
        parts.append(f"<pre>{escape(_example(path, fields))}</pre>")
    parts.append(f"<p>Statuses: {statuses}</p>")
    return "".join(parts)


def _resolve(schema: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    """Return what a reference refers to."""
    if "$ref" not in part:
        return part
    found: dict[str, Any] = schema["components"]["schemas"][part["$ref"].rpartition("/")[2]]
    return found


def _type(schema: dict[str, Any], field: dict[str, Any]) -> str:
    """Return a type in words."""
    return " or ".join(dict.fromkeys(_types(schema, field)))


def _types(schema: dict[str, Any], field: dict[str, Any]) -> Iterator[str]:
    field = _resolve(schema, field)
    for option in field.get("anyOf", ()):
        yield from _types(schema, option)
    if "enum" in field:
        yield " or ".join(map(json.dumps, field["enum"]))
    elif "const" in field:
        yield json.dumps(field["const"])
    elif field.get("type") == "array":
        yield f"list of ({_type(schema, field['items'])})"
    elif "properties" in field:
        yield "{" + ", ".join(field["properties"]) + "}"
    elif "type" in field:
        yield field["type"]


def _default(field: dict[str, Any]) -> str:
    return json.dumps(field["default"], ensure_ascii=False) if "default" in field else ""


def _example(path: str, fields: dict[str, Any]) -> str:
    """Return a command that sends the required fields and the examples."""
    body = {
        name: field["examples"][0] if "examples" in field else "NAME" if name == "model" else "..."
        for name, field in fields["properties"].items()
        if name in fields.get("required", ()) or "examples" in field
    }
    data = json.dumps(body, ensure_ascii=False).replace("'", "'\\''")
    return f"curl localhost:8000{path} -H 'Content-Type: application/json' -d '{data}'"
