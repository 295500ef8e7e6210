"""The chart of BLEU by source length."""

import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from qkv.errors import InputError
from qkv.visualize.length_chart import ByLength, Line

pytest.importorskip("matplotlib")
from qkv.visualize.length_chart import save_by_length


def found(*labels: str, last: float = 30.0) -> ByLength:
    lines = tuple(
        Line(label, (40.0, 35.0, last - number), (39.0, 34.0, last - 1 - number), (41.0, 36.0, last + 1 - number))
        for number, label in enumerate(labels)
    )
    return ByLength("multi30k en-de, test, beam 5", ("1 to 7", "8 to 9", "10 or more"), (1600, 5, 400), lines)


def texts(path: Path) -> list[str]:
    return [text.strip() for element in ElementTree.parse(path).iter() for text in element.itertext() if text.strip()]


def test_svg_labels_are_text(tmp_path: Path) -> None:
    said = texts(save_by_length(found("with attention", "plain_x $y$"), tmp_path / "figure.svg"))
    for words in ("with attention", "plain_x $y$", "1 to 7", "1,600 pairs", "10 or more", "400 pairs",
                  "words in the source", "BLEU, lowercased, tokenized", "multi30k en-de, test, beam 5"):  # fmt: skip
        assert words in said


def test_each_line_has_its_own_color(tmp_path: Path) -> None:
    def colors(figure: ByLength) -> set[tuple[int, ...]]:
        image = Image.open(save_by_length(figure, tmp_path / "figure.png")).convert("RGB")
        often = (shade for count, shade in image.getcolors(image.width * image.height) if count > 1000)
        return {shade for shade in often if max(shade) - min(shade) > 100}

    assert len(colors(found("one"))) == 1
    assert len(colors(found("one", "two", "three"))) == 3


def test_output_is_reproducible(tmp_path: Path) -> None:
    for name in ("figure.svg", "figure.png"):
        assert (
            save_by_length(found("one"), tmp_path / name).read_bytes()
            == save_by_length(found("one"), tmp_path / f"again-{name}").read_bytes()
        )


def test_labels_of_close_lines_do_not_overlap(tmp_path: Path) -> None:
    labels = [f"line {number}" for number in range(5)]
    together = ByLength("t", ("1", "2"), (3, 4), tuple(Line(label, (9, 9), (9, 9), (9, 9)) for label in labels))
    path = save_by_length(together, tmp_path / "figure.svg")
    heights = sorted(
        float(element.get("y") or element.get("transform").split("translate(")[1].split()[1].rstrip(")"))
        for element in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text")
        if (element.text or "").strip() in labels
    )
    assert len(heights) == 5
    assert min(np.diff(heights)) > 9  # points, of a text of nine


def test_invalid_formats_and_too_many_lines_are_errors(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"\.png or \.svg"):
        save_by_length(found("one"), tmp_path / "figure.pdf")
    with pytest.raises(InputError, match="8 lines"):
        save_by_length(found(*"abcdefgh"), tmp_path / "figure.png")
    assert list(tmp_path.iterdir()) == []


def test_all_zero_scores_are_drawn(tmp_path: Path) -> None:
    flat = ByLength("t", ("1",), (3,), (Line("none", (0.0,), (0.0,), (0.0,)),))
    assert save_by_length(flat, tmp_path / "figure.png").stat().st_size > 1000


def test_without_matplotlib_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match=r"qkv\[view\]"):
        save_by_length(found("one"), tmp_path / "figure.png")
