"""Constituency trees, drawn in the terminal and as SVG."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby, pairwise
from xml.sax.saxutils import escape

from rich.cells import cell_len
from rich.text import Text
from rich.tree import Tree as Branch

from qkv.datasets.examples.trees import NO_TAG, ROOT, Tree
from qkv.runtime.text import shorten_middle
from qkv.visualize.glyphs import visible

CELL = 8.5  # pixels of a character
GAP = 16.0  # between words
LEVEL = 46.0  # between levels
MARGIN = 24.0
INDENT = 4  # cells of a level in the terminal
STYLE = (
    "text{font:14px Helvetica,Arial,sans-serif;text-anchor:middle;fill:#222}.label{font-weight:bold;fill:#1b5e9e}"
    ".tag{fill:#777;font-size:12px}path{stroke:#aaa;fill:none}"
)


@dataclass
class Node:
    """A constituent, and its children: constituents and indices of words."""

    label: str
    children: "list[Node | int]" = field(default_factory=list)

    @property
    def is_flat(self) -> bool:
        """Whether all children are words."""
        return all(isinstance(child, int) for child in self.children)

    @property
    def indices(self) -> Iterator[int]:
        """The indices of its words."""
        for child in self.children:
            yield from (child,) if isinstance(child, int) else child.indices


def nested(tree: Tree) -> Node:
    """Return the root of a tree."""
    stack, words = [Node(ROOT)], 0
    for symbol in tree.symbols():
        if symbol.startswith("("):
            stack[-1].children.append(node := Node(symbol[1:]))
            stack.append(node)
        elif symbol.startswith(")"):
            stack.pop()
        else:
            stack[-1].children.append(words)
            words += 1
    return stack[0]


def draw_tree(tree: Tree, width: int = 80, height: int = 24) -> Branch:
    """Return a tree for the terminal with at most `height` lines: constituents that are too deep are one line each."""
    root, depth = nested(tree), len(tree.constituents)
    branch = _branch(tree, root, depth, width)
    while _lines(branch) > height and depth > 1:
        depth = min(depth, _depth(branch)) - 1
        branch = _branch(tree, root, depth, width)
    return branch


def _branch(tree: Tree, node: Node, depth: int, width: int) -> Branch:
    label = Text(visible(node.label), style="bold cyan")
    if depth == 0 or node.is_flat:
        words = " ".join(_word(tree, index, tags=node.is_flat) for index in node.indices)
        label.append(f"  {shorten_middle(words, max(10, width - len(node.label) - 2))}", style="not bold default")
        return Branch(label, guide_style="dim")
    branch = Branch(label, guide_style="dim")
    for are_words, children in groupby(node.children, lambda child: isinstance(child, int)):
        if are_words:
            words = " ".join(_word(tree, child, tags=True) for child in children if isinstance(child, int))
            branch.add(Text(shorten_middle(words, max(10, width - INDENT))))
        else:
            branch.children += [
                _branch(tree, child, depth - 1, width - INDENT) for child in children if isinstance(child, Node)
            ]
    return branch


def _word(tree: Tree, index: int, *, tags: bool) -> str:
    word, tag = visible(tree.words[index]), tree.tags[index]
    return f"{word}/{visible(tag)}" if tags and tag != NO_TAG else word


def _lines(branch: Branch) -> int:
    return 1 + sum(map(_lines, branch.children))


def _depth(branch: Branch) -> int:
    return 1 + max(map(_depth, branch.children), default=-1)


def svg(trees: Sequence[Tree]) -> str:
    """Return a drawing of trees, one below the other: words and tags in rows at the bottom, constituents above."""
    drawings = [_draw(tree) for tree in trees]
    tops = [0.0, *accumulate(height for _, _, height in drawings)]
    width = max((width for _, width, _ in drawings), default=0.0)
    groups = (
        f'<g transform="translate(0 {top:g})">{"".join(shapes)}</g>\n'
        for top, (shapes, _, _) in zip(tops, drawings, strict=False)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {tops[-1]:g}" width="{width:g}" '
        f'height="{tops[-1]:g}">\n<style>{STYLE}</style>\n<rect width="100%" height="100%" fill="#fff"/>\n'
        f"{''.join(groups)}</svg>\n"
    )


def _draw(tree: Tree) -> tuple[list[str], float, float]:
    """Return the shapes of a tree, and their width and height."""
    root = nested(tree)
    widths = [
        max(cell_len(visible(word)), cell_len(visible(tag))) for word, tag in zip(tree.words, tree.tags, strict=True)
    ]
    for label, start, end in tree.constituents:
        if end == start + 1:  # a label above a single word may be wider than the word
            widths[start] = max(widths[start], cell_len(visible(label)) + 1)
    ends = [MARGIN, *accumulate((CELL * width + GAP for width in widths), initial=MARGIN)][1:]
    centers = [(begin + end) / 2 for begin, end in pairwise(ends)]
    shapes: list[str] = []
    bottom = MARGIN + LEVEL * _height(root)

    def draw_node(child: Node | int) -> tuple[float, float]:
        """Draw a child; return the position of its label."""
        if isinstance(child, int):
            x, has_tag = centers[child], tree.tags[child] != NO_TAG
            shapes.append(_text(x, bottom, tree.words[child], "word"))
            if has_tag:
                shapes.append(_text(x, bottom - 18, tree.tags[child], "tag"))
            return x, bottom - (18 if has_tag else 0)
        anchors = [draw_node(grandchild) for grandchild in child.children]
        x, y = (anchors[0][0] + anchors[-1][0]) / 2, bottom - LEVEL * _height(child)
        # Right-angled edges cannot cross: a child's label is above its own words.
        shapes.extend(
            f'<path d="M{x:g} {y + 5:g}V{y + 13:g}H{below_x:g}V{below_y - 14:g}"/>' for below_x, below_y in anchors
        )
        shapes.append(_text(x, y, child.label, "label"))
        return x, y

    draw_node(root)
    return shapes, ends[-1] + MARGIN, bottom + MARGIN


def _height(node: Node | int) -> int:
    return 0 if isinstance(node, int) else 1 + max(map(_height, node.children))


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{kind}">{escape(visible(text))}</text>'
