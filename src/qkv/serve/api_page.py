"""The OpenAPI page: all endpoints with the fields of their requests and responses, and a form that sends requests.

It makes no outside requests.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from qkv.visualize.explorer.bundle import content_policy

STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
nav { columns: 3 14rem; }
nav a { display: block; }
h2 { font-size: 1.1rem; margin: 2.5rem 0 0; overflow-wrap: anywhere; }
h3 { font-size: 1rem; margin: 1.2rem 0 0; }
table { border-collapse: collapse; width: 100%; display: block; overflow-x: auto; }
th, td { text-align: left; vertical-align: top; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid #8884; }
code, pre, textarea { font: .9em ui-monospace, monospace; }
pre { background: #8882; padding: .7rem; max-height: 20rem; overflow: auto; }
pre, output { white-space: pre-wrap; overflow-wrap: anywhere; }
@media (max-width: 40rem) {
  table, tbody { display: block; }
  tr { display: flex; flex-wrap: wrap; gap: 0 .8rem; padding: .4rem 0; border-bottom: 1px solid #8884; }
  tr:has(th) { display: none; }
  td { border: 0; padding: 0; overflow-wrap: anywhere; }
  td:empty { display: none; }
  td:last-child { flex-basis: 100%; }
  td:nth-child(3):nth-last-child(2)::before { content: "default "; }
}
textarea { display: block; box-sizing: border-box; width: 100%; margin-bottom: .5rem; }
"""
SCRIPT = """
const key = document.querySelector("#key");
for (const form of document.forms) {
  const [body, send] = form.elements, result = form.querySelector("output");
  form.addEventListener("submit", async event => {
    event.preventDefault();
    send.disabled = true;
    const shown = document.createElement("pre"), status = document.createElement("p");
    result.replaceChildren(status, shown);
    try {
      const headers = { "Content-Type": "application/json", ...key?.value && { Authorization: `Bearer ${key.value}` } };
      const answer = await fetch(form.dataset.path, { method: "POST", headers, body: body.value });
      status.textContent = `Status ${answer.status}`;
      const text = await answer.text();
      try { shown.textContent = JSON.stringify(JSON.parse(text), null, 1); } catch { shown.textContent = text; }
    } catch (error) { status.textContent = `No answer: ${error.message}`; }
    send.disabled = false;
  });
}
"""
ERROR = {"$ref": "#/components/schemas/ErrorResponse"}
POLICY = content_policy([STYLE], [SCRIPT], served=True)


class Server(NamedTuple):
    """The server that a page describes."""

    schema: Mapping[str, Any]  # OpenAPI description
    host: str  # and port
    models: Mapping[str, Sequence[str]]  # names of the models of each endpoint


def api_page(server: Server) -> str:
    """Return the OpenAPI description of a server as a page."""
    schema = server.schema
    info, paths = schema["info"], schema["paths"]
    operations = [
        _operation(server, path, method, operation)
        for path, methods in paths.items()
        for method, operation in methods.items()
    ]
    links = "".join(f'<a href="#{escape(path)}"><code>{escape(path)}</code></a>' for path in paths)
    links += '<a href="#errors">Errors</a>'
    errors = f'<h2 id="errors">Errors</h2><p>{_prose(_summary(schema, ERROR))}</p>{_described(schema, ERROR)}'
    key = '<p><label>API key <input type="password" id="key" autocomplete="current-password"></label></p>'
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(info["title"])} endpoints</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style>'
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1><p>{escape(info['description'])}</p>"
        f'<p><a href="/openapi.json">openapi.json</a> &middot; <a href="/">explorer</a></p><nav>{links}</nav>'
        f"{key if 'security' in schema else ''}{''.join(operations)}{errors}<script>{SCRIPT}</script></html>"
    )


def _operation(server: Server, path: str, method: str, operation: dict[str, Any]) -> str:
    schema = server.schema
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    responses = operation["responses"]
    parts = [
        f'<h2 id="{escape(path)}"><code>{method.upper()} {escape(path)}</code></h2>',
        f"<p><b>{escape(operation['summary'])}.</b> {_prose(operation.get('description', ''))}</p>",
    ]
    if body is not None:
        fields = _resolve(schema, body)
        rows = [
            (name, f"{_type(schema, field)}{', required' * required}", _default(field), field.get("description", ""))
            for name, field, required in _fields(schema, body)
        ]
        parts.append(_table(("field", "type", "default", "meaning"), rows))
        example = _request(fields, server.models.get(path, ()))
        if not server.models.get(path):
            parts.append("<p>No loaded model has this endpoint.</p>")
        parts.append(f"<pre>{escape(_command(server.host, path, example))}</pre>")
        parts.append(
            f'<form data-path="{escape(path)}"><textarea rows="2" aria-label="Body of the request" spellcheck="false">'
            f"{escape(example)}</textarea><button>Send</button><output></output></form>"
        )
    parts += ["<h3>Response</h3>", *_response(schema, responses["200"])]
    if errors := sorted(set(responses) - {"200"}):
        parts.append(f'<p>Errors: {", ".join(errors)} (<a href="#errors">format</a>)</p>')
    return "".join(parts)


def _response(schema: Mapping[str, Any], response: dict[str, Any]) -> Iterator[str]:
    """Yield the parts of the description of a response."""
    content = response.get("content", {})
    kinds = " or ".join(f"<code>{escape(kind)}</code>" for kind in content)
    body = content.get("application/json", {}).get("schema")
    yield f"<p>{kinds}{'' if body is None else f': {_prose(_summary(schema, body))}'}</p>"
    if body is not None:
        yield _described(schema, body)


def _described(schema: Mapping[str, Any], body: dict[str, Any]) -> str:
    """Return the table of the fields of a response, with an example."""
    rows = [(name, _type(schema, field), field.get("description", "")) for name, field, _ in _fields(schema, body)]
    example = json.dumps(example_of(schema, body), ensure_ascii=False, indent=1)
    return f"{_table(('field', 'type', 'meaning'), rows)}<pre>{escape(example)}</pre>"


def _summary(schema: Mapping[str, Any], body: dict[str, Any]) -> str:
    return str(_resolve(schema, body).get("description", ""))


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table whose first column is code."""
    body = (
        f"<tr><td><code>{escape(name)}</code></td>{''.join(f'<td>{_prose(text)}</td>' for text in texts)}</tr>"
        for name, *texts in rows
    )
    return f"<table><tr>{''.join(f'<th>{name}' for name in header)}</tr>{''.join(body)}</table>"


def _fields(
    schema: Mapping[str, Any], part: dict[str, Any], prefix: str = ""
) -> Iterator[tuple[str, dict[str, Any], bool]]:
    """Yield the name of each field, with the names of the objects that it is in, its schema, and if it is required."""
    part = _resolve(schema, part)
    for name, field in part.get("properties", {}).items():
        yield prefix + name, field, name in part.get("required", ())
        nested, path = _resolve(schema, _non_null(field)), prefix + name
        while "items" in nested:
            nested, path = _resolve(schema, nested["items"]), f"{path}[]"
        yield from _fields(schema, nested, f"{path}.")


def _non_null(field: dict[str, Any]) -> dict[str, Any]:
    """Return the first option of a field that is not null."""
    options: list[dict[str, Any]] = [option for option in field.get("anyOf", ()) if option.get("type") != "null"]
    return options[0] if options else field


def example_of(schema: Mapping[str, Any], field: dict[str, Any]) -> Any:
    """Return an example of a response: the examples of its fields, or else their defaults."""
    if "examples" in field:
        return field["examples"][0]
    resolved = _resolve(schema, _non_null(field))
    if "properties" in resolved:
        fields = resolved["properties"].items()
        return {name: example_of(schema, each) for name, each in fields if _in_example(each)}
    if "items" in resolved:
        return [example_of(schema, resolved["items"])]
    return resolved["enum"][0] if "enum" in resolved else resolved.get("const", field.get("default"))


def _prose(text: str) -> str:
    """Return a text whose code is in backticks."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(text))


def _resolve(schema: Mapping[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    """Return what a reference refers to."""
    if "$ref" not in part:
        return part
    found: dict[str, Any] = schema["components"]["schemas"][part["$ref"].rpartition("/")[2]]
    return found


def _type(schema: Mapping[str, Any], field: dict[str, Any]) -> str:
    """Return a type in words."""
    return " or ".join(dict.fromkeys(_types(schema, field)))


def _types(schema: Mapping[str, Any], field: dict[str, Any]) -> Iterator[str]:
    field = _resolve(schema, field)
    for option in field.get("anyOf", ()):
        yield from _types(schema, option)
    if "enum" in field:
        yield " or ".join(map(json.dumps, field["enum"]))
    elif "const" in field:
        yield json.dumps(field["const"])
    elif field.get("type") == "array":
        yield f"list of {_item_type(schema, field)}"
    elif "properties" in field:
        yield "object"
    elif "type" in field:
        yield field["type"]


def _in_example(field: dict[str, Any]) -> bool:
    return "examples" in field or "const" in field or field.get("default") is None


def _item_type(schema: Mapping[str, Any], field: dict[str, Any]) -> str:
    if "prefixItems" in field:
        return "[" + ", ".join(_type(schema, item) for item in field["prefixItems"]) + "]"
    name = _type(schema, field["items"])
    return f"({name})" if " " in name else name


def _default(field: dict[str, Any]) -> str:
    return json.dumps(field["default"], ensure_ascii=False) if "default" in field else ""


def _request(fields: dict[str, Any], models: Sequence[str]) -> str:
    """Return a request with the required fields and the examples; the model is named unless it may be omitted."""
    required = fields.get("required", ())
    body = {
        name: field["examples"][0] if "examples" in field else "..."
        for name, field in fields["properties"].items()
        if name != "model" and (name in required or "examples" in field)
    }
    if "model" in required or len(models) > 1:
        body = {"model": models[0] if models else "NAME", **body}
    return json.dumps(body, ensure_ascii=False)


def _command(host: str, path: str, body: str) -> str:
    """Return a command that sends a request."""
    data = body.replace("'", "'\\''")
    return f"curl {host}{path} -H 'Content-Type: application/json' -d '{data}'"
