"""PNG figures: cell colors, arbitrary tokens and atomic writes."""

import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from jaxtyping import Float
from PIL import Image

from qkv.errors import InputError
from qkv.pipelines.output import Answer, AttentionMap
from qkv.visualize import save_png


def answer(*maps: AttentionMap) -> Answer:
    return Answer("in", "out", -0.5, maps)


def square(size: int, *, dark: tuple[int, int], layer: str = "decoder") -> AttentionMap:
    """A map with one head and a single non-zero cell."""
    weights = np.zeros((1, size, size))
    weights[0][dark] = 1.0
    tokens = tuple("abcdefghij"[i % 10] for i in range(size))
    return AttentionMap(layer, tokens, tokens, weights)


def darkest(path: Path) -> tuple[float, float]:
    """Return the location of the darkest cell as fractions from the top and left."""
    pixels: Float[np.ndarray, "height width channels"] = np.asarray(Image.open(path).convert("RGB"), dtype=float)
    strongest = np.abs(pixels - np.array([0x15, 0x25, 0x69])).sum(axis=2) < 6
    y, x = np.nonzero(strongest)
    return float(np.median(y)) / pixels.shape[0], float(np.median(x)) / pixels.shape[1]


def test_the_darkest_cell_has_the_weight(tmp_path: Path) -> None:
    top, right = darkest(save_png(answer(square(10, dark=(1, 8))), tmp_path / "a.png"))
    assert top < 0.35
    assert right > 0.65
    bottom, left = darkest(save_png(answer(square(10, dark=(8, 1))), tmp_path / "b.png"))
    assert bottom > 0.65
    assert left < 0.35


def test_the_first_layer_is_the_default(tmp_path: Path) -> None:
    two = answer(square(6, dark=(0, 5), layer="decoder.1.cross"), square(6, dark=(5, 0), layer="encoder.0"))
    first = darkest(save_png(two, tmp_path / "first.png"))
    second = darkest(save_png(two, tmp_path / "second.png", layer="encoder.0"))
    assert first[0] < second[0]
    assert first[1] > second[1]


def test_the_figure_grows_with_the_tokens_up_to_its_maximum_size(tmp_path: Path) -> None:
    sizes = [Image.open(save_png(answer(square(n, dark=(0, 0))), tmp_path / f"{n}.png")).width for n in (5, 20, 300)]
    assert sizes[0] < sizes[1] < sizes[2] < 4000


def test_tokens_are_never_drawn_as_math_text(tmp_path: Path) -> None:
    tokens = ("$x^{", "$", "\\frac", "a$b$c", " ", "</s>", "x" * 80)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drawn = answer(AttentionMap("a$_$", tokens, tokens, np.eye(7)[None]))
        assert save_png(drawn, tmp_path / "a.png").stat().st_size > 0


def test_all_zero_weights_are_drawn(tmp_path: Path) -> None:
    assert save_png(answer(AttentionMap("d", ("a",), ("b",), np.zeros((1, 1, 1)))), tmp_path / "a.png").exists()


def test_an_unknown_layer_is_an_error_that_names_the_valid_ones(tmp_path: Path) -> None:
    two = answer(square(2, dark=(0, 0), layer="decoder.0.cross"), square(2, dark=(0, 0), layer="encoder.0"))
    with pytest.raises(InputError, match=r"decoder\.7.*decoder\.0\.cross, encoder\.0"):
        save_png(two, tmp_path / "a.png", layer="decoder.7")
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_head_is_an_error_that_names_the_valid_ones(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="head 3"):
        save_png(answer(square(2, dark=(0, 0))), tmp_path / "a.png", head=3)


def test_an_answer_without_attention_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="attention"):
        save_png(answer(), tmp_path / "a.png")


def test_non_finite_weights_keep_the_old_figure(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    before = save_png(answer(square(3, dark=(0, 0))), path).read_bytes()
    with pytest.raises(InputError, match="non-finite"):
        save_png(answer(AttentionMap("d", ("a",), ("b",), np.full((1, 1, 1), np.nan))), path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_without_matplotlib_the_error_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match=r"qkv\[view\]"):
        save_png(answer(square(2, dark=(0, 0))), tmp_path / "a.png")


def test_drawing_does_not_import_pyplot_or_change_rcparams(tmp_path: Path) -> None:
    code = f"""
import sys
import numpy as np
from qkv.pipelines.output import Answer, AttentionMap
from qkv.visualize import save_png
import matplotlib
before = matplotlib.rcParams.copy()
save_png(Answer("a", "b", 0.0, (AttentionMap("d", ("a",), ("b",), np.ones((1, 1, 1))),)), {str(tmp_path / "a.png")!r})
sys.exit("matplotlib.pyplot" in sys.modules or before != matplotlib.rcParams.copy())
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
