"""Scores by source length: measured of a run, and the slope of their curve."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from qkv.datasets.examples.pair import Pair
from qkv.errors import InputError
from qkv.hub import load
from qkv.metrics.text_metrics import bleu, phoneme_error_rate
from qkv.training.run import Run

Unit = Literal["letters", "words"]


@dataclass(frozen=True)
class ScoreByLength:
    """Phoneme accuracy in percent by letters, or BLEU by words, of the pairs of a split grouped by source length.

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
        return self.scores(task.evaluate(model, data, self.split).outputs, data.splits[self.split])

    def scores(self, texts: Sequence[str], pairs: Sequence[Pair]) -> dict[str, float]:
        """Return the score of each group, by its mean length; there is one text per pair, or per word to pronounce."""
        examples = [(pair.source, [pair.target]) for pair in pairs]
        if self.unit == "letters":  # a word can have several pronunciations
            variants: dict[str, list[str]] = {}
            for pair in pairs:
                variants.setdefault(pair.source, []).append(pair.target)
            examples = list(variants.items())
        if len(texts) != len(examples):
            raise InputError(f"{len(examples) - len(texts)} source(s) of {self.split} are too long for the model")
        lengths = [len(source) if self.unit == "letters" else len(source.split()) for source, _ in examples]
        scores = {}
        for above, most in pairwise((0, *self.edges, max(lengths))):
            rows = [row for row, length in enumerate(lengths) if above < length <= most]
            if rows:
                mean_length = statistics.fmean(lengths[row] for row in rows)
                scores[f"{mean_length:.2f}"] = self._score([(texts[row], examples[row][1]) for row in rows])
        return scores

    def _score(self, rows: Sequence[tuple[str, Sequence[str]]]) -> float:
        texts, references = zip(*rows, strict=True)
        if self.unit == "letters":
            return 100 * (1 - phoneme_error_rate(texts, references))
        return bleu(texts, [targets[0] for targets in references]).value


def slope(curve: Mapping[float, float]) -> float:
    """Return the slope of the least-squares line through a curve, per ten units of x."""
    return 10 * statistics.linear_regression(list(curve), list(curve.values())).slope
