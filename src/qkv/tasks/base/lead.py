"""The lead-n baseline of summarization: the first n sentences of a text, or utterances of a chat, are its summary."""

from collections.abc import Sequence

from qkv.datasets.dataset import PairDataset
from qkv.datasets.examples.pair import Pair
from qkv.metrics.rouge import ROUGE_SIGNATURE, rouge_scores
from qkv.tasks.base.evaluation import Evaluation
from qkv.tokenizers.sentences import split_sentences

LEAD = 3  # sentences


def lead(text: str, separator: str = "", count: int = LEAD) -> str:
    """Return the first `count` utterances of a text with this separator, or sentences if it is empty."""
    parts = text.split(separator) if separator else split_sentences(text)
    return " ".join(parts[:count])


def lead_scores(pairs: Sequence[Pair], separator: str = "", count: int = LEAD) -> dict[str, float]:
    """Return ROUGE of the lead-n summaries of pairs of a text and its summary."""
    texts = [lead(pair.source, separator, count) for pair in pairs]
    return rouge_scores(texts, [pair.target for pair in pairs])


def evaluate_lead(data: PairDataset, split: str, count: int = LEAD) -> Evaluation:
    """Score the lead-n summaries of a split."""
    pairs = data.splits[split]
    scores = lead_scores(pairs, data.separator, count)
    return Evaluation(len(pairs), data.unit, scores, dict.fromkeys(scores, ROUGE_SIGNATURE))
