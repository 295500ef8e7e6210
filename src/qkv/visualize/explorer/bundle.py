"""The explorer as one HTML file: its ES modules joined into one script, under a strict Content-Security-Policy."""

import base64
import hashlib
import html
import posixpath
import re
from collections.abc import Sequence
from functools import cache
from importlib import resources

_IMPORT = re.compile(r"^import \{ ([^}]*) \} from \"(\.[^\"]*)\";$", re.MULTILINE)
_EXPORT = re.compile(r"^export (async function|function|const|class) (\w+)", re.MULTILINE)


def render(title: str, data: str, *, name: str = "", served: bool = False) -> str:
    """Return the page with `data`, JSON that is safe inside a script element; a served page may call its server.

    `name` is the title of the window, by default that of the page.
    """
    style, script = stylesheet(), bundle("app.js")
    parts = {
        "title": html.escape(title),
        "name": html.escape(name or title),
        "data": data,
        "style": style,
        "script": script,
    }
    parts["policy"] = content_policy([style], [script], served=served)
    # A single pass, so that placeholders inside tokens or the title are not expanded.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _read("shell.html"))


def stylesheet() -> str:
    """Return the style of the explorer, which reports share."""
    return _read("style.css")


@cache
def bundle(entry: str) -> str:
    """Return one script from a module and all that it imports; each module is a function that returns its exports."""
    modules: dict[str, str] = {}
    _add(entry, modules, ())
    return '"use strict";\nconst modules = {};\n' + "".join(modules.values())


def _add(path: str, modules: dict[str, str], importing: tuple[str, ...]) -> None:
    """Add a module after its imports."""
    if path in importing:
        raise ValueError(f"{path}: imports itself by way of {' -> '.join(importing)}")
    if path in modules:
        return
    text = _read(path)
    folder = posixpath.dirname(path)
    for match in _IMPORT.finditer(text):
        _add(posixpath.normpath(posixpath.join(folder, match[2])), modules, (*importing, path))
    names = [match[2] for match in _EXPORT.finditer(text)]

    def imported(match: re.Match[str]) -> str:
        return f'const {{ {match[1]} }} = modules["{posixpath.normpath(posixpath.join(folder, match[2]))}"];'

    body = _EXPORT.sub(r"\1 \2", _IMPORT.sub(imported, text))
    if remaining := re.search(r"^(import|export)\b.*", body, re.MULTILINE):
        raise ValueError(f"{path}: cannot be joined: {remaining[0]}")
    modules[path] = f'modules["{path}"] = (() => {{\n{body}return {{ {", ".join(names)} }};\n}})();\n'


def _read(path: str) -> str:
    return resources.files("qkv.visualize.explorer").joinpath("app", *path.split("/")).read_text(encoding="utf-8")


def content_policy(
    styles: Sequence[str], scripts: Sequence[str] = (), *, served: bool = False, pictures: bool = False
) -> str:
    """Return a Content-Security-Policy: only these styles and scripts, the own server, and images that are inline."""
    allowed = ["default-src 'none'"]
    for kind, texts in (("style", styles), ("script", scripts)):
        digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts)
        allowed += [" ".join([f"{kind}-src", *(f"'sha256-{digest}'" for digest in digests)])] * bool(texts)
    allowed += ["connect-src 'self'"] * served + ["img-src data:"] * pictures
    return "; ".join([*allowed, "base-uri 'none'", "form-action 'none'"])
