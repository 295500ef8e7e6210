"""Attention heat maps in the terminal: queries as rows, keys as columns."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from rich.cells import cell_len, set_cell_size
from rich.color import Color
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.style import Style
from rich.text import Text

from qkv.pipelines.output import AttentionMap
from qkv.visualize.colormap import ON_DARK, readable_on, shade
from qkv.visualize.glyphs import visible
from qkv.visualize.selection import caption, pick_head

_CHARACTER_WIDTH = 2  # roughly square in most terminal fonts; fits a wide glyph
_LEAST_WORD_WIDTH = 4  # fits a weight such as .87 and a gap
_MOST_WORD_WIDTH = 17
_MOST_LABEL_WIDTH = 20
_WORTH_A_NUMBER = 0.05
_NUMBERED = 5  # columns from one number to the next, if numbers would touch


def heat_map(attention_map: AttentionMap, *, head: int | None = None, max_lines: int | None = None) -> RenderableType:
    """Return a rich renderable of a layer's attention, for one head or averaged over heads.

    With `max_lines`, rows and columns that do not fit into as many lines are left out, and a line says so.
    """
    return _HeatMap(
        caption(attention_map, head),
        tuple(visible(token) for token in attention_map.rows),
        tuple(visible(token) for token in attention_map.columns),
        pick_head(attention_map, head),
        max_lines,
    )


class _Brush(NamedTuple):
    """Draws a weight, also given as a fraction of the maximum, as `width` cells with `levels` distinct levels."""

    levels: int
    cell: Callable[[float, float, int], Text]


def shaded_style(fraction: float) -> Style:
    """Return a style with explicit foreground and background, for dark and light terminals."""
    background = shade(ON_DARK, fraction)
    return Style(color=Color.from_rgb(*readable_on(background)), bgcolor=Color.from_rgb(*background), dim=False)


def _colored_cell(weight: float, fraction: float, width: int) -> Text:
    number = f"{weight:.2f}".removeprefix("0")[:3]
    fits = width >= _LEAST_WORD_WIDTH and weight >= _WORTH_A_NUMBER
    return Text((number if fits else "").center(width), style=shaded_style(fraction))


@dataclass(frozen=True)
class _HeatMap:
    caption: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    weights: Float[np.ndarray, "rows columns"]
    max_lines: int | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.weights.size == 0:
            yield Text(f"{self.caption}: no tokens to show")
            return
        # Replace tokens first, since a replacement may be narrower; then the symbols added by the lines.
        rows, columns = (tuple(_encodable(t, options.encoding) for t in tokens) for tokens in (self.rows, self.columns))
        for line in replace(self, rows=rows, columns=columns)._lines(_brush(console, options), options.max_width):
            line.plain = _encodable(line.plain, options.encoding)
            line.no_wrap = True
            yield line

    def _lines(self, brush: _Brush, width: int) -> Iterator[Text]:
        peak = float(self.weights.max())
        labels = label_width(self.rows, width)
        panels = list(_panels(column_widths(self.columns), width - labels - 1))
        rows, shown = _fitting(len(self.rows), len(panels), self.max_lines)
        yield Text(self.caption, style="bold", overflow="ellipsis")
        for panel in panels[:shown]:
            if len(panels) > 1:
                yield Text()
                yield Text(f"columns {min(panel) + 1}–{max(panel) + 1} of {len(self.columns)}", style="dim")
            yield _heading(self.columns, panel, labels)
            for row, weights in zip(self.rows[:rows], self.weights[:rows], strict=True):
                label = Text(_flush_right(row, labels) + " ")
                cells = (brush.cell(float(weights[j]), float(weights[j]) / (peak or 1.0), panel[j]) for j in panel)
                yield label.append_text(Text().join(cells))
        yield Text()
        yield _legend(brush, peak, labels)
        if rows < len(self.rows) or shown < len(panels):
            columns = max(panels[shown - 1]) + 1
            cut = f"{rows} of {len(self.rows)} rows, {columns} of {len(self.columns)} columns"
            yield Text(f"{cut}: the page shows everything, as does --full", style="dim")


def _brush(console: Console, options: ConsoleOptions) -> _Brush:
    # 16-color terminals have no ordered shades of one hue.
    if console.color_system in {"256", "truecolor"} and not console.no_color:
        return _Brush(len(ON_DARK), _colored_cell)
    # Block characters of increasing density, for output without color (pipe, file, NO_COLOR).
    blocks = " .:*#" if options.ascii_only else " ░▒▓█"
    return _Brush(
        len(blocks), lambda weight, fraction, width: Text(blocks[round(fraction * (len(blocks) - 1))] * width)
    )


def label_width(rows: Iterable[str], width: int) -> int:
    """Return the width of the names of the rows of a heat map of `width` cells."""
    return min(_MOST_LABEL_WIDTH, max(map(cell_len, rows)), width // 3)


def column_widths(headings: Iterable[str]) -> list[int]:
    """Return column widths: square cells for characters, cells that fit a number for words."""
    lengths = [cell_len(heading) for heading in headings]
    words = sum(length > _CHARACTER_WIDTH for length in lengths) > len(lengths) / 3
    least = _LEAST_WORD_WIDTH if words else _CHARACTER_WIDTH
    return [
        least if length <= _CHARACTER_WIDTH else min(max(length + 1, least), _MOST_WORD_WIDTH) for length in lengths
    ]


def _panels(widths: list[int], max_width: int) -> Iterator[dict[int, int]]:
    """Split the columns into panels that fit `max_width`; yields column index -> width."""
    panel: dict[int, int] = {}
    for j, width in enumerate(widths):
        if panel and sum(panel.values()) + width > max_width:
            yield panel
            panel = {}
        panel[j] = width
    yield panel


def _fitting(rows: int, panels: int, max_lines: int | None) -> tuple[int, int]:
    """Return how many rows and panels fit into `max_lines` lines; all of them without a limit."""
    if max_lines is None:
        return rows, panels
    around = 4  # caption, empty line, legend, and the line that names what is omitted
    if panels == 1:
        return min(rows, max(1, max_lines - around - 1)), 1
    per_panel = 3  # empty line, numbers of the columns, heading
    shown = max(1, (max_lines - around) // (per_panel + rows))
    return min(rows, max(1, (max_lines - around) // min(shown, panels) - per_panel)), min(shown, panels)


def _heading(headings: tuple[str, ...], panel: dict[int, int], label_width: int) -> Text:
    gaps = {j: 0 if width == _CHARACTER_WIDTH else 1 for j, width in panel.items()}
    numbers = all(headings[j].isdecimal() for j in panel) and any(len(headings[j]) >= panel[j] for j in panel)
    labels = {
        j: "" if numbers and int(headings[j]) % _NUMBERED else headings[j] for j in panel
    }  # numbers of two digits would touch
    cells = (_fit(labels[j], width - gaps[j]) + " " * gaps[j] for j, width in panel.items())
    return Text(" " * (label_width + 1) + "".join(cells))


def _legend(brush: _Brush, peak: float, label_width: int) -> Text:
    steps = (brush.cell(0.0, level / (brush.levels - 1), 2) for level in range(brush.levels))
    return Text(" " * (label_width + 1) + "0 ").append_text(Text().join(steps)).append(f" {peak:.2f}")


def _fit(text: str, width: int) -> str:
    """Pad or truncate a text to exactly `width` terminal cells."""
    return set_cell_size(text, width) if cell_len(text) <= width else set_cell_size(text, width - 1) + "…"


def _flush_right(text: str, width: int) -> str:
    return " " * (width - cell_len(text)) + _fit(text, min(width, cell_len(text)))


def _encodable(text: str, encoding: str) -> str:
    """Replace characters that `encoding` cannot represent, one for one."""
    if encoding.startswith("utf"):
        return text
    plain = text.translate(str.maketrans("␣…·", "_~-"))
    return plain.encode(encoding, "replace").decode(encoding)
