"""Scores by source length: measured of a run, and the slope of their curve."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from qkv.datasets.examples.pair import Pair
from qkv.errors import InputError
from qkv.hub import load
from qkv.metrics.text_metrics import bleu, exact_match
from qkv.training.run import Run

Unit = Literal["characters", "words"]


@dataclass(frozen=True)
class ScoreByLength:
    """Exact match in percent by characters, or BLEU by words, of the pairs of a split grouped by source length.

    The keys are the mean source lengths of the groups: those up to the first of `edges`, up to the second, ..., and all
    longer ones.
    """

    split: str
    unit: Unit
    edges: tuple[int, ...]

    def __call__(self, run: Run, device: str) -> Mapping[str, float]:
        recipe, data = run.recipe, run.data()
        model = load(run.folder, device=device)
        task = recipe.task_class.for_evaluation(data, model, recipe.task, recipe.train, recipe.seed)
        texts = task.evaluate(model, data, self.split).outputs
        return self.scores(texts, data.splits[self.split])

    def scores(self, texts: Sequence[str], pairs: Sequence[Pair]) -> dict[str, float]:
        """Return the score of each group, by its mean length."""
        if len(texts) != len(pairs):
            raise InputError(f"{len(pairs) - len(texts)} pair(s) of {self.split} are too long for the model")
        lengths = [len(pair.source) if self.unit == "characters" else len(pair.source.split()) for pair in pairs]
        bounds = (0, *self.edges, max(lengths))
        scores = {}
        for above, most in pairwise(bounds):
            rows = [row for row, length in enumerate(lengths) if above < length <= most]
            if rows:
                outputs, targets = [texts[row] for row in rows], [pairs[row].target for row in rows]
                exact = self.unit == "characters"
                score = 100 * exact_match(outputs, targets) if exact else bleu(outputs, targets).value
                scores[f"{statistics.fmean(lengths[row] for row in rows):.2f}"] = score
        return scores


def slope(curve: Mapping[float, float]) -> float:
    """Return the slope of the least-squares line through a curve, per ten units of x."""
    return 10 * statistics.linear_regression(list(curve), list(curve.values())).slope
