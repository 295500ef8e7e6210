"""Pages from templates: each is one file that needs no network and nothing beside it, and its policy allows it no more.

A template is what comes after `head.html`: a style, a body, perhaps a script, with names in {{ }} where its parts go.
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
    """Fill a template in and write it; `style` are parts of its style element, `pictures` whether it holds some."""
    text = "".join(
        resources.files("qkv.view").joinpath(name).read_text(encoding="utf-8") for name in ("head.html", template)
    )
    for name, part in (style or {}).items():
        text = text.replace(f"{{{{{name}}}}}", part)
    parts = {**parts, "title": html.escape(title), "policy": _policy(text, pictures=pictures)}
    # One pass, so that a placeholder's name inside a token or the title stays what it is: text.
    page = re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], text)
    write_atomically(Path(path), page.encode("utf-8", errors="replace"))
    return Path(path)


def _policy(text: str, *, pictures: bool) -> str:
    """A Content-Security-Policy that admits the page's own style, script and pictures, and nothing else."""
    allowed = ["default-src 'none'", *["img-src data:"] * pictures]
    for tag in ("style", "script"):
        allowed += [f"{tag}-src {_fingerprint(content)}" for content in _contents(text, tag)]
    return "; ".join([*allowed, "base-uri 'none'", "form-action 'none'"])


def _contents(text: str, tag: str) -> list[str]:
    """What stands in the elements with this bare tag, of which there is one at most."""
    return re.findall(rf"<{tag}>(.*?)</{tag}>", text, flags=re.DOTALL)


def _fingerprint(content: str) -> str:
    """The hash by which a browser recognises an inline element."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
