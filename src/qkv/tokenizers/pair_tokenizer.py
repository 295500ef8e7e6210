"""Separate tokenizers of source and target, and loading of the one or two tokenizers of a model folder."""

import os
from collections.abc import Sequence
from pathlib import Path

from qkv.errors import CheckpointError, InputError
from qkv.registry import lookup
from qkv.tokenizers.library import PretrainedTokenizer, read_object
from qkv.tokenizers.tokenizer import CLASS_KEY, CONFIG, TOKENIZER, Encoding, Tokenizer

TARGET = "target_"  # prefix of the files of the target side


class PairTokenizer(Tokenizer):
    """Separate tokenizers for source and target, such as letters and phonemes: encodes sources, decodes targets."""

    def __init__(self, source: Tokenizer, target: Tokenizer) -> None:
        self._source, self._target = source, target
        self.special_tokens = target.special_tokens

    @property
    def source(self) -> Tokenizer:
        return self._source

    @property
    def target(self) -> Tokenizer:
        return self._target

    @property
    def vocab(self) -> dict[str, int]:
        return self.target.vocab

    def encode_with_offsets(self, texts: Sequence[str], *, add_special_tokens: bool = False) -> list[Encoding]:
        return self.source.encode_with_offsets(texts, add_special_tokens=add_special_tokens)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return self.target.decode(ids, skip_special_tokens=skip_special_tokens)

    def save(self, folder: Path, prefix: str = "") -> None:
        self.source.save(folder, prefix)
        self.target.save(folder, prefix + TARGET)

    @classmethod
    def load(cls, folder: Path, prefix: str = "") -> "PairTokenizer":
        return cls(_load(folder, prefix), _load(folder, prefix + TARGET))


def load_tokenizer(folder: Path) -> Tokenizer | None:
    """Load the tokenizer, or the source and target tokenizers, of a saved model; None if it has none."""
    if _has_files(folder, TARGET):
        return PairTokenizer.load(folder)
    return _load(folder, "") if _has_files(folder, "") else None


def _has_files(folder: Path, prefix: str) -> bool:
    return any(os.path.lexists(folder / f"{prefix}{name}") for name in (TOKENIZER, CONFIG))


def _load(folder: Path, prefix: str) -> Tokenizer:
    """Load a tokenizer of the class that it was saved with; without a class it is a pretrained one."""
    path = folder / f"{prefix}{CONFIG}"
    name = read_object(path).get(CLASS_KEY)
    try:
        cls = PretrainedTokenizer if name is None else lookup("tokenizer", str(name))
    except InputError as error:
        raise CheckpointError(f"{path}: {error}") from None
    tokenizer: Tokenizer = cls.load(folder, prefix)
    return tokenizer
