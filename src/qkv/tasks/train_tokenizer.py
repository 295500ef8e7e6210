"""Train the tokenizer of a recipe on the training texts of its dataset."""

from collections.abc import Iterator
from itertools import chain

from qkv.datasets.config import DataConfig
from qkv.datasets.dataset import LoadedData
from qkv.datasets.registry import DATASETS
from qkv.tokenizers.tokenizer import PretrainedTokenizer
from qkv.tokenizers.vocabulary import AnyVocabulary, TwoVocabularies, Vocabulary
from qkv.tokenizers.wordpiece import learn_wordpieces


def learn_vocabulary(data: LoadedData, config: DataConfig) -> AnyVocabulary | PretrainedTokenizer | None:
    """Train the tokenizer on the training texts (one per side with `target_vocabulary`); None for data without text."""
    if data.images or data.episodes or data.bandits:
        return None
    if config.target_vocabulary is not None:
        pairs = data.splits["train"]
        sources, targets = (pair.source for pair in pairs), (pair.target for pair in pairs)
        return TwoVocabularies(
            Vocabulary.train(sources, config.vocabulary, lowercase=config.lowercase),
            Vocabulary.train(targets, config.target_vocabulary, lowercase=config.lowercase),
        )
    texts = _training_texts(data, labelled=DATASETS[config.name].kind == "labelled")
    kind, _, size = config.vocabulary.partition(":")
    if kind == "wordpiece":
        return learn_wordpieces(texts, int(size), lowercase=config.lowercase)
    return Vocabulary.train(texts, config.vocabulary, lowercase=config.lowercase)


def _training_texts(data: LoadedData, *, labelled: bool) -> Iterator[str]:
    """Yield all input and output texts of the training split; class labels are not text."""
    if data.texts:
        return iter([data.texts["train"]])
    if data.tagged:
        return (word for sentence in data.tagged["train"] for word in sentence.words)
    if data.questions:
        train = data.questions["train"]
        return iter(dict.fromkeys(chain.from_iterable((question.text, question.question) for question in train)))
    pairs = data.splits["train"]
    sources = (pair.source for pair in pairs)
    return sources if labelled else chain(sources, (pair.target for pair in pairs))
