"""Trained vocabularies, saved as a `tokenizer.json` that other libraries can read."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from qkv.errors import CheckpointError, InputError
from qkv.tokenizers.bpe_dropout import MergeDropout, Seed
from qkv.tokenizers.kinds import LARGEST, require_kind
from qkv.tokenizers.limits import FREE_GROWTH
from qkv.tokenizers.tokenizer import load_tokenizer, tokenizer_errors

PAD, UNKNOWN, BEGIN, END = 0, 1, 2, 3
SPECIAL = ("<pad>", "<unk>", "<s>", "</s>")
UNSEEN = "\U0010fffd"  # a private-use character that does not occur in texts


@dataclass(frozen=True)
class Tokens:
    """Token ids of a text, and the piece of the text of each token."""

    ids: list[int]
    pieces: tuple[str, ...]


class Vocabulary:
    """A vocabulary for one side of the pairs, or for both."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    @classmethod
    def train(cls, texts: Iterable[str], kind: str, *, lowercase: bool = False) -> "Vocabulary":
        """Train on texts: characters ("char"), words ("word", "word:N" for the N most frequent) or subwords ("bpe:N").

        With `lowercase` every text is lowercased.
        """
        require_kind(kind)
        name, _, size = kind.partition(":")
        nfc = normalizers.NFC()
        normalizer = normalizers.Sequence([nfc, normalizers.Lowercase()]) if lowercase else nfc
        if name == "char":
            return cls(_characters(texts, normalizer))
        if name == "wordpiece":
            raise InputError(
                f"{kind!r} is not supported here: use learn_wordpieces, which returns a PretrainedTokenizer"
            )
        learn = _words if name == "word" else _subwords
        return cls(learn(texts, normalizer, int(size or LARGEST)))

    @property
    def source(self) -> "Vocabulary":
        """The vocabulary of the source side, the same for both sides unlike in TwoVocabularies."""
        return self

    @property
    def target(self) -> "Vocabulary":
        """The vocabulary of the target side."""
        return self

    @classmethod
    def from_json(cls, text: str, where: str) -> "Vocabulary":
        """Load a tokenizer.json; error messages start with `where`."""
        tokenizer, _ = load_tokenizer(text, where, max_growth=FREE_GROWTH)  # no limit on text length
        tokenizer.encode_special_tokens = True  # not saved in the file
        with tokenizer_errors(where):
            has_unknown = UNKNOWN in tokenizer.encode(UNSEEN, add_special_tokens=False).ids
        if [tokenizer.id_to_token(token_id) for token_id in range(len(SPECIAL))] != list(SPECIAL):
            raise CheckpointError(f"{where}: tokens 0 to 3 must be {' '.join(SPECIAL)}")
        if sorted(tokenizer.get_vocab().values()) != list(range(tokenizer.get_vocab_size())):
            raise CheckpointError(f"{where}: token ids must be 0, 1, 2 and so on, each once")
        if not has_unknown:
            raise CheckpointError(f"{where}: unseen characters must be encoded as {SPECIAL[UNKNOWN]}")
        return cls(tokenizer)

    def to_json(self) -> str:
        return self.tokenizer.to_str(pretty=True)

    def __len__(self) -> int:
        return self.tokenizer.get_vocab_size()

    def encode(self, text: str) -> Tokens:
        """Tokenize a text; unseen pieces become <unk>."""
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        # A piece extends to the start of the next, so that the pieces concatenate to the text: the stop offsets of the
        # library exclude composed accents, and assign the first letter to the dummy prefix space.
        starts = [start for start, _ in encoding.offsets]
        return Tokens(encoding.ids, tuple(text[start:stop] for start, stop in pairwise([*starts, len(text)])))

    def encode_ids(self, texts: Sequence[str], *, dropout: float = 0.0, seed: Seed = 0) -> list[list[int]]:
        """Return the token ids of many texts, with BPE-dropout sampled from the seed if `dropout` is positive."""
        if dropout:
            return self._merges.encode(texts, dropout, seed)
        return [encoding.ids for encoding in self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)]

    @cached_property
    def _merges(self) -> MergeDropout:
        return MergeDropout(self.tokenizer, UNKNOWN)

    def normalize(self, text: str) -> str:
        """Apply Unicode normalization, and lowercasing if the vocabulary uses it."""
        normalizer = self.tokenizer.normalizer
        return text if normalizer is None else str(normalizer.normalize_str(text))

    def decode(self, ids: Sequence[int]) -> str:
        """Decode token ids to text."""
        with tokenizer_errors("this vocabulary"):
            return self.tokenizer.decode(list(ids), skip_special_tokens=False)

    def piece(self, token_id: int) -> str:
        """Return the token in a readable form."""
        return str(self.tokenizer.id_to_token(token_id)).replace("▁", " ")

    def unknown_pieces(self, tokens: Tokens) -> tuple[str, ...]:
        """Return the distinct pieces of a text that became <unk>, in order."""
        pairs = zip(tokens.ids, tokens.pieces, strict=True)
        unknown = (piece for token_id, piece in pairs if token_id == UNKNOWN and piece)
        return tuple(dict.fromkeys(piece.strip() or piece for piece in unknown))


@dataclass(frozen=True)
class TwoVocabularies:
    """Separate vocabularies for source and target, such as letters and phonemes."""

    source: Vocabulary
    target: Vocabulary


AnyVocabulary = Vocabulary | TwoVocabularies


def _characters(texts: Iterable[str], normalizer: normalizers.Normalizer) -> Tokenizer:
    characters = sorted({character for text in texts for character in normalizer.normalize_str(text)})
    token_ids = {token: index for index, token in enumerate((*SPECIAL, *characters))}
    tokenizer = Tokenizer(models.WordLevel(token_ids, unk_token=SPECIAL[UNKNOWN]))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def _words(texts: Iterable[str], normalizer: normalizers.Normalizer, size: int) -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel(unk_token=SPECIAL[UNKNOWN]))
    return _train(tokenizer, texts, normalizer, trainers.WordLevelTrainer, size)


def _subwords(texts: Iterable[str], normalizer: normalizers.Normalizer, size: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token=SPECIAL[UNKNOWN], fuse_unk=True))
    return _train(tokenizer, texts, normalizer, trainers.BpeTrainer, size)


def _train(
    tokenizer: Tokenizer, texts: Iterable[str], normalizer: normalizers.Normalizer, trainer_type: type, size: int
) -> Tokenizer:
    tokenizer.normalizer = normalizer
    # Words keep the space before them, so decoding is lossless. Subwords do not cross punctuation: "street." adds
    # nothing to "street", and "<s>" never becomes a token.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(), pre_tokenizers.Split(Regex(r"▁?\w+|▁?[^\w▁]|▁"), "isolated")]
    )
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainer_type(vocab_size=size, special_tokens=list(SPECIAL), show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.encode_special_tokens = True  # "<pad>" in a text means these five characters
    return tokenizer
