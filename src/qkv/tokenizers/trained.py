"""Tokenizers trained on the texts of a dataset, saved as a `tokenizer.json` that other libraries can read."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Encoding as LibraryEncoding
from tokenizers import Tokenizer as Backend

from qkv.config import MAX_VOCAB_SIZE, VocabSize
from qkv.errors import CheckpointError
from qkv.registry import register
from qkv.runtime.documents import read_text
from qkv.tokenizers.bpe_dropout import MergeDropout
from qkv.tokenizers.library import (
    MAX_FILE_BYTES,
    NAMES,
    SPACE,
    LibraryTokenizer,
    load_backend,
    tokenizer_errors,
)
from qkv.tokenizers.limits import FREE_GROWTH
from qkv.tokenizers.tokenizer import TOKENIZER, Seed, Span

PAD, UNK, BEGIN, END = 0, 1, 2, 3
SPECIAL = ("<pad>", "<unk>", "<s>", "</s>")
UNSEEN = "\U0010fffd"  # a private-use character that does not occur in texts
T = TypeVar("T", bound="TrainedTokenizer")


class TrainedTokenizer(LibraryTokenizer):
    """A tokenizer with the special tokens <pad>, <unk>, <s> and </s>, which are plain text if a text contains them."""

    encodes_words_separately: ClassVar[bool] = True

    def __init__(self, backend: Backend) -> None:
        backend.encode_special_tokens = True  # "<pad>" in a text means these five characters
        super().__init__(backend, dict(zip(("pad", "unk", "begin", "end"), SPECIAL, strict=True)))

    @classmethod
    def from_json(cls: type[T], text: str, where: str) -> T:
        """Load a tokenizer.json; error messages start with `where`."""
        backend, _ = load_backend(text, where, max_growth=FREE_GROWTH)  # no limit on text length
        backend.encode_special_tokens = True  # not saved in the file
        with tokenizer_errors(where):
            has_unk = UNK in backend.encode(UNSEEN, add_special_tokens=False).ids
        if [backend.id_to_token(token_id) for token_id in range(len(SPECIAL))] != list(SPECIAL):
            raise CheckpointError(f"{where}: tokens 0 to 3 must be {' '.join(SPECIAL)}")
        if sorted(backend.get_vocab().values()) != list(range(backend.get_vocab_size())):
            raise CheckpointError(f"{where}: token ids must be 0, 1, 2 and so on, each once")
        if not has_unk:
            raise CheckpointError(f"{where}: unseen characters must be encoded as {SPECIAL[UNK]}")
        return cls(backend)

    @classmethod
    def load(cls: type[T], folder: Path, prefix: str = "") -> T:
        path = folder / f"{prefix}{TOKENIZER}"
        return cls.from_json(read_text(path, MAX_FILE_BYTES), str(path))

    @property
    def transformers_config(self) -> Mapping[str, Any]:
        tokens = {NAMES[field][0]: name for field, name in self.names.items()}
        return {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **tokens}

    def with_tokens(self: T, tokens: Sequence[str]) -> T:
        backend = Backend.from_str(self.backend.to_str())
        backend.add_tokens([AddedToken(token, normalized=False) for token in tokens])
        return type(self)(backend)

    @cached_property
    def added_tokens(self) -> dict[str, int]:
        """The ids of the tokens of `with_tokens`."""
        added = self.backend.get_added_tokens_decoder()
        return {token.content: token_id for token_id, token in added.items() if not token.special}

    def _offsets(self, text: str, encoding: LibraryEncoding) -> list[Span]:
        """Extend each token to the start of the next, so that the pieces concatenate to the text.

        The end offsets of the library exclude composed accents, and assign the first letter to the dummy prefix space.
        """
        return list(pairwise([*(start for start, _ in encoding.offsets), len(text)]))

    def normalize(self, text: str) -> str:
        """Apply Unicode normalization, and lowercasing if the tokenizer uses it."""
        return str(self.backend.normalizer.normalize_str(text)) if self.backend.normalizer is not None else text

    def piece(self, token_id: int) -> str:
        return self.id_to_token(token_id).replace(SPACE, " ")


@register("tokenizer", "char")
class CharTokenizer(TrainedTokenizer):
    """Tokens are the characters of the training texts."""

    @classmethod
    def train(cls, texts: Iterable[str], lowercase: bool = False) -> "CharTokenizer":
        normalizer = _normalizer(lowercase)
        characters = sorted({character for text in texts for character in normalizer.normalize_str(text)})
        backend = _word_level(characters)
        backend.normalizer = normalizer
        backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        backend.decoder = decoders.Fuse()
        return cls(backend)

    def _encode(self, texts: Sequence[str], add_special_tokens: bool) -> list[list[int]]:
        """Look up each character: several times as fast as the library, with a fraction of its memory."""
        if self.added_tokens:
            return super()._encode(texts, add_special_tokens)
        lookup = self.vocab.get
        with self._encoding_errors(texts):
            return [[lookup(character, UNK) for character in self.normalize(text)] for text in texts]


@register("tokenizer", "word")
class WordTokenizer(TrainedTokenizer):
    """Tokens are words and punctuation: all of the training texts, or the `vocab_size` most frequent."""

    @classmethod
    def train(
        cls,
        texts: Iterable[str],
        lowercase: bool = False,
        *,
        vocab_size: VocabSize | None = None,  # maximum number of words; unset: all
    ) -> "WordTokenizer":
        backend = Backend(models.WordLevel(unk_token=SPECIAL[UNK]))
        return cls(_train(backend, texts, lowercase, trainers.WordLevelTrainer, vocab_size or MAX_VOCAB_SIZE))

    @classmethod
    def from_counts(
        cls, counts: Mapping[str, int], lowercase: bool = False, *, vocab_size: VocabSize | None = None
    ) -> "WordTokenizer":
        """Build a tokenizer of whitespace-separated words from their frequencies; ties are broken alphabetically."""
        normalizer = _normalizer(lowercase)
        totals: Counter[str] = Counter()
        for word, count in counts.items():
            totals[normalizer.normalize_str(word)] += count
        ranked = sorted(totals.items(), key=lambda item: (-item[1], item[0]))
        words = [word for word, _ in ranked if word not in SPECIAL]
        backend = _word_level(words[: (vocab_size or MAX_VOCAB_SIZE) - len(SPECIAL)])
        backend.normalizer = normalizer
        backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        return cls(backend)


@register("tokenizer", "bpe")
class BPETokenizer(TrainedTokenizer):
    """Tokens are subwords (byte-pair encoding, Sennrich et al. 2016) made of the characters of the training texts."""

    @classmethod
    def train(
        cls,
        texts: Iterable[str],
        lowercase: bool = False,
        *,
        vocab_size: VocabSize = 8000,  # maximum number of tokens
    ) -> "BPETokenizer":
        backend = Backend(models.BPE(unk_token=SPECIAL[UNK], fuse_unk=True))
        return cls(_train(backend, texts, lowercase, trainers.BpeTrainer, vocab_size))

    def _encode_with_dropout(self, texts: Sequence[str], dropout: float, seed: Seed) -> list[list[int]]:
        return self._merges.encode(texts, dropout, seed)

    @cached_property
    def _merges(self) -> MergeDropout:
        return MergeDropout(self.backend, UNK, self.added_tokens)


def _normalizer(lowercase: bool) -> normalizers.Normalizer:
    nfc = normalizers.NFC()
    return normalizers.Sequence([nfc, normalizers.Lowercase()]) if lowercase else nfc


def _word_level(tokens: Sequence[str]) -> Backend:
    token_ids = {token: token_id for token_id, token in enumerate((*SPECIAL, *tokens))}
    return Backend(models.WordLevel(token_ids, unk_token=SPECIAL[UNK]))


def _train(
    backend: Backend, texts: Iterable[str], lowercase: bool, trainer_class: type[Any], vocab_size: int
) -> Backend:
    backend.normalizer = _normalizer(lowercase)
    # Words keep the space before them, so decoding is lossless. Subwords do not cross punctuation: "street." adds
    # nothing to "street", and "<s>" never becomes a token.
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(), pre_tokenizers.Split(Regex(r"▁?\w+|▁?[^\w▁]|▁"), "isolated")]
    )
    backend.decoder = decoders.Metaspace()
    trainer = trainer_class(vocab_size=vocab_size, special_tokens=list(SPECIAL), show_progress=False)
    backend.train_from_iterator(texts, trainer)
    return backend
