"""Matplotlib figures, drawn without pyplot and written atomically."""

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qkv.errors import InputError
from qkv.runtime.files import write_atomically
from qkv.visualize.colormap import ON_LIGHT

if TYPE_CHECKING:
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

TEXT, QUIET = "#23262f", "#767b88"  # colors of labels


def new_figure(width: float, height: float) -> "Figure":
    """Return an empty figure with its size in inches."""
    try:
        from matplotlib.figure import Figure
    except ImportError as missing:
        raise InputError("figures require matplotlib: pip install 'qkv[view]'") from missing
    return Figure(figsize=(width, height), facecolor="white")


def save_figure(figure: "Figure", path: str | os.PathLike[str], **options: Any) -> Path:
    """Write a figure to a file; the options are those of `Figure.savefig`."""
    image = io.BytesIO()
    figure.savefig(image, bbox_inches="tight", **{"format": "png", **options})
    write_atomically(Path(path), image.getvalue())
    return Path(path)


def attention_colormap() -> "Colormap":
    """Return the color map of attention weights on a white background."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("attention", ON_LIGHT)
