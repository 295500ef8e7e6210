"""Tokenizers that wrap one of the `tokenizers` library, such as those of pretrained models."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Encoding as LibraryEncoding
from tokenizers import Tokenizer as Backend

from qkv.errors import CheckpointError, InputError, QkvError
from qkv.runtime.documents import parse_json, read_text
from qkv.runtime.native import silence_native_stderr
from qkv.tokenizers.limits import (
    MAX_GROWTH,
    MAX_TOKEN_CHARS,
    MAX_TOKENS,
    check_tokenizer_json,
    encoding_growth,
    max_text_bytes,
)
from qkv.tokenizers.tokenizer import CONFIG, TOKENIZER, Encoding, Span, SpecialTokens, Tokenizer, write_object

SPECIAL = "special_tokens_map.json"
MAX_FILE_BYTES = 2**26  # Gemma's tokenizer.json, with 262,144 tokens, has 33 million
MAX_TOKEN_ID = 2**24
MAX_JSON_VALUES = 2**22  # about 70 bytes of memory each; Gemma's tokenizer.json has 1.8 million
SPACE = "▁"  # in SentencePiece
TOKEN_IDS_KEY = "token_ids"  # qkv extension of tokenizer.json, which other libraries cannot read
NAMES = {  # fields of SpecialTokens: the key in SPECIAL and CONFIG, and common names
    "pad": ("pad_token", "<pad>", "[PAD]"),
    "unk": ("unk_token", "<unk>", "[UNK]", "<|endoftext|>"),
    "begin": ("bos_token", "<s>", "<|endoftext|>"),
    "end": ("eos_token", "</s>", "<|endoftext|>"),
    "mask": ("mask_token", "<mask>", "[MASK]"),
    "cls": ("cls_token", "[CLS]"),
    "sep": ("sep_token", "[SEP]"),
}


class LibraryTokenizer(Tokenizer):
    """A tokenizer of the `tokenizers` library; `names` maps the fields of SpecialTokens to tokens.

    `token_ids` is for vocabularies with ids separate from the tokenizer model, as in Marian: pieces without an id
    become the unknown token, which must exist, and some ids belong to pieces of the other language.
    """

    token_ids: dict[str, int] | None = None

    def __init__(self, backend: Backend, names: Mapping[str, str]) -> None:
        self.backend = backend
        self.names = {field: name for field, name in names.items() if name in self.vocab}
        self.special_tokens = SpecialTokens(**{field: self.vocab[name] for field, name in self.names.items()})
        self.max_bytes = max_text_bytes(encoding_growth(_state(backend.normalizer), _state(backend.pre_tokenizer)))

    @cached_property
    def vocab(self) -> dict[str, int]:
        return self.backend.get_vocab() if self.token_ids is None else self.token_ids

    def encode_with_offsets(self, texts: Sequence[str], *, add_special_tokens: bool = False) -> list[Encoding]:
        with self._encoding_errors(texts):
            encodings = self.backend.encode_batch(list(texts), add_special_tokens=add_special_tokens)
            return [self._encoding(text, encoding) for text, encoding in zip(texts, encodings, strict=True)]

    def _encode(self, texts: Sequence[str], add_special_tokens: bool) -> list[list[int]]:
        """Return the token ids in half the time, without offsets."""
        # encode_batch_fast does not return token strings
        encode = self.backend.encode_batch_fast if self.token_ids is None else self.backend.encode_batch
        with self._encoding_errors(texts):
            return [self._ids(encoding) for encoding in encode(list(texts), add_special_tokens=add_special_tokens)]

    def _encoding(self, text: str, encoding: LibraryEncoding) -> Encoding:
        offsets = self._offsets(text, encoding)
        pieces = (
            token if sequence is None else text[start:end]
            for token, sequence, (start, end) in zip(encoding.tokens, encoding.sequence_ids, offsets, strict=True)
        )
        return Encoding(self._ids(encoding), offsets, tuple(pieces))

    def _ids(self, encoding: LibraryEncoding) -> list[int]:
        if self.token_ids is None:
            return encoding.ids
        # pieces of this tokenizer model can be missing in the vocabulary of both languages
        return [self.token_ids.get(token, self.token_ids[self.names["unk"]]) for token in encoding.tokens]

    def _offsets(self, text: str, encoding: LibraryEncoding) -> list[Span]:
        return encoding.offsets

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        with tokenizer_errors("this tokenizer"):
            return self.backend.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def to_json(self) -> str:
        """Serialize to a tokenizer.json."""
        return self.backend.to_str(pretty=True)

    def save(self, folder: Path, prefix: str = "") -> None:
        super().save(folder, prefix)
        (folder / f"{prefix}{TOKENIZER}").write_text(self.to_json(), encoding="utf-8")

    @contextmanager
    def _encoding_errors(self, texts: Sequence[str]) -> Iterator[None]:
        """Raise for texts that could take too much memory with this tokenizer, and convert errors of the library."""
        if self.max_bytes is not None:
            for text in texts:
                if 4 * len(text) > self.max_bytes and len(text.encode(errors="replace")) > self.max_bytes:
                    raise InputError(f"a text is longer than {self.max_bytes:,} bytes, the most for this tokenizer")
        with tokenizer_errors("this tokenizer"):
            try:
                yield
            except TypeError:
                raise InputError("the text has a lone surrogate, which cannot be encoded as UTF-8") from None


class PretrainedTokenizer(LibraryTokenizer):
    """The tokenizer of a pretrained model; special tokens that `names` does not set have their common names."""

    def __init__(
        self, backend: Backend, names: Mapping[str, str] | None = None, token_ids: Mapping[str, int] | None = None
    ) -> None:
        self.token_ids = None if token_ids is None else dict(token_ids)
        vocab = backend.get_vocab() if self.token_ids is None else self.token_ids
        common = {field: next((name for name in known if name in vocab), "") for field, (_, *known) in NAMES.items()}
        super().__init__(backend, common | dict(names or {}))

    @classmethod
    def from_json(cls, text: str, where: str, names: Mapping[str, str] | None = None) -> "PretrainedTokenizer":
        """Load a tokenizer.json of qkv or another library; error messages start with `where`."""
        backend, token_ids = load_backend(text, where)
        tokenizer = cls(backend, names, token_ids)
        if token_ids is not None and (tokenizer.special_tokens.unk is None or backend.decoder is None):
            raise CheckpointError(f"{where}: needs an unknown token and a decoder")
        with tokenizer_errors(where):
            tokenizer._encoding("a", backend.encode("a"))  # fail early
        return tokenizer

    def to_json(self) -> str:
        """Serialize to a tokenizer.json, which other libraries can read if there are no separate token ids."""
        text = super().to_json()
        return (
            text if self.token_ids is None else json.dumps(json.loads(text) | {TOKEN_IDS_KEY: self.token_ids}, indent=2)
        )

    def save(self, folder: Path, prefix: str = "") -> None:
        super().save(folder, prefix)
        names = {key: self.names[field] for field, (key, *_) in NAMES.items() if field in self.names}
        write_object(folder / f"{prefix}{SPECIAL}", names)

    @classmethod
    def load(cls, folder: Path, prefix: str = "") -> "PretrainedTokenizer":
        path = folder / f"{prefix}{TOKENIZER}"
        return cls.from_json(read_text(path, MAX_FILE_BYTES), str(path), read_names(folder, prefix))

    def _offsets(self, text: str, encoding: LibraryEncoding) -> list[Span]:
        """Return the offsets of the library, but empty ones for a dummy prefix space."""
        return [
            (start, start if token == SPACE and not text[start:end].isspace() else end)
            for token, (start, end) in zip(encoding.tokens, encoding.offsets, strict=True)
        ]

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        if self.token_ids is None:
            return super().decode(ids, skip_special_tokens=skip_special_tokens)
        skipped = set(self.names.values()) if skip_special_tokens else set()
        tokens = [self.id_to_token(token_id) for token_id in ids]
        with tokenizer_errors("this tokenizer"):
            return self.backend.decoder.decode([token for token in tokens if token not in skipped]).strip()

    def piece(self, token_id: int) -> str:
        token = self.id_to_token(token_id)
        if token_id in self.special_tokens.ids:
            return token
        with tokenizer_errors("this tokenizer"):
            decoded = self.backend.decoder.decode([token]) if self.backend.decoder is not None else token
        return f" {decoded}" if token.startswith(SPACE) else decoded.removeprefix("##")


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


def load_backend(text: str, where: str, max_growth: float = MAX_GROWTH) -> tuple[Backend, dict[str, int] | None]:
    """Check and load a tokenizer.json; return the tokenizer of the library and its separate token ids, if any."""
    data = parse_large_json(text, Path(where))
    token_ids = data.pop(TOKEN_IDS_KEY, None) if isinstance(data, dict) else None
    with tokenizer_errors(where):
        check_tokenizer_json(data, max_growth)
        backend = Backend.from_str(text if token_ids is None else json.dumps(data))
        backend.no_truncation()
        backend.no_padding()
    check_token_ids(backend.get_vocab(), where)
    return backend, None if token_ids is None else check_token_ids(token_ids, where)


def read_names(folder: Path, prefix: str = "") -> dict[str, str]:
    """Read the special tokens, by field of SpecialTokens, from the files of a folder."""
    names = {}
    for file in (CONFIG, SPECIAL):  # the second takes precedence
        path = folder / f"{prefix}{file}"
        data = read_object(path)
        for field, (key, *_) in NAMES.items():
            value = data.get(key)
            if isinstance(value, dict):
                value = value.get("content")
            if value is None:
                continue
            if not isinstance(value, str) or not 0 < len(value) <= MAX_TOKEN_CHARS:
                raise CheckpointError(f"{path}: {key} must be a token")
            names[field] = value
    return names


def read_object(path: Path) -> dict[str, Any]:
    """Read the JSON object of a file; empty if the file does not exist."""
    if not os.path.lexists(path):
        return {}
    data = parse_large_json(read_text(path, MAX_FILE_BYTES), path)
    if not isinstance(data, dict):
        raise CheckpointError(f"{path}: must contain a JSON object")
    return data


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
