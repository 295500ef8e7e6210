"""How good captions are, of which a picture may have several that are right, and where attention should be."""

from collections.abc import Sequence
from typing import Any

from qkv.metrics.text import Score

Box = tuple[int, int, int, int]  # top, left, bottom, right; bottom and right are just outside


def exact_captions(texts: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """The share of texts that equal one of their references (NaN of none)."""
    right = [text in said for text, said in zip(texts, references, strict=True)]
    return sum(right) / len(right) if right else float("nan")


def caption_bleu(texts: Sequence[str], references: Sequence[Sequence[str]]) -> Score:
    """BLEU by sacrebleu, against all references of each text, of which some may have fewer than others."""
    from sacrebleu import BLEU  # takes a quarter of a second to import

    metric = BLEU()
    most = max(map(len, references), default=1)
    columns: Any = [  # it takes None for a reference that is not there
        [said[number] if number < len(said) else None for said in references] for number in range(most)
    ]
    return Score(metric.corpus_score(texts, columns).score, str(metric.get_signature()))


def inside(place: int, grid: tuple[int, int], size: tuple[int, int], box: Box) -> bool:
    """Whether the middle of a place of the grid over a picture, counted row by row, lies in a box of the picture."""
    (rows, columns), (height, width) = grid, size
    row, column = divmod(place, columns)
    down, right = (row + 0.5) * height / rows, (column + 0.5) * width / columns
    top, left, bottom, end = box
    return top <= down < bottom and left <= right < end
