"""Tokenizers of pretrained models: token ids with character offsets."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Encoding, Tokenizer

from qkv.errors import CheckpointError, InputError, QkvError
from qkv.runtime.documents import parse_json
from qkv.runtime.native import silence_native_stderr
from qkv.tokenizers.limits import (
    MAX_GROWTH,
    MAX_TOKEN_CHARS,
    MAX_TOKENS,
    check_tokenizer_json,
    encoding_growth,
    max_text_bytes,
)

MAX_TOKEN_ID = 2**24
MAX_JSON_VALUES = 2**22  # about 70 bytes of memory each; Gemma's tokenizer.json has 1.8 million
SPACE = "▁"  # in SentencePiece
TOKEN_IDS_KEY = "token_ids"  # qkv extension of tokenizer.json, which other libraries cannot read
DEFAULT_NAMES = {  # common names of special tokens
    "pad": ("<pad>", "[PAD]"),
    "unknown": ("<unk>", "[UNK]", "<|endoftext|>"),
    "begin": ("<s>", "[CLS]", "<|endoftext|>"),
    "end": ("</s>", "[SEP]", "<|endoftext|>"),
    "mask": ("<mask>", "[MASK]"),
}


@dataclass(frozen=True)
class Encoded:
    """The tokens of a text or a pair of texts."""

    ids: list[int]
    segments: list[int]  # per token: 0, or 1 for the second text
    offsets: list[tuple[int, int]]  # [start, stop) in its text; empty if it has no characters there
    texts: list[int | None]  # index of its text; None for special tokens such as [CLS]
    pieces: tuple[str, ...]  # for display: the characters, or the name of the special token

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class SpecialTokens:
    """Ids of the special tokens; None if the vocabulary has no such token."""

    pad: int | None = None
    unknown: int | None = None
    begin: int | None = None  # bos or cls
    end: int | None = None  # eos or sep
    mask: int | None = None


class PretrainedTokenizer:
    """A tokenizer of the `tokenizers` library, with the token ids and special tokens of a model.

    `names` maps the fields of SpecialTokens to tokens. `token_ids` is for vocabularies with ids separate from the
    tokenizer model, as in Marian: pieces without an id become the unknown token, which must exist, and some ids belong
    to pieces of the other language.
    """

    def __init__(
        self, tokenizer: Tokenizer, names: Mapping[str, str] | None = None, token_ids: Mapping[str, int] | None = None
    ) -> None:
        self.tokenizer = tokenizer
        self.token_ids = None if token_ids is None else dict(token_ids)
        vocab = self._vocab
        defaults = {
            field: next((name for name in some if name in vocab), None) for field, some in DEFAULT_NAMES.items()
        }
        self.names = {field: name for field, name in (defaults | dict(names or {})).items() if name in vocab}
        self.special_tokens = SpecialTokens(**{field: vocab[name] for field, name in self.names.items()})
        self.max_bytes = max_text_bytes(encoding_growth(_state(tokenizer.normalizer), _state(tokenizer.pre_tokenizer)))

    @classmethod
    def from_json(cls, text: str, where: str, names: Mapping[str, str] | None = None) -> "PretrainedTokenizer":
        """Load a tokenizer.json of qkv or another library; error messages start with `where`."""
        tokenizer, token_ids = load_tokenizer(text, where)
        pretrained = cls(tokenizer, names, token_ids)
        if token_ids is not None and (pretrained.special_tokens.unknown is None or tokenizer.decoder is None):
            raise CheckpointError(f"{where}: needs an unknown token and a decoder")
        with tokenizer_errors(where):
            pretrained._encoded("a", tokenizer.encode("a"))  # fail early
        return pretrained

    def to_json(self) -> str:
        """Serialize to a tokenizer.json, which other libraries can read if there are no separate token ids."""
        text = self.tokenizer.to_str(pretty=True)
        return (
            text if self.token_ids is None else json.dumps(json.loads(text) | {TOKEN_IDS_KEY: self.token_ids}, indent=2)
        )

    @property
    def source(self) -> "PretrainedTokenizer":
        """The tokenizer of the source side, the same for both sides unlike in TwoTokenizers."""
        return self

    @property
    def target(self) -> "PretrainedTokenizer":
        """The tokenizer of the target side."""
        return self

    def __len__(self) -> int:
        """Size of the embedding table that a model needs."""
        return 1 + max(self._vocab.values(), default=-1)

    def encode(self, text: str, pair: str | None = None, *, specials: bool = True) -> Encoded:
        """Tokenize a text or a pair of texts, by default with the special tokens of the model."""
        return self.encode_batch([text] if pair is None else [(text, pair)], specials=specials)[0]

    def encode_batch(self, texts: Sequence[str | tuple[str, str]], *, specials: bool = True) -> list[Encoded]:
        """Tokenize many texts or pairs of texts."""
        self._check_lengths(texts)
        with tokenizer_errors("this tokenizer"), _unicode_errors():
            encodings = self.tokenizer.encode_batch(list(texts), add_special_tokens=specials)
            return [self._encoded(text, encoding) for text, encoding in zip(texts, encodings, strict=True)]

    def encode_ids(self, texts: Sequence[str], *, specials: bool = False) -> list[list[int]]:
        """Return only the token ids of many texts, in half the time: offsets are not computed."""
        self._check_lengths(texts)
        with tokenizer_errors("this tokenizer"), _unicode_errors():
            # encode_batch_fast does not return token strings, which are needed to look up separate token ids
            encode = self.tokenizer.encode_batch_fast if self.token_ids is None else self.tokenizer.encode_batch
            return [self._ids(encoding) for encoding in encode(list(texts), add_special_tokens=specials)]

    def normalize(self, text: str) -> str:
        """Return the text unchanged."""
        return text

    def decode(self, ids: Sequence[int], *, specials: bool = False) -> str:
        """Decode token ids to text, by default without special tokens."""
        with tokenizer_errors("this tokenizer"):
            if self.token_ids is None:
                return self.tokenizer.decode(list(ids), skip_special_tokens=not specials)
            skipped = set() if specials else set(self.names.values())
            tokens = [self.id_to_token(token_id) for token_id in ids]
            return self.tokenizer.decoder.decode([token for token in tokens if token not in skipped]).strip()

    def unknown_pieces(self, tokens: "Encoded") -> tuple[str, ...]:
        """Return the distinct pieces of a text that became the unknown token, in order."""
        if self.special_tokens.unknown is None:
            return ()
        unknown = (
            piece
            for token_id, piece, text in zip(tokens.ids, tokens.pieces, tokens.texts, strict=True)
            if token_id == self.special_tokens.unknown and text is not None
        )
        return tuple(dict.fromkeys(piece for piece in unknown if piece))

    def id_to_token(self, token_id: int) -> str:
        """Return the token as written in the vocabulary; raise for an unknown id."""
        if token_id not in self._tokens:
            raise InputError(f"there is no token with id {token_id}: the vocabulary has {len(self):,}")
        return self._tokens[token_id]

    def piece(self, token_id: int) -> str:
        """Return the token in a readable form, for display without its text."""
        token = self.id_to_token(token_id)
        if token_id in self._special_ids:
            return token
        with tokenizer_errors("this tokenizer"):
            decoded = self.tokenizer.decoder.decode([token]) if self.tokenizer.decoder is not None else token
        return f" {decoded}" if token.startswith(SPACE) else decoded.removeprefix("##")

    def _check_lengths(self, texts: Sequence[str | tuple[str, str]]) -> None:
        """Raise for a text that could take too much memory with this tokenizer."""
        if self.max_bytes is None:
            return
        for text in texts:
            for side in (text,) if isinstance(text, str) else text:
                if 4 * len(side) > self.max_bytes and len(side.encode(errors="replace")) > self.max_bytes:
                    raise InputError(f"a text is longer than {self.max_bytes:,} bytes, the most for this tokenizer")

    @cached_property
    def _vocab(self) -> dict[str, int]:
        return self.tokenizer.get_vocab() if self.token_ids is None else self.token_ids

    @cached_property
    def _tokens(self) -> dict[int, str]:
        return {token_id: token for token, token_id in self._vocab.items()}

    @cached_property
    def _special_ids(self) -> frozenset[int]:
        return frozenset(token_id for token_id in asdict(self.special_tokens).values() if token_id is not None)

    def _encoded(self, text: str | tuple[str, str], encoding: Encoding) -> Encoded:
        sides = (text,) if isinstance(text, str) else text
        offsets = [
            (start, start if token == SPACE and side is not None and not sides[side][start:stop].isspace() else stop)
            for token, side, (start, stop) in zip(encoding.tokens, encoding.sequence_ids, encoding.offsets, strict=True)
        ]  # a dummy prefix space has no characters in the text
        pieces = (
            token if side is None else sides[side][start:stop]
            for token, side, (start, stop) in zip(encoding.tokens, encoding.sequence_ids, offsets, strict=True)
        )
        return Encoded(self._ids(encoding), encoding.type_ids, offsets, encoding.sequence_ids, tuple(pieces))

    def _ids(self, encoding: Encoding) -> list[int]:
        if self.token_ids is None:
            return encoding.ids
        # pieces of this tokenizer model can be missing in the vocabulary of both languages
        return [self.token_ids.get(token, self.token_ids[self.names["unknown"]]) for token in encoding.tokens]


@dataclass(frozen=True)
class TwoTokenizers:
    """Separate tokenizers for source and target."""

    source: PretrainedTokenizer
    target: PretrainedTokenizer


@contextmanager
def tokenizer_errors(where: str) -> Iterator[None]:
    """Convert errors of the library to CheckpointError, including panics, which are not Exceptions."""
    try:
        with silence_native_stderr():  # a panic writes to stderr
            yield
    except (KeyboardInterrupt, SystemExit, QkvError):
        raise
    except BaseException as error:
        raise CheckpointError(f"{where}: not a tokenizer: {' '.join(str(error).split())[:300]}") from None


@contextmanager
def _unicode_errors() -> Iterator[None]:
    try:
        yield
    except TypeError:
        raise InputError("the text has a lone surrogate, which cannot be encoded as UTF-8") from None


def load_tokenizer(text: str, where: str, max_growth: float = MAX_GROWTH) -> tuple[Tokenizer, dict[str, int] | None]:
    """Check and load a tokenizer.json; return the tokenizer and its separate token ids, if any."""
    data = parse_large_json(text, Path(where))
    token_ids = data.pop(TOKEN_IDS_KEY, None) if isinstance(data, dict) else None
    with tokenizer_errors(where):
        check_tokenizer_json(data, max_growth)
        tokenizer = Tokenizer.from_str(text if token_ids is None else json.dumps(data))
        tokenizer.no_truncation()
        tokenizer.no_padding()
    check_token_ids(tokenizer.get_vocab(), where)
    return tokenizer, None if token_ids is None else check_token_ids(token_ids, where)


def parse_large_json(text: str, path: Path) -> Any:
    """Parse the JSON of a vocabulary, with a limit on the number of values to bound memory."""
    if sum(map(text.count, ",[{")) > MAX_JSON_VALUES:
        raise CheckpointError(f"{path}: has more than {MAX_JSON_VALUES:,} values")
    return parse_json(text, path)


def _state(step: Any) -> Any:
    """Return the JSON of a normalizer or pre-tokenizer."""
    return None if step is None else json.loads(step.__getstate__())


def check_token_ids(token_ids: Any, where: str) -> dict[str, int]:
    """Return the token ids from a file after checking that they are distinct and within limits."""
    if not isinstance(token_ids, dict) or not token_ids:
        raise CheckpointError(f"{where}: must map each token to its id")
    if len(token_ids) > MAX_TOKENS:
        raise CheckpointError(f"{where}: has {len(token_ids):,} tokens, at most {MAX_TOKENS:,} are accepted")
    for token, token_id in token_ids.items():
        if len(token) > MAX_TOKEN_CHARS:
            raise CheckpointError(f"{where}: {token[:100]!r}... has more than {MAX_TOKEN_CHARS:,} characters")
        if type(token_id) is not int or not 0 <= token_id < MAX_TOKEN_ID:
            raise CheckpointError(f"{where}: the id of {token!r} is {token_id!r}, not a number below {MAX_TOKEN_ID:,}")
    if len(set(token_ids.values())) < len(token_ids):
        raise CheckpointError(f"{where}: two tokens have the same id")
    return token_ids
