"""HTML page that compares runs: tables, figures and commands, in one file without scripts."""

import base64
import html
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from qkv.runtime.text import escape_controls
from qkv.visualize.pages.template import write_page

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Section:
    """A table with figures, notes and commands; every part may be empty."""

    title: str
    headers: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    notes: Sequence[str] = ()
    figures: "Sequence[tuple[str, Figure]]" = ()  # with their descriptions
    commands: Sequence[tuple[str, str]] = ()  # with their labels


def save_comparison(path: str | os.PathLike[str], title: str, sections: Sequence[Section]) -> Path:
    """Write the sections as one self-contained HTML file."""
    parts = {"sections": "".join(map(_section, sections))}
    return write_page(path, "comparison_page.html", title, parts, pictures=True)


def _section(section: Section) -> str:
    parts = [f"<h2>{_text(section.title)}</h2>\n"] if section.title else []
    if section.rows:
        head = "".join(f"<th>{_text(cell)}</th>" for cell in section.headers)
        body = "".join(f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in row)}</tr>\n" for row in section.rows)
        parts.append(f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table></div>\n')
    parts += [f"<p>{_text(note)}</p>\n" for note in section.notes]
    for description, figure in section.figures:
        parts.append(f'<figure><img src="{_svg_url(figure)}" alt="{_text(description)}"></figure>\n')
    if section.commands:
        parts.append("<h3>Commands</h3>\n")
        parts += [f"<p>{_text(label)}</p><pre>{_text(command)}</pre>\n" for label, command in section.commands]
    return "".join(parts)


def _svg_url(figure: "Figure") -> str:
    import matplotlib

    image = io.BytesIO()
    with matplotlib.rc_context({"svg.fonttype": "path", "svg.hashsalt": "qkv"}):
        figure.savefig(image, bbox_inches="tight", format="svg", metadata={"Date": None})
    return f"data:image/svg+xml;base64,{base64.b64encode(image.getvalue()).decode()}"


def _text(text: str) -> str:
    return html.escape(escape_controls(text))
