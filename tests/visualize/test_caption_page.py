"""The caption page: self-contained, safe, and coloured by attention."""

import base64
import io
import re
from pathlib import Path

import numpy as np
from PIL import Image

from qkv.pipelines.captioner import Caption
from qkv.pipelines.output import AttentionMap
from qkv.visualize.pages.caption_page import save_captions

PIXELS = np.full((8, 12, 3), (250, 250, 250), dtype=np.uint8)


def captioned(words: tuple[str, ...], cells: tuple[int, ...], source: str = "a.png") -> Caption:
    """A 2 by 3 grid in which each word attends to one cell."""
    weights = np.zeros((1, len(words), 6))
    weights[0, np.arange(len(words)), cells] = 1.0
    columns = tuple(f"{row},{column}" for row in (1, 2) for column in (1, 2, 3))
    maps = (AttentionMap("decoder", words, columns, weights),)
    return Caption(source, "".join(words).strip(), -0.5, maps, pixels=PIXELS, grid=(2, 3))


def images(page: str) -> list[np.ndarray]:
    found = re.findall(r'src="data:image/png;base64,([^"]+)"', page)
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(one)))).astype(int) for one in found]


def test_each_word_has_a_tile_coloured_by_attention(tmp_path: Path):
    page = save_captions([captioned((" a", " circle"), (1, 5))], tmp_path / "page.html").read_text()
    original, first, second = images(page)
    assert (original == 250).all()
    for tile, cell in ((first, 1), (second, 5)):
        height, width = tile.shape[:2]
        blue = [
            int(tile[height * (2 * (n // 3) + 1) // 4, width * (2 * (n % 3) + 1) // 6] @ [-1, 0, 1]) for n in range(6)
        ]
        assert int(np.argmax(blue)) == cell
        assert sorted(blue)[:5] == [0] * 5
    assert "<figcaption>circle</figcaption>" in page


def test_the_page_loads_and_runs_nothing(tmp_path: Path):
    hostile = captioned((" <script>alert(1)</script>",), (0,), source='"><img src=x onerror=alert(1)>.png')
    page = save_captions([hostile], tmp_path / "page.html").read_text()
    assert "<script" not in page
    assert "onerror=alert(1)>" not in page.replace("&gt;", "")
    assert "default-src 'none'; img-src data:" in page
    assert not re.search(r'(?:src|href)="(?!data:image/png)', page)


def test_a_caption_without_attention_is_shown_without_tiles(tmp_path: Path):
    plain = Caption("a.png", "", 0.0, pixels=PIXELS, grid=(2, 3))
    page = save_captions([plain], tmp_path / "page.html").read_text()
    assert len(images(page)) == 1
    assert "(empty)" in page


def test_a_very_long_token_is_truncated(tmp_path: Path):
    page = save_captions([captioned((100_000 * "x",), (0,))], tmp_path / "page.html").read_text()
    assert f"<figcaption>{80 * 'x'}…</figcaption>" in page
    assert page.count("x") < 5000
