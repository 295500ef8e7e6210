"""Text that is too large for memory: hashed once, sampled for its tokenizer, and read from tokenized shards."""

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from qkv.datasets.dataset import TextDataset
from qkv.datasets.dataset_cache import cache_folder
from qkv.datasets.shards.text_source import Part, TextSource, files_of
from qkv.datasets.shards.token_shards import MAX_SHARDS, MIN_SHARD_BYTES
from qkv.errors import InputError
from qkv.runtime.bars import Bars
from qkv.runtime.documents import read_object
from qkv.runtime.files import sha256, write_atomically

LARGE_BYTES = 2**23  # of text; less is held in memory
HELD_OUT_BYTES = 2**20  # of validation text, at most
SAMPLE_BYTES = 2**26  # of text that the tokenizer is trained on, at most
NO_FILES = TextSource(())


@dataclass(frozen=True)
class LargeText(TextDataset):
    """Running text in files. The splits are strings, but for train, whose texts are read in parts."""

    source: TextSource = NO_FILES
    held_out: tuple[Part, ...] = ()  # the beginning of the text: the validation split, unless that is another file
    train: tuple[Part, ...] = ()
    workers: int | None = None  # processes that tokenize it

    unit = "bytes"

    @classmethod
    def open(cls, source: TextSource, splits: dict[str, str], valid_share: float, workers: int | None) -> "LargeText":
        """Open files as training text, from which the validation text is held out unless it is one of the splits."""
        size = 0 if "valid" in splits else min(HELD_OUT_BYTES, round(valid_share * source.bytes))
        held_out, train = source.split(size)
        if held_out:
            splits = {"valid": "".join(chain.from_iterable(map(source.pieces, held_out))), **splits}
        return cls({"train": "", **splits}, source=source, held_out=(*held_out,), train=(*train,), workers=workers)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of all files, and of the way they are split."""
        digest = hashlib.sha256(f"{self.source.column} {[part.begin for part in self.train[:1]]}".encode())
        for path in self.source.files:
            digest.update(bytes.fromhex(recorded_sha256(Path(path))))
        for split, text in sorted(self.splits.items()):
            digest.update(f"{split} {hashlib.sha256(text.encode()).hexdigest()}".encode())
        return digest.hexdigest()

    def truncated(self, size: int | None) -> "LargeText":
        if size is not None:
            raise InputError("data.size does not apply to text in shards: pass a smaller file, or data.shards=false")
        return self

    def size(self, split: str) -> int:
        return self.source.bytes if split == "train" else len(self.splits[split].encode())

    def groups(self) -> list[list[Part]]:
        """Return the parts of each shard."""
        return self.source.divide(self.train, max(MIN_SHARD_BYTES, -(-self.source.bytes // MAX_SHARDS)))

    def training_texts(self) -> Iterator[str]:
        """Yield at most SAMPLE_BYTES of text, an equal share of the beginning of each shard."""
        groups = self.groups()
        for parts in groups:
            left = SAMPLE_BYTES // len(groups)
            for piece in chain.from_iterable(map(self.source.pieces, parts)):
                yield piece[:left]
                left -= len(piece)
                if left <= 0:
                    break

    def documents(self, split: str) -> list[str]:
        parts = {"train": self.train, "valid": self.held_out}.get(split, ())
        if not parts:
            return super().documents(split)
        return [*chain.from_iterable(map(self.source.documents, parts))]

    def preview(self, split: str) -> Iterator[dict[str, Any]]:
        if split != "train":
            return super().preview(split)
        return ({"text": text} for part in self.train for text in self.source.documents(part))


def tokenized_folder() -> Path:
    """Return the folder of tokenized texts in the user's cache."""
    return cache_folder() / "tokenized"


def recorded_sha256(path: Path) -> str:
    """Return the SHA-256 of a file, or of all files in a folder, which is recorded in the cache.

    It is computed again if the size, the inode, or the time of the last modification or change of status differs.
    """
    files = files_of(path)
    key = [[str(file), *_signature(file)] for file in files]
    record = tokenized_folder() / "files" / f"{hashlib.sha256(str(path).encode()).hexdigest()[:32]}.json"
    with suppress(InputError):
        recorded = read_object(record)
        if recorded.get("files") == key and isinstance(recorded.get("sha256"), str):
            return str(recorded["sha256"])
    digests, done = [], 0
    with Bars().byte_bar(f"hashing {path.name}", sum(file.stat().st_size for file in files)) as progress:
        for file in files:
            digests.append(sha256(file))
            done += file.stat().st_size
            progress(done)
    digest = digests[0] if files == [path] else hashlib.sha256("".join(digests).encode()).hexdigest()
    if key != [[str(file), *_signature(file)] for file in files]:
        raise InputError(f"{path}: was changed while it was read")
    write_atomically(record, json.dumps({"files": key, "sha256": digest}).encode())
    return digest


def check_unchanged(paths: Sequence[str], digests: Sequence[str]) -> None:
    """Raise if a file has another SHA-256 now."""
    for path, digest in zip(paths, digests, strict=True):
        if recorded_sha256(Path(path)) != digest:
            raise InputError(f"{path}: was changed while it was tokenized: start again")


def _signature(path: Path) -> tuple[int, int, int, int]:
    try:
        status = os.stat(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    return status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns
