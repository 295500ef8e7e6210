"""A heat map in the terminal: what was written down the side, what was read along the top."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float
from rich.cells import cell_len, set_cell_size
from rich.color import Color
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.style import Style
from rich.text import Text

from qkv.tasks.answer import AttentionMap
from qkv.view.glyphs import visible
from qkv.view.ink import ON_DARK, Rgb, readable_on, shade
from qkv.view.selection import caption, pick_head

_CHARACTER_WIDTH = 2  # a character's cell: about square in most terminal fonts, and enough for a wide glyph
_LEAST_WORD_WIDTH = 4  # a word's cell has room for a weight such as .87 and a gap
_MOST_WORD_WIDTH = 17
_MOST_LABEL_WIDTH = 20
_WORTH_A_NUMBER = 0.05


def heat_map(attention_map: AttentionMap, *, head: int | None = None) -> RenderableType:
    """The attention of one layer as something rich can print: all heads averaged, or the one that is named."""
    return _HeatMap(
        caption(attention_map, head),
        tuple(visible(token) for token in attention_map.rows),
        tuple(visible(token) for token in attention_map.columns),
        pick_head(attention_map, head),
    )


@runtime_checkable
class _Brush(Protocol):
    """A way to draw one weight, which is also given as a fraction of the largest, in so many distinct levels."""

    @property
    def levels(self) -> int: ...

    def cell(self, weight: float, fraction: float, width: int) -> Text: ...


@dataclass(frozen=True)
class _Colours:
    """Shades of one hue behind the weight; they carry their own background, so they suit dark and light terminals."""

    levels: int = len(ON_DARK)

    def cell(self, weight: float, fraction: float, width: int) -> Text:
        number = f"{weight:.2f}".removeprefix("0")[:3]
        fits = width >= _LEAST_WORD_WIDTH and weight >= _WORTH_A_NUMBER
        background = shade(ON_DARK, fraction)
        style = Style(color=_colour(readable_on(background)), bgcolor=_colour(background))
        return Text((number if fits else "").center(width), style=style)


@dataclass(frozen=True)
class _Blocks:
    """Denser and denser characters, for where there are no colours: a pipe, a file, NO_COLOR."""

    steps: str

    @property
    def levels(self) -> int:
        return len(self.steps)

    def cell(self, weight: float, fraction: float, width: int) -> Text:
        return Text(self.steps[round(fraction * (self.levels - 1))] * width)


@dataclass(frozen=True)
class _HeatMap:
    caption: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    weights: Float[np.ndarray, "rows columns"]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.weights.size == 0:
            yield Text(f"{self.caption}: there are no tokens to show")
            return
        # Tokens first, since a replaced glyph may be narrower; then the few marks that the lines add.
        rows, columns = (tuple(_encodable(t, options.encoding) for t in tokens) for tokens in (self.rows, self.columns))
        for line in replace(self, rows=rows, columns=columns)._lines(_brush(console, options), options.max_width):
            line.plain = _encodable(line.plain, options.encoding)
            line.no_wrap = True
            yield line

    def _lines(self, brush: _Brush, width: int) -> Iterator[Text]:
        peak = float(self.weights.max())
        label_width = min(_MOST_LABEL_WIDTH, max(map(cell_len, self.rows)), width // 3)
        panels = list(_panels(_column_widths(self.columns), width - label_width - 1))
        yield Text(self.caption, style="bold", overflow="ellipsis")
        for panel in panels:
            if len(panels) > 1:
                yield Text()
                yield Text(f"columns {min(panel) + 1}–{max(panel) + 1} of {len(self.columns)}", style="dim")
            yield _heading(self.columns, panel, label_width)
            for row, weights in zip(self.rows, self.weights, strict=True):
                label = Text(_flush_right(row, label_width) + " ")
                cells = (brush.cell(float(weights[j]), float(weights[j]) / (peak or 1.0), panel[j]) for j in panel)
                yield label.append_text(Text().join(cells))
        yield Text()
        yield _legend(brush, peak, label_width)


def _brush(console: Console, options: ConsoleOptions) -> _Brush:
    # Sixteen colours hold no ordered shades of one hue.
    if console.color_system in {"256", "truecolor"} and not console.no_color:
        return _Colours()
    return _Blocks(" .:*#" if options.ascii_only else " ░▒▓█")


def _column_widths(headings: Iterable[str]) -> list[int]:
    """Cells as wide as their tokens: square where most tokens are characters, with room for a number among words."""
    lengths = [cell_len(heading) for heading in headings]
    words = sum(length > _CHARACTER_WIDTH for length in lengths) > len(lengths) / 3
    least = _LEAST_WORD_WIDTH if words else _CHARACTER_WIDTH
    return [
        least if length <= _CHARACTER_WIDTH else min(max(length + 1, least), _MOST_WORD_WIDTH) for length in lengths
    ]


def _panels(widths: list[int], room: int) -> Iterator[dict[int, int]]:
    """The columns, as many at a time as fit beside one another: the width of each by its index."""
    panel: dict[int, int] = {}
    for j, width in enumerate(widths):
        if panel and sum(panel.values()) + width > room:
            yield panel
            panel = {}
        panel[j] = width
    yield panel


def _heading(headings: tuple[str, ...], panel: dict[int, int], label_width: int) -> Text:
    gaps = {j: 0 if width == _CHARACTER_WIDTH else 1 for j, width in panel.items()}
    cells = (_fit(headings[j], width - gaps[j]) + " " * gaps[j] for j, width in panel.items())
    return Text(" " * (label_width + 1) + "".join(cells))


def _legend(brush: _Brush, peak: float, label_width: int) -> Text:
    steps = (brush.cell(0.0, level / (brush.levels - 1), 2) for level in range(brush.levels))
    return Text(" " * (label_width + 1) + "0 ").append_text(Text().join(steps)).append(f" {peak:.2f}")


def _fit(text: str, width: int) -> str:
    """The text in exactly this many terminal cells, with an ellipsis where it was cut."""
    return set_cell_size(text, width) if cell_len(text) <= width else set_cell_size(text, width - 1) + "…"


def _flush_right(text: str, width: int) -> str:
    return " " * (width - cell_len(text)) + _fit(text, min(width, cell_len(text)))


def _encodable(text: str, encoding: str) -> str:
    """The text with what an old code page cannot write replaced, one character for one."""
    if encoding.startswith("utf"):
        return text
    plain = text.translate(str.maketrans("␣…·", "_~-"))
    return plain.encode(encoding, "replace").decode(encoding)


def _colour(rgb: Rgb) -> Color:
    return Color.from_rgb(*rgb)
