"""Captions with the attention of each word over the image, as a PNG figure: a row per image."""

import os
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from qkv.pipelines.captioner import Caption
from qkv.runtime.files import write_atomically
from qkv.visualize.glyphs import clipped, visible
from qkv.visualize.image_overlay import colored, png_bytes, resized
from qkv.visualize.plotting import QUIET, TEXT
from qkv.visualize.selection import pick_head

_PICTURE, _TILE, _GAP, _LINE = 96, 64, 6, 14  # longer sides of an image and of a tile, spaces, height of a text line
_MOST_WORDS = 14  # tiles in a row; a longer caption is cut
_SIZE = 11  # of the font
_COLORS = 256  # of the palette: thumbnails take half as many bytes as with full colors


def save_captions_png(answers: Sequence[Caption], path: str | os.PathLike[str]) -> Path:
    """Write a row per caption: the image, the caption, and a tile per word colored by its attention."""
    rows = [_row(answer) for answer in answers]
    width, height = max(row.width for row in rows), sum(row.height for row in rows)
    canvas, top = Image.new("RGB", (width, height), "white"), 0
    for row in rows:
        canvas.paste(row, (0, top))
        top += row.height
    # A median cut, the default, would lose the colors of small objects.
    palette = canvas.quantize(_COLORS, method=Image.Quantize.MAXCOVERAGE)
    dithered = canvas.quantize(palette=palette, dither=Image.Dither.FLOYDSTEINBERG)
    write_atomically(Path(path), png_bytes(dithered))
    return Path(path)


def _row(answer: Caption) -> Image.Image:
    picture, font = resized(answer.pixels, _PICTURE), ImageFont.load_default(_SIZE)
    tiles = _tiles(answer)
    height = max(picture.height, *(_LINE * 2 + tile.height for _, tile in tiles), _LINE) + 2 * _GAP
    left = _PICTURE + 2 * _GAP
    text = clipped(answer.text) or "(empty)"
    width = left + max(_MOST_WORDS * (_TILE + _GAP), round(font.getlength(text)) + _GAP)
    row = Image.new("RGB", (width, height), "white")
    draw = ImageDraw.Draw(row)
    row.paste(picture, ((_PICTURE - picture.width) // 2 + _GAP, _GAP))
    draw.text((left, _GAP - 2), text, fill=TEXT, font=font)
    for column, (word, tile) in enumerate(tiles):
        corner = left + column * (_TILE + _GAP)
        draw.text((corner, _GAP + _LINE - 2), word, fill=QUIET, font=font)
        row.paste(tile, (corner, _GAP + 2 * _LINE))
    return row


def _tiles(answer: Caption) -> list[tuple[str, Image.Image]]:
    """Return each word with the image in gray, colored by its attention; none for a model without attention."""
    if not answer.attention:
        return []
    gray, weights = resized(answer.pixels, _TILE).convert("L"), pick_head(answer.attention[0], None)
    words = zip(answer.attention[0].rows, weights, strict=True)
    tiles = [(visible(token.strip()), colored(gray, row.reshape(answer.grid))) for token, row in words]
    return tiles[:_MOST_WORDS]
