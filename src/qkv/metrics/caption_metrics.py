"""Caption metrics with several references per image, and attention inside a bounding box."""

from collections.abc import Sequence
from typing import Any

from qkv.metrics.text_metrics import Score

Box = tuple[int, int, int, int]  # top, left, bottom, right; bottom and right are exclusive


def exact_captions(texts: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Return the fraction of texts that equal one of their references (NaN without any)."""
    matches = [text in captions for text, captions in zip(texts, references, strict=True)]
    return sum(matches) / len(matches) if matches else float("nan")


def caption_bleu(texts: Sequence[str], references: Sequence[Sequence[str]]) -> Score:
    """Return sacreBLEU against all references of each text; their number may vary."""
    from sacrebleu import BLEU  # takes a quarter of a second to import

    metric = BLEU()
    most = max(map(len, references), default=1)
    columns: Any = [  # None for a missing reference
        [captions[index] if index < len(captions) else None for captions in references] for index in range(most)
    ]
    return Score(metric.corpus_score(texts, columns).score, str(metric.get_signature()))


def inside(position: int, grid: tuple[int, int], size: tuple[int, int], box: Box) -> bool:
    """Return whether the center of a grid cell (row-major index) lies in a box of the image."""
    (rows, columns), (height, width) = grid, size
    row, column = divmod(position, columns)
    y, x = (row + 0.5) * height / rows, (column + 0.5) * width / columns
    top, left, bottom, right = box
    return top <= y < bottom and left <= x < right
