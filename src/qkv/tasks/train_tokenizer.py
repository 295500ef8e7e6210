"""Train the tokenizer of a recipe on the training texts of its dataset."""

from collections.abc import Iterator
from itertools import chain

from qkv.config import Term, parse_term
from qkv.datasets.config import DataConfig
from qkv.datasets.dataset import LoadedData
from qkv.datasets.registry import DATASETS
from qkv.errors import InputError
from qkv.tokenizers import PairTokenizer, Tokenizer


def train_tokenizer(data: LoadedData, config: DataConfig) -> Tokenizer | None:
    """Train the tokenizer on the training texts (one per side with `target_vocabulary`); None for data without text."""
    if data.images or data.episodes or data.bandits:
        return None
    term = tokenizer_term(config.vocabulary)
    if config.target_vocabulary is not None:
        pairs, target_term = data.splits["train"], tokenizer_term(config.target_vocabulary)
        sources, targets = (pair.source for pair in pairs), (pair.target for pair in pairs)
        return PairTokenizer(
            term.cls.train(sources, lowercase=config.lowercase, **term.options),
            target_term.cls.train(targets, lowercase=config.lowercase, **target_term.options),
        )
    texts = _training_texts(data, labelled=DATASETS[config.name].kind == "labelled")
    tokenizer: Tokenizer = term.cls.train(texts, lowercase=config.lowercase, **term.options)
    return tokenizer


def tokenizer_term(text: str) -> Term:
    """Parse "char" or "bpe:8000"; used until the data configs have terms."""
    name, _, size = text.partition(":")
    options = {"vocab_size": int(size)} if size.isdecimal() and len(size) < 10 else {"vocab_size": size} if size else {}
    try:
        return parse_term("tokenizer", {"name": name, **options})
    except ValueError as error:
        raise InputError(f"vocabulary {text!r:.200}: {error}") from None


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
