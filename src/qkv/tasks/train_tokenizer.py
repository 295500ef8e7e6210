"""Train the tokenizer of a recipe on the training texts of its dataset."""

from qkv.config import Term
from qkv.datasets.dataset import Dataset, DatasetConfig, PairConfig, PairDataset, TextDatasetConfig
from qkv.tokenizers.tokenizer import PretrainedTokenizer
from qkv.tokenizers.vocabulary import AnyVocabulary, TwoVocabularies, Vocabulary
from qkv.tokenizers.wordpiece import learn_wordpieces


def learn_vocabulary(data: Dataset, config: DatasetConfig) -> AnyVocabulary | PretrainedTokenizer | None:  # type: ignore[type-arg]
    """Train the tokenizer on the training texts (one per side with `target_tokenizer`); None for data without text."""
    if not isinstance(config, TextDatasetConfig):
        return None
    if isinstance(config, PairConfig) and config.target_tokenizer is not None and isinstance(data, PairDataset):
        return TwoVocabularies(
            Vocabulary.train(data.source_texts(), kind_of(config.tokenizer), lowercase=config.lowercase),
            Vocabulary.train(data.target_texts(), kind_of(config.target_tokenizer), lowercase=config.lowercase),
        )
    if config.tokenizer.name == "wordpiece":
        size = config.tokenizer.options["vocab_size"]
        return learn_wordpieces(data.training_texts(), size, lowercase=config.lowercase)
    return Vocabulary.train(data.training_texts(), kind_of(config.tokenizer), lowercase=config.lowercase)


def kind_of(term: Term) -> str:
    size = term.options.get("vocab_size")
    return term.name if size is None else f"{term.name}:{size}"
