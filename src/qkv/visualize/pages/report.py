"""Write a report as one self-contained HTML file without scripts, in the style of the explorer."""

import html
import os
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from qkv import __version__
from qkv.runtime.files import write_atomically
from qkv.runtime.text import escape_controls
from qkv.visualize.explorer.bundle import content_policy, stylesheet


def save_report(
    path: str | os.PathLike[str],
    title: str,
    sections: str,
    facts: Mapping[str, str],
    *,
    style: str = "",
    pictures: bool = False,
) -> Path:
    """Write the sections, which are HTML; the footer names the facts and the version of qkv.

    `style` is added to that of reports, and `pictures` allows inline images.
    """
    style = f"{stylesheet()}{_read('report.css')}{style}"
    named = {**facts, "qkv": __version__}
    parts = {
        "title": escaped(title),
        "policy": content_policy([style], pictures=pictures),
        "style": style,
        "sections": sections,
        "facts": "".join(
            f"<div><dt>{escaped(name)}</dt><dd>{escaped(value)}</dd></div>" for name, value in named.items() if value
        ),
    }
    # A single pass, so that placeholders inside texts are not expanded.
    page = re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _read("report.html"))
    write_atomically(Path(path), page.encode("utf-8", errors="replace"))
    return Path(path)


def escaped(text: str) -> str:
    """Return a text as HTML, with control characters shown."""
    return html.escape(escape_controls(text))


def _read(name: str) -> str:
    return resources.files("qkv.visualize.pages").joinpath(name).read_text(encoding="utf-8")
