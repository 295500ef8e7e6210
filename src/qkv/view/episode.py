"""An episode of few-shot learning: the pictures, and how much the one that is asked for read of each."""

import base64
import html
import io
import math
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageDraw

from qkv.errors import InputError
from qkv.runtime.files import write_atomically
from qkv.tasks.episode_probe import QUERY, EpisodeAnswer
from qkv.view.ink import ON_LIGHT, shade
from qkv.view.selection import sound_weights
from qkv.view.template import write_page

_SIDE = 112  # pixels of a picture's longer side
_GAP = 12
_BAR = 14  # the height of a layer's cell below a picture
_TEXT = 18
_RIGHT, _WRONG, _INK = "#1a7f4b", "#b3261e", "#23262f"


def save_episode_page(
    episodes: Sequence[EpisodeAnswer], path: str | os.PathLike[str], *, title: str = "What was read of what was shown"
) -> Path:
    """Write episodes as one HTML file that needs no network, no script, and nothing beside it."""
    if not episodes:
        raise InputError("there is no episode to show")
    articles = "\n".join(map(_article, episodes))
    return write_page(path, "episode.html", title, {"episodes": articles}, pictures=True)


def save_episode_png(episode: EpisodeAnswer, path: str | os.PathLike[str]) -> Path:
    """Draw an episode: the picture that is asked for, then those shown, below each a cell for what each layer read."""
    shares = _shares(episode)
    across = min(len(episode.labels), 11)
    height, width = _scaled_size(episode)
    tile = (width + _GAP, height + _TEXT + len(shares) * _BAR + _GAP)
    down = math.ceil(len(episode.labels) / across)
    canvas = Image.new("RGB", (across * tile[0] + _GAP, down * tile[1] + _GAP), "white")
    draw = ImageDraw.Draw(canvas)
    for place, number in enumerate((len(episode.labels) - 1, *range(len(episode.labels) - 1))):
        left, top = _GAP + place % across * tile[0], _GAP + place // across * tile[1]
        canvas.paste(_picture(episode.pixels[number]).resize((width, height), Image.Resampling.NEAREST), (left, top))
        words, colour = _caption(episode, number)
        draw.text((left, top + height + 2), words, fill=colour)
        for row, weights in enumerate(shares):
            begin = top + height + _TEXT + row * _BAR
            colour_of_weight = shade(ON_LIGHT, float(weights[number]) / (float(weights.max()) or 1.0))
            draw.rectangle((left, begin, left + width - 1, begin + _BAR - 3), fill=colour_of_weight)
    data = io.BytesIO()
    canvas.save(data, format="PNG")
    write_atomically(Path(path), data.getvalue())
    return Path(path)


def _article(episode: EpisodeAnswer) -> str:
    asked = len(episode.labels) - 1
    outcome = "right" if episode.right else f"wrong: it is class {episode.labels[-1] + 1}"
    figures = "\n".join(_figure(episode, number) for number in (asked, *range(asked)))
    layers = ", ".join(html.escape(one.layer) for one in episode.maps)
    return (
        f'<article>\n<h2>{html.escape(episode.source)} <span class="{"right" if episode.right else "wrong"}">taken for '
        f"class {episode.guess + 1} ({math.exp(episode.score):.1%}), {outcome}</span></h2>\n"
        f'<p class="meta">Layers from top to bottom: {layers}.</p>\n<div class="row">\n{figures}\n</div>\n</article>'
    )


def _figure(episode: EpisodeAnswer, number: int) -> str:
    """A picture with its label, and below it a bar for what each layer read of it."""
    data = io.BytesIO()
    _picture(episode.pixels[number]).save(data, format="PNG")
    words, _ = _caption(episode, number)
    bars = "".join(
        f'<svg viewBox="0 0 100 8" preserveAspectRatio="none" role="img"><title>{html.escape(one.layer)}: '
        f'{weights[number]:.4f}</title><rect class="track" width="100" height="8"/>'
        f'<rect class="bar" width="{100 * weights[number]:.2f}" height="8"/></svg>'
        for one, weights in zip(episode.maps, _shares(episode), strict=True)
    )
    same = " same" if episode.labels[number] == episode.labels[-1] else ""
    asked = " asked" if number == len(episode.labels) - 1 else ""
    image = base64.b64encode(data.getvalue()).decode()
    return (
        f'<figure class="{(same + asked).strip()}"><img alt="" src="data:image/png;base64,{image}">'
        f"<figcaption>{html.escape(words)}</figcaption>{bars}</figure>"
    )


def _caption(episode: EpisodeAnswer, number: int) -> tuple[str, str]:
    """What stands below a picture, and in which colour: the class that is right is green."""
    if number == len(episode.labels) - 1:
        return f"{QUERY} -> {episode.guess + 1}", _RIGHT if episode.right else _WRONG
    same = episode.labels[number] == episode.labels[-1]
    return f"class {episode.labels[number] + 1}", _RIGHT if same else _INK


def _shares(episode: EpisodeAnswer) -> list[np.ndarray]:
    """What each layer read of each picture, its heads averaged."""
    return [sound_weights(one).mean(axis=0)[0] for one in episode.maps]


def _picture(pixels: UInt8[np.ndarray, "height width colours"]) -> Image.Image:
    return Image.fromarray(np.ascontiguousarray(pixels))


def _scaled_size(episode: EpisodeAnswer) -> tuple[int, int]:
    height, width = episode.pixels.shape[1:3]
    return round(height * _SIDE / max(height, width)), round(width * _SIDE / max(height, width))
