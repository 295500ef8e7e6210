"""Text in shards for the tasks of language modeling: its tokenizer and its tokens, built once and found again."""

import hashlib
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from qkv.datasets.dataset import TextDatasetConfig
from qkv.datasets.shards.large_text import LargeText, check_unchanged, recorded_sha256, tokenized_folder
from qkv.datasets.shards.token_shards import INDEX, VERSION, BuildPlan, TokenShards, build_shards, discard_shards
from qkv.errors import InputError
from qkv.runtime.files import atomic_folder, exclusive_lock
from qkv.tokenizers import Tokenizer, load_tokenizer

Unit = Literal["text", "documents"]  # what is tokenized: running text, or each document, with an end token
NAMED_FILES = 8  # in the index


def cached_tokenizer(data: LargeText, config: TextDatasetConfig) -> Tokenizer:
    """Return the tokenizer of a dataset config, trained on a sample of the text unless that was done before."""
    settings = [VERSION, data.fingerprint, config.tokenizer.to_data(), config.lowercase]
    folder = tokenized_folder() / f"tokenizer-{_digest(json.dumps(settings, sort_keys=True).encode())}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with exclusive_lock(folder.parent, wait=True):
        if (tokenizer := load_tokenizer(folder)) is None:
            term = config.tokenizer
            trained = term.cls.train(data.training_texts(), lowercase=config.lowercase, **term.options)
            with atomic_folder(folder) as scratch:
                trained.save(scratch)
            tokenizer = load_tokenizer(folder)  # as the next run will have it
    assert tokenizer is not None
    return tokenizer


class TokenizedText:
    """The shards of a text and a tokenizer, in a folder of the cache named by the hash of both."""

    def __init__(self, data: LargeText, tokenizer: Tokenizer, unit: Unit) -> None:
        self.data, self.tokenizer, self.unit = data, tokenizer, unit
        self.end = tokenizer.special_tokens.end if unit == "documents" else None
        if unit == "documents" and self.end is None:
            raise InputError("documents in shards need a tokenizer with an end token")
        with TemporaryDirectory() as scratch:
            tokenizer.save(Path(scratch))
            files = sorted(Path(scratch).iterdir())
            tokenizer_digest = _digest(*(part for file in files for part in (file.name.encode(), file.read_bytes())))
        text_digest = _digest(json.dumps([VERSION, data.fingerprint, unit]).encode())
        self.folder = tokenized_folder() / f"{text_digest}-{tokenizer_digest}"

    def open(self) -> TokenShards:
        """Return the tokens; the text is tokenized unless that was done before."""
        if not (self.folder / INDEX).exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            with exclusive_lock(self.folder, wait=True):
                if not (self.folder / INDEX).exists():
                    self._build()
        return TokenShards(self.folder)

    def discard(self, damaged: Sequence[int] | None) -> None:
        """Remove damaged shards, or with None all, so that `open` builds them again."""
        with exclusive_lock(self.folder, wait=True):
            if damaged is None:
                (self.folder / INDEX).unlink(missing_ok=True)
            else:
                discard_shards(self.folder, damaged)

    def _build(self) -> None:
        self.tokenizer.save(self.folder)
        data, size = self.data, len(self.tokenizer)
        dtype = "uint8" if size <= 2**8 else "uint16" if size <= 2**16 else "uint32"
        plan = BuildPlan(data.source, data.groups(), partial(load_tokenizer, self.folder), dtype, self.end)
        paths = data.source.files
        digests = [recorded_sha256(Path(path)) for path in paths]
        index = {
            "text": data.fingerprint,
            "files": list(paths[:NAMED_FILES]),
            "bytes": data.source.bytes,
            "tokenizer": f"{getattr(self.tokenizer, 'registered_name', 'pretrained')} ({size:,})",
        }
        build_shards(self.folder, plan, index, data.workers, check=partial(check_unchanged, paths, digests))


def _digest(*parts: bytes) -> str:
    """Return the first 16 hex digits of a SHA-256."""
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
