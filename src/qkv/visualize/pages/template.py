"""Render self-contained HTML pages from templates, with a strict Content-Security-Policy.

A template follows `head.html` and consists of a style, a body and optionally a script, with {{name}} placeholders.
"""

import base64
import hashlib
import html
import os
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from qkv.runtime.files import write_atomically


def write_page(
    path: str | os.PathLike[str],
    template: str,
    title: str,
    parts: Mapping[str, str],
    *,
    style: Mapping[str, str] | None = None,
    pictures: bool = False,
) -> Path:
    """Render a template to a file; `style` fills its style element, `pictures` allows inline images."""
    text = "".join(
        resources.files("qkv.visualize.pages").joinpath(name).read_text(encoding="utf-8")
        for name in ("head.html", template)
    )
    for name, part in (style or {}).items():
        text = text.replace(f"{{{{{name}}}}}", part)
    parts = {**parts, "title": html.escape(title), "policy": _policy(text, pictures=pictures)}
    # A single pass, so that placeholders inside tokens or the title are not expanded.
    page = re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], text)
    write_atomically(Path(path), page.encode("utf-8", errors="replace"))
    return Path(path)


def _policy(text: str, *, pictures: bool) -> str:
    """Return a Content-Security-Policy that allows only the page's own style, script and images."""
    allowed = ["default-src 'none'", *["img-src data:"] * pictures]
    for tag in ("style", "script"):
        for content in re.findall(rf"<{tag}>(.*?)</{tag}>", text, flags=re.DOTALL):
            digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
            allowed.append(f"{tag}-src 'sha256-{digest}'")
    return "; ".join([*allowed, "base-uri 'none'", "form-action 'none'"])
