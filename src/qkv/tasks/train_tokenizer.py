"""Train the tokenizer of a recipe on the training texts of its dataset."""

from collections.abc import Iterable
from typing import Any

from qkv.config import Term
from qkv.datasets.dataset import Dataset, DatasetConfig, PairConfig, PairDataset, TextDatasetConfig
from qkv.tokenizers import PairTokenizer, Tokenizer


def train_tokenizer(data: Dataset[Any], config: DatasetConfig) -> Tokenizer | None:
    """Train the tokenizer on the training texts (one per side with `target_tokenizer`); None for data without text."""
    if not isinstance(config, TextDatasetConfig):
        return None
    if isinstance(config, PairConfig) and config.target_tokenizer is not None and isinstance(data, PairDataset):
        return PairTokenizer(
            _train(config.tokenizer, data.source_texts(), config.lowercase),
            _train(config.target_tokenizer, data.target_texts(), config.lowercase),
        )
    return _train(config.tokenizer, data.training_texts(), config.lowercase)


def _train(term: Term, texts: Iterable[str], lowercase: bool) -> Tokenizer:
    tokenizer: Tokenizer = term.cls.train(texts, lowercase=lowercase, **term.options)
    return tokenizer
