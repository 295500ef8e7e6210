"""Metrics: how good answers are."""

from qkv.metrics.alignment import alignment_accuracy
from qkv.metrics.metric import Metric
from qkv.metrics.text import character_error_rate, corpus_scores, exact_match

__all__ = ["Metric", "alignment_accuracy", "character_error_rate", "corpus_scores", "exact_match"]
