"""The interface of tokenizers: the map between texts and token ids."""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, overload

from qkv.errors import InputError

TOKENIZER, CONFIG = "tokenizer.json", "tokenizer_config.json"
CLASS_KEY = "qkv_tokenizer"  # in CONFIG: the registered name of the class
Span = tuple[int, int]  # start and end offset in a text
Seed = int | tuple[int, ...]


@dataclass(frozen=True)
class SpecialTokens:
    """Ids of the special tokens; None if the vocabulary has no such token.

    A vocabulary with only one of begin and cls, or of end and sep, uses it for both.
    """

    pad: int | None = None
    unk: int | None = None
    begin: int | None = None
    end: int | None = None
    mask: int | None = None
    cls: int | None = None
    sep: int | None = None

    def __post_init__(self) -> None:
        for name, other in (("begin", "cls"), ("cls", "begin"), ("end", "sep"), ("sep", "end")):
            if getattr(self, name) is None:
                object.__setattr__(self, name, getattr(self, other))

    @property
    def ids(self) -> set[int]:
        """All ids."""
        return set(astuple(self)) - {None}

    def replace(self, **ids: int | None) -> "SpecialTokens":
        """Return the tokens with some ids changed; None keeps an id."""
        return replace(self, **{name: token_id for name, token_id in ids.items() if token_id is not None})

    @property
    def suppressed(self) -> list[int]:
        """Tokens that a decoder must not generate: pad, unk and begin, unless they are also the end token."""
        return sorted({token for token in (self.pad, self.unk, self.begin) if token is not None} - {self.end})


@dataclass(frozen=True)
class Encoding:
    """The tokens of a text."""

    ids: list[int]
    offsets: list[Span]  # of the characters of each token; empty for special tokens such as [CLS]
    pieces: tuple[str, ...]  # for display: the characters, or the name of the special token

    def __len__(self) -> int:
        return len(self.ids)


class Tokenizer(ABC):
    """A vocabulary and the rules that split a text into its tokens.

    A class registered as a "tokenizer" also has a classmethod `train(texts, lowercase=False, *, ...)`, whose
    keyword-only arguments are its options in a recipe: `tokenizer = { name = "bpe", vocab_size = 8000 }`.
    """

    special_tokens: SpecialTokens
    encodes_words_separately: ClassVar[bool] = False  # no token spans two words, so each can be encoded on its own

    @property
    def source(self) -> "Tokenizer":
        """The tokenizer of the source side."""
        return self

    @property
    def target(self) -> "Tokenizer":
        """The tokenizer of the target side."""
        return self

    @property
    def special_pieces(self) -> tuple[str, ...]:
        """The display text of the special tokens other than unk, of both sides."""
        pieces = {
            side.piece(token): None
            for side in (self.source, self.target)
            for token in sorted(side.special_tokens.ids - {side.special_tokens.unk})
        }
        return tuple(pieces)

    @property
    @abstractmethod
    def vocab(self) -> dict[str, int]:
        """The id of each token."""

    @abstractmethod
    def encode_with_offsets(self, texts: Sequence[str], *, add_special_tokens: bool = False) -> list[Encoding]:
        """Tokenize texts; `add_special_tokens` adds those that the model expects around a text."""

    @abstractmethod
    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of token ids."""

    @property
    def transformers_config(self) -> Mapping[str, Any]:
        """Keys of tokenizer_config.json with which transformers loads the tokenizer; empty if it cannot."""
        return {}

    def save(self, folder: Path, prefix: str = "") -> None:
        """Write the tokenizer into a model folder, into files whose names begin with `prefix`.

        This writes the registered name of the class; subclasses extend it.
        """
        if (name := getattr(self, "registered_name", None)) is not None:
            write_object(folder / f"{prefix}{CONFIG}", {CLASS_KEY: name, **self.transformers_config})

    @classmethod
    @abstractmethod
    def load(cls, folder: Path, prefix: str = "") -> "Tokenizer":
        """Load a saved tokenizer of this class; `load_tokenizer` finds the class."""

    def with_tokens(self, tokens: Sequence[str]) -> "Tokenizer":
        """Return a tokenizer with additional tokens, which are never split and match wherever a text contains them."""
        raise InputError(f"tokens cannot be added to a {type(self).__name__}: use the tokenizer bpe, word or char")

    @overload
    def encode(  # type: ignore[overload-overlap]  # a string is also a sequence of strings
        self, texts: str, *, add_special_tokens: bool = False, dropout: float = 0.0, seed: Seed = 0
    ) -> list[int]: ...

    @overload
    def encode(
        self, texts: Sequence[str], *, add_special_tokens: bool = False, dropout: float = 0.0, seed: Seed = 0
    ) -> list[list[int]]: ...

    def encode(
        self, texts: str | Sequence[str], *, add_special_tokens: bool = False, dropout: float = 0.0, seed: Seed = 0
    ) -> list[int] | list[list[int]]:
        """Return the token ids of a text, or of each of several texts.

        A positive `dropout` segments words randomly (BPE-dropout, Provilkov et al. 2020), determined by the seed.
        """
        batch = [texts] if isinstance(texts, str) else texts
        ids = self._encode_with_dropout(batch, dropout, seed) if dropout else self._encode(batch, add_special_tokens)
        return ids[0] if isinstance(texts, str) else ids

    def _encode(self, texts: Sequence[str], add_special_tokens: bool) -> list[list[int]]:
        return [encoding.ids for encoding in self.encode_with_offsets(texts, add_special_tokens=add_special_tokens)]

    def _encode_with_dropout(self, texts: Sequence[str], dropout: float, seed: Seed) -> list[list[int]]:
        raise InputError(f"BPE-dropout requires a BPE tokenizer trained by qkv, not a {type(self).__name__}")

    def normalize(self, text: str) -> str:
        """Return the text as it would be decoded from its tokens; by default unchanged."""
        return text

    def id_to_token(self, token_id: int) -> str:
        """Return the token as written in the vocabulary."""
        if token_id not in self._tokens:
            raise InputError(f"there is no token with id {token_id}: the vocabulary has {len(self):,}")
        return self._tokens[token_id]

    def piece(self, token_id: int) -> str:
        """Return the token in a readable form, for display without its text."""
        return self.id_to_token(token_id)

    def unknown_pieces(self, encoding: Encoding) -> tuple[str, ...]:
        """Return the distinct pieces of a text that became the unknown token, in order."""
        tokens = zip(encoding.ids, encoding.offsets, encoding.pieces, strict=True)
        unknown = (
            piece.strip() or piece
            for token_id, (start, end), piece in tokens
            if token_id == self.special_tokens.unk and start < end
        )
        return tuple(dict.fromkeys(unknown))

    def __len__(self) -> int:
        """Number of rows of an embedding table for the ids: the largest id plus 1."""
        return 1 + max(self.vocab.values(), default=-1)

    @cached_property
    def _tokens(self) -> dict[int, str]:
        return {token_id: token for token, token_id in self.vocab.items()}


def write_object(path: Path, data: Mapping[str, Any]) -> None:
    """Write a JSON object."""
    path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
