"""HTML page that compares runs: tables, figures and commands, in one file without scripts."""

import base64
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from qkv.visualize.pages.report import escaped, save_report

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


def save_comparison(
    path: str | os.PathLike[str], title: str, sections: Sequence[Section], facts: Mapping[str, str] | None = None
) -> Path:
    """Write the sections as one self-contained HTML file; the footer names the facts, such as the command."""
    parts = "".join(f"<section>\n{_section(section)}</section>\n" for section in sections)
    return save_report(path, title, parts, facts or {}, pictures=True)


def _section(section: Section) -> str:
    parts = [f"<h2>{escaped(section.title)}</h2>\n"] if section.title else []
    if section.rows:
        head = "".join(f"<th>{escaped(cell)}</th>" for cell in section.headers)
        body = "".join(f"<tr>{''.join(f'<td>{escaped(cell)}</td>' for cell in row)}</tr>\n" for row in section.rows)
        scrolled = f'<div class="table" role="region" tabindex="0" aria-label="{escaped(section.title)}">'
        parts.append(f"{scrolled}<table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table></div>\n")
    parts += [f"<p>{escaped(note)}</p>\n" for note in section.notes]
    for description, figure in section.figures:
        parts.append(f'<figure><img src="{_svg_url(figure)}" alt="{escaped(description)}"></figure>\n')
    if section.commands:
        parts.append("<h3>Commands</h3>\n")
        parts += [f"<p>{escaped(label)}</p><pre>{escaped(command)}</pre>\n" for label, command in section.commands]
    return "".join(parts)


def _svg_url(figure: "Figure") -> str:
    import matplotlib

    image = io.BytesIO()
    with matplotlib.rc_context({"svg.fonttype": "path", "svg.hashsalt": "qkv"}):
        figure.savefig(image, bbox_inches="tight", format="svg", metadata={"Date": None})
    return f"data:image/svg+xml;base64,{base64.b64encode(image.getvalue()).decode()}"
