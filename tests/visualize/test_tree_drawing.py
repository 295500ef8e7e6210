"""Drawings of trees: at most a screen in the terminal, valid SVG with all words in order, hostile words."""

import io
import xml.etree.ElementTree as ET

import pytest
from rich.console import Console

from qkv.datasets.examples.trees import Constituent, Tree
from qkv.visualize.tree_drawing import draw_tree, svg

CAT = Tree.parse("(TOP (S (NP (DT The) (NN cat)) (VP (VBZ sleeps) (PP (IN on) (NP (DT the) (NN mat)))) (. .)))", "x")
DEEP = Tree.parse("(S " * 60 + "(NN a)" + ")" * 60, "x")
NAMESPACE = "{http://www.w3.org/2000/svg}"


def printed(tree, **size):
    console = Console(file=io.StringIO(), width=200, color_system=None, legacy_windows=False)
    console.print(draw_tree(tree, **size))
    return console.file.getvalue()


def test_constituents_of_words_are_one_line():
    assert printed(CAT).splitlines() == [
        "TOP",
        "└── S",
        "    ├── NP  The/DT cat/NN",
        "    ├── VP",
        "    │   ├── sleeps/VBZ",
        "    │   └── PP",
        "    │       ├── on/IN",
        "    │       └── NP  the/DT mat/NN",
        "    └── ./.",
    ]


@pytest.mark.parametrize("tree", [CAT, DEEP])
@pytest.mark.parametrize("height", [4, 6, 8])
def test_a_drawing_fits_a_screen(tree, height):
    lines = printed(tree, width=40, height=height).splitlines()
    assert len(lines) <= height + (tree is CAT and height < 5)
    assert max(map(len, lines)) <= 48
    assert tree.words[-1] in lines[-1]


def test_svg_has_the_words_from_left_to_right_and_lines_from_each_constituent():
    root = ET.fromstring(svg([CAT, DEEP]))
    texts = [(element.get("class"), float(element.get("x")), element.text) for element in root.iter(f"{NAMESPACE}text")]
    words = [(x, text) for kind, x, text in texts if kind == "word"][: len(CAT.words)]
    assert [text for _, text in sorted(words)] == list(CAT.words)
    labels = [text for kind, _, text in texts if kind == "label"]
    assert sorted(labels) == sorted(["TOP", *(label for label, _, _ in CAT.constituents), "TOP", *["S"] * 60])
    edges = len(CAT.words) + len(CAT.constituents) + len(DEEP.words) + len(DEEP.constituents)
    assert len([*root.iter(f"{NAMESPACE}path")]) == edges
    width, height = float(root.get("width")), float(root.get("height"))
    assert all(0 < x < width for _, x, _ in texts)
    assert all(float(element.get("y")) > 0 for element in root.iter(f"{NAMESPACE}text"))
    assert height > 0


def test_words_and_labels_cannot_add_markup():
    tree = Tree(("<script>alert(1)</script>", "a\x00&b\u202e"), ("</text>", '"'), (Constituent("<g>", 0, 2),))
    root = ET.fromstring(svg([tree]))
    assert {element.tag.removeprefix(NAMESPACE) for element in root.iter()} <= {
        "svg", "style", "rect", "g", "text", "path",
    }  # fmt: skip
    assert "<script>alert(1)</script>" in [element.text for element in root.iter(f"{NAMESPACE}text")]
    assert "\x00" not in printed(tree)
    assert "\u202e" not in printed(tree)
