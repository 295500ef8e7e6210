"""Evaluation metrics: functions of predictions and references."""

from dataclasses import dataclass

from qkv.metrics.alignment_metrics import alignment_accuracy
from qkv.metrics.rouge import ROUGE_SIGNATURE, rouge_scores
from qkv.metrics.text_metrics import (
    MetricValue,
    bleu,
    character_error_rate,
    chrf,
    corpus_scores,
    exact_match,
    moses_tokens,
    phoneme_error_rate,
    tokenised_bleu,
    word_error_rate,
)

__all__ = [
    "ROUGE_SIGNATURE",
    "Metric",
    "MetricValue",
    "alignment_accuracy",
    "bleu",
    "character_error_rate",
    "chrf",
    "corpus_scores",
    "exact_match",
    "moses_tokens",
    "phoneme_error_rate",
    "rouge_scores",
    "tokenised_bleu",
    "word_error_rate",
]


@dataclass(frozen=True)
class Metric:
    """Name, direction and format of a metric."""

    name: str
    higher_is_better: bool = True
    percent: bool = False

    def at_least_as_good(self, value: float, other: float) -> bool:
        """Return whether `value` is as good as `other` or better."""
        return value >= other if self.higher_is_better else value <= other

    def shown(self, value: float) -> str:
        return f"{value:.2%}" if self.percent else f"{value:.3f}"
