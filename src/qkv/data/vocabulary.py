"""Vocabularies: from text to token numbers and back, kept in a `tokenizer.json` that other libraries can read."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from qkv.data.dropout import MergeDropout, Seed
from qkv.data.kinds import LARGEST, require_kind
from qkv.data.tokenizer import load_tokenizer, of_the_library
from qkv.data.tokenizer_limits import FREE_GROWTH
from qkv.errors import CheckpointError, InputError

PAD, UNKNOWN, BEGIN, END = 0, 1, 2, 3
SPECIAL = ("<pad>", "<unk>", "<s>", "</s>")
NEVER_SEEN = "\U0010fffd"  # for private use: no text that people write holds it


@dataclass(frozen=True)
class Tokens:
    """A text as tokens: their numbers, and the piece of the text that each one stands for."""

    ids: list[int]
    pieces: tuple[str, ...]


class Vocabulary:
    """One vocabulary, for a side of the pairs or for both."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    @classmethod
    def train(cls, texts: Iterable[str], kind: str, *, lowercase: bool = False) -> "Vocabulary":
        """Learn characters ("char"), words ("word", or the N most frequent with "word:N") or N subwords ("bpe:N").

        With `lowercase` it reads every text in lower case, and so writes none in another.
        """
        require_kind(kind)
        name, _, size = kind.partition(":")
        nfc = normalizers.NFC()
        normalizer = normalizers.Sequence([nfc, normalizers.Lowercase()]) if lowercase else nfc
        if name == "char":
            return cls(_characters(texts, normalizer))
        if name == "wordpiece":
            raise InputError(f"{kind!r} makes no Vocabulary: word pieces are a PretrainedTokenizer (learn_wordpieces)")
        learn = _words if name == "word" else _subwords
        return cls(learn(texts, normalizer, int(size or LARGEST)))

    @property
    def source(self) -> "Vocabulary":
        """The vocabulary of the source side: this one serves both, see TwoVocabularies."""
        return self

    @property
    def target(self) -> "Vocabulary":
        """The vocabulary of the target side."""
        return self

    @classmethod
    def from_json(cls, text: str, where: str) -> "Vocabulary":
        """Read a tokenizer.json."""
        tokenizer, _ = load_tokenizer(text, where, max_growth=FREE_GROWTH)  # for texts of any length
        tokenizer.encode_special_tokens = True  # the file does not keep it
        with of_the_library(where):
            reads_unknown = UNKNOWN in tokenizer.encode(NEVER_SEEN, add_special_tokens=False).ids
        if [tokenizer.id_to_token(number) for number in range(len(SPECIAL))] != list(SPECIAL):
            raise CheckpointError(f"{where}: tokens 0 to 3 must be {' '.join(SPECIAL)}")
        if sorted(tokenizer.get_vocab().values()) != list(range(tokenizer.get_vocab_size())):
            raise CheckpointError(f"{where}: the numbers of the tokens must be 0, 1, 2 and so on, each once")
        if not reads_unknown:
            raise CheckpointError(f"{where}: a character that was never seen must be read as {SPECIAL[UNKNOWN]}")
        return cls(tokenizer)

    def to_json(self) -> str:
        return self.tokenizer.to_str(pretty=True)

    def __len__(self) -> int:
        return self.tokenizer.get_vocab_size()

    def encode(self, text: str) -> Tokens:
        """Split a text into tokens; what was never seen becomes <unk>."""
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        # A piece reaches to where the next begins, so that the pieces are the text: the library's own ends leave out
        # accents that it has composed, and give the space that it puts before a text the first letter.
        starts = [start for start, _ in encoding.offsets]
        return Tokens(encoding.ids, tuple(text[start:stop] for start, stop in pairwise([*starts, len(text)])))

    def encode_ids(self, texts: Sequence[str], *, dropout: float = 0.0, seed: Seed = 0) -> list[list[int]]:
        """The token numbers of many texts; with `dropout` cut into subwords as the seed decides (BPE-dropout)."""
        if dropout:
            return self._merges.encode(texts, dropout, seed)
        return [encoding.ids for encoding in self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)]

    @cached_property
    def _merges(self) -> MergeDropout:
        return MergeDropout(self.tokenizer, UNKNOWN)

    def normalize(self, text: str) -> str:
        """A text as the vocabulary reads it: accents composed, and in lower case where it knows no other."""
        normalizer = self.tokenizer.normalizer
        return text if normalizer is None else str(normalizer.normalize_str(text))

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token numbers."""
        with of_the_library("this vocabulary"):
            return self.tokenizer.decode(list(ids), skip_special_tokens=False)

    def piece(self, number: int) -> str:
        """The text of one token, as a person should see it inside a sequence."""
        return str(self.tokenizer.id_to_token(number)).replace("▁", " ")

    def unknown(self, tokens: Tokens) -> tuple[str, ...]:
        """The pieces of a text that were never seen in training, each once, in order."""
        found = (piece for number, piece in zip(tokens.ids, tokens.pieces, strict=True) if number == UNKNOWN and piece)
        return tuple(dict.fromkeys(piece.strip() or piece for piece in found))


@dataclass(frozen=True)
class TwoVocabularies:
    """A vocabulary for each side, where they have nothing in common: letters and phonemes, say."""

    source: Vocabulary
    target: Vocabulary


AnyVocabulary = Vocabulary | TwoVocabularies


def _characters(texts: Iterable[str], normalizer: normalizers.Normalizer) -> Tokenizer:
    seen = sorted({character for text in texts for character in normalizer.normalize_str(text)})
    numbers = {token: number for number, token in enumerate((*SPECIAL, *seen))}
    tokenizer = Tokenizer(models.WordLevel(numbers, unk_token=SPECIAL[UNKNOWN]))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def _words(texts: Iterable[str], normalizer: normalizers.Normalizer, size: int) -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel(unk_token=SPECIAL[UNKNOWN]))
    return _learn(tokenizer, texts, normalizer, trainers.WordLevelTrainer, size)


def _subwords(texts: Iterable[str], normalizer: normalizers.Normalizer, size: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token=SPECIAL[UNKNOWN], fuse_unk=True))
    return _learn(tokenizer, texts, normalizer, trainers.BpeTrainer, size)


def _learn(
    tokenizer: Tokenizer, texts: Iterable[str], normalizer: normalizers.Normalizer, trainer: type, size: int
) -> Tokenizer:
    tokenizer.normalizer = normalizer
    # A word keeps the space before it, and punctuation without a space gets none: decoding loses nothing. Subwords do
    # not grow across punctuation: "street." has to say nothing that "street" does not, and "<s>" never becomes one.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(), pre_tokenizers.Split(Regex(r"▁?\w+|▁?[^\w▁]|▁"), "isolated")]
    )
    tokenizer.decoder = decoders.Metaspace()
    learning = trainer(vocab_size=size, special_tokens=list(SPECIAL), show_progress=False)
    tokenizer.train_from_iterator(texts, learning)
    tokenizer.encode_special_tokens = True  # a user who writes "<pad>" means these five characters
    return tokenizer
