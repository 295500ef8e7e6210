"""Few-shot episodes as a PNG: the support images and the query's attention to each of them."""

import math
import os
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from qkv.interpret.episode_probe import QUERY, EpisodeAnswer
from qkv.runtime.files import write_atomically
from qkv.visualize.colormap import ON_LIGHT, shade
from qkv.visualize.image_overlay import png_bytes, resized
from qkv.visualize.selection import checked_weights

_SIDE = 112  # longer side of an image in pixels
_GAP = 12
_BAR = 14  # height of a layer's cell below an image
_TEXT = 18
_RIGHT, _WRONG, _INK = "#1a7f4b", "#b3261e", "#23262f"


def save_episode_png(episode: EpisodeAnswer, path: str | os.PathLike[str]) -> Path:
    """Plot an episode: the query image, then the support images, each with one attention cell per layer."""
    shares = _shares(episode)
    across = min(len(episode.labels), 11)
    pictures = [resized(pixels, _SIDE) for pixels in episode.pixels]
    width, height = pictures[0].size
    tile = (width + _GAP, height + _TEXT + len(shares) * _BAR + _GAP)
    down = math.ceil(len(episode.labels) / across)
    canvas = Image.new("RGB", (across * tile[0] + _GAP, down * tile[1] + _GAP), "white")
    draw = ImageDraw.Draw(canvas)
    for index, number in enumerate((len(episode.labels) - 1, *range(len(episode.labels) - 1))):
        left, top = _GAP + index % across * tile[0], _GAP + index // across * tile[1]
        canvas.paste(pictures[number], (left, top))
        text, color = _caption(episode, number)
        draw.text((left, top + height + 2), text, fill=color)
        for row, weights in enumerate(shares):
            begin = top + height + _TEXT + row * _BAR
            weight_color = shade(ON_LIGHT, float(weights[number]) / (float(weights.max()) or 1.0))
            draw.rectangle((left, begin, left + width - 1, begin + _BAR - 3), fill=weight_color)
    write_atomically(Path(path), png_bytes(canvas))
    return Path(path)


def _caption(episode: EpisodeAnswer, number: int) -> tuple[str, str]:
    """Return the caption of an image and its color; the correct class is green."""
    if number == len(episode.labels) - 1:
        return f"{QUERY} -> {episode.guess + 1}", _RIGHT if episode.right else _WRONG
    same = episode.labels[number] == episode.labels[-1]
    return f"class {episode.labels[number] + 1}", _RIGHT if same else _INK


def _shares(episode: EpisodeAnswer) -> list[np.ndarray]:
    """Return the attention weights of each layer over the images, averaged over heads."""
    return [checked_weights(attention).mean(axis=0)[0] for attention in episode.attention]
