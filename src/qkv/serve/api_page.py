"""The OpenAPI page: all endpoints with their fields, and a form that sends a request to each; no outside requests."""

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
table { border-collapse: collapse; width: 100%; display: block; overflow-x: auto; }
th, td { text-align: left; vertical-align: top; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid #8884; }
code, pre, textarea { font: .9em ui-monospace, monospace; }
pre { background: #8882; padding: .7rem; max-height: 20rem; overflow: auto; }
pre, output { white-space: pre-wrap; overflow-wrap: anywhere; }
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
    key = '<p><label>API key <input type="password" id="key" autocomplete="current-password"></label></p>'
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(info["title"])} endpoints</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style>'
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1><p>{escape(info['description'])}</p>"
        f'<p><a href="/openapi.json">openapi.json</a> &middot; <a href="/">explorer</a></p><nav>{links}</nav>'
        f"{key if 'security' in schema else ''}{''.join(operations)}<script>{SCRIPT}</script></html>"
    )


def _operation(server: Server, path: str, method: str, operation: dict[str, Any]) -> str:
    schema = server.schema
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    statuses = ", ".join(sorted(operation["responses"]))
    parts = [
        f'<h2 id="{escape(path)}"><code>{method.upper()} {escape(path)}</code></h2>',
        f"<p><b>{escape(operation['summary'])}.</b> {_prose(operation.get('description', ''))}</p>",
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
        example = _example(fields, server.models.get(path, ()))
        if not server.models.get(path):
            parts.append("<p>No loaded model has this endpoint.</p>")
        parts.append(f"<pre>{escape(_command(server.host, path, example))}</pre>")
        parts.append(
            f'<form data-path="{escape(path)}"><textarea rows="2" aria-label="Body of the request" spellcheck="false">'
            f"{escape(example)}</textarea><button>Send</button><output></output></form>"
        )
    parts.append(f"<p>Statuses: {statuses}</p>")
    return "".join(parts)


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
        yield f"list of ({_type(schema, field['items'])})"
    elif "properties" in field:
        yield "{" + ", ".join(field["properties"]) + "}"
    elif "type" in field:
        yield field["type"]


def _default(field: dict[str, Any]) -> str:
    return json.dumps(field["default"], ensure_ascii=False) if "default" in field else ""


def _example(fields: dict[str, Any], models: Sequence[str]) -> str:
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
