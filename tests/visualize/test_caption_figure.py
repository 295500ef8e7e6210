"""The figure of captions: a row per image, a tile per word colored by attention."""

from pathlib import Path

import numpy as np
from PIL import Image

from qkv.pipelines.captioner import Caption
from qkv.visualize.caption_figure import save_captions_png
from tests.visualize.captions import PIXELS, captioned


def blue(path: Path) -> np.ndarray:
    """Where a figure has the color of attention."""
    with Image.open(path) as image:
        red, _, blue = np.moveaxis(np.asarray(image.convert("RGB")).astype(int), -1, 0)
    return blue - red > 90


def test_each_word_has_a_tile_with_its_attention(tmp_path: Path) -> None:
    one = blue(save_captions_png([captioned((" a", " circle"), (0, 5))], tmp_path / "one.png"))
    columns = np.flatnonzero(one.any(axis=0))
    left, right = columns[columns < 178], columns[columns >= 178]  # the tiles begin at 108 and 178
    assert 108 <= left.min() <= left.max() <= 108 + 64 // 3  # the first of three cells
    assert 178 + 2 * 64 // 3 <= right.min() <= right.max() < 178 + 64  # the last
    two = blue(save_captions_png([captioned((" a",), (0,))] * 2, tmp_path / "two.png"))
    assert len(two) == 2 * len(one)


def test_long_captions_and_models_without_attention(tmp_path: Path) -> None:
    long = blue(save_captions_png([captioned((" a",) * 40, (0,) * 40)], tmp_path / "long.png"))
    assert long.shape[1] < 1200
    plain = Caption("a.png", "", -0.5, (), pixels=PIXELS, grid=(2, 3))
    assert not blue(save_captions_png([plain], tmp_path / "plain.png")).any()
