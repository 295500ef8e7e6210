"""Evaluation metrics."""

from qkv.metrics.alignment_metrics import alignment_accuracy
from qkv.metrics.metric import Metric
from qkv.metrics.moses import lowercased_words
from qkv.metrics.pronunciation_metrics import phoneme_error_rate, word_error_rate
from qkv.metrics.rouge import ROUGE_SIGNATURE, rouge_scores
from qkv.metrics.text_metrics import Score, bleu, character_error_rate, chrf, corpus_scores, exact_match, tokenised_bleu

__all__ = [
    "ROUGE_SIGNATURE",
    "Metric",
    "Score",
    "alignment_accuracy",
    "bleu",
    "character_error_rate",
    "chrf",
    "corpus_scores",
    "exact_match",
    "lowercased_words",
    "phoneme_error_rate",
    "rouge_scores",
    "tokenised_bleu",
    "word_error_rate",
]
