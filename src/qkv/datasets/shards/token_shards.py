"""Tokenized text on disk: files of token ids (shards) with an index, built in parallel and read in slices.

    FOLDER/index.json        number of tokens and SHA-256 of every shard, and what they were built from
    FOLDER/00000.tokens      token ids, as little-endian integers of the smallest type that holds the vocabulary
    FOLDER/tokenizer.json    the tokenizer, and other files of it

A shard is complete once its record is written, so a build that was killed continues after the last complete shard.
Slices are read with `pread`, not mapped: mapped pages count as resident memory, and reading a mapped file that was
truncated ends the process.
"""

import hashlib
import os
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from json import dumps
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

import numpy as np
from jaxtyping import Int64
from numpy import ndarray
from pydantic import Field, Strict

from qkv.config import Config, build
from qkv.datasets.shards.text_source import BLOCK_BYTES, Part, TextSource
from qkv.errors import InputError, QkvError
from qkv.registry import load_plugins, loaded_plugins
from qkv.runtime.bars import Bars
from qkv.runtime.documents import read_object
from qkv.runtime.files import name_output_errors, open_regular, remove_scratch, scratch_file, sha256, write_atomically
from qkv.runtime.portable import cpu_count
from qkv.runtime.processes import ProcessPool

INDEX = "index.json"
VERSION = 1  # of the format, and of the way texts are split
MIN_SHARD_BYTES = 2**24  # of text
MAX_SHARDS = 256  # each is an open file
EDGE_BYTES = 2**12  # at both ends of a shard, checked when it is opened
MAX_TOKENS = 2**48

Count = Annotated[int, Field(ge=0, lt=MAX_TOKENS)]
Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class Encoder(Protocol):
    """The part of a tokenizer that is needed here."""

    def encode(self, texts: Sequence[str]) -> list[list[int]]: ...

    def __len__(self) -> int: ...


class Shard(Config):
    """Record of a shard."""

    tokens: Count
    documents: Count
    sha256: Digest
    edges: Digest  # SHA-256 of the first and the last EDGE_BYTES


class ShardIndex(Config):
    """The shards of a text."""

    version: Literal[1]
    dtype: Literal["uint8", "uint16", "uint32"]
    text: Digest  # SHA-256 of the files
    files: Annotated[tuple[str, ...], Strict(False)]  # the first of them
    bytes: Count  # of all files
    tokenizer: str
    documents: bool  # whether each document was tokenized on its own, with an end token
    shards: Annotated[tuple[Shard, ...], Strict(False)]

    @property
    def tokens(self) -> int:
        """Number of tokens."""
        return sum(shard.tokens for shard in self.shards)

    @property
    def shard_bytes(self) -> int:
        """Size of the shards."""
        return self.tokens * np.dtype(self.dtype).itemsize


class TokenShards:
    """The tokens of all shards as one read-only array; slices of it are read from the files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.index = read_index(folder)
        self.dtype = np.dtype(self.index.dtype).newbyteorder("<")
        self._ends = np.cumsum([shard.tokens for shard in self.index.shards])
        self._files = [self._open(number) for number in range(len(self.index.shards))]
        self._close = weakref.finalize(self, _close, self._files)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getitem__(self, span: slice) -> Int64[ndarray, "tokens"]:
        """Return a copy of some consecutive tokens."""
        begin, end, _ = span.indices(len(self))
        parts = []
        for number in range(int(np.searchsorted(self._ends, begin, side="right")), len(self._files)):
            first = int(self._ends[number]) - self.index.shards[number].tokens
            if begin >= end:
                break
            stop = min(end, int(self._ends[number]))
            parts.append(self._read(number, begin - first, stop - first))
            begin = stop
        return np.concatenate(parts, dtype=np.int64) if parts else np.empty(0, np.int64)

    def _open(self, number: int) -> int:
        """Open a shard, after checking its size and its ends."""
        path, shard = shard_path(self.folder, number), self.index.shards[number]
        with open_regular(path) as file:
            size, expected = os.fstat(file.fileno()).st_size, shard.tokens * self.dtype.itemsize
            if size != expected:
                raise InputError(f"{path}: has {size:,} bytes, expected {expected:,}; {REBUILD}")
            if _edges(file.fileno(), size) != shard.edges:
                raise InputError(f"{path}: is damaged or another file; {REBUILD}")
            return os.dup(file.fileno())

    def _read(self, number: int, begin: int, end: int) -> ndarray:
        size = self.dtype.itemsize
        data = os.pread(self._files[number], (end - begin) * size, begin * size)
        if len(data) < (end - begin) * size:
            raise InputError(f"{shard_path(self.folder, number)}: was truncated; {REBUILD}")
        return np.frombuffer(data, dtype=self.dtype)


REBUILD = "rebuild it with qkv data prepare RECIPE --data FILE --rebuild"


def read_index(folder: Path) -> ShardIndex:
    """Read and check the index of a folder."""
    path = folder / INDEX
    return build(ShardIndex, read_object(path), str(path))


def shard_path(folder: Path, number: int) -> Path:
    """Return the path of a shard."""
    return folder / f"{number:05}.tokens"


@dataclass(frozen=True)
class BuildPlan:
    """What shards are built from."""

    source: TextSource
    groups: list[list[Part]]  # the parts of each shard
    load_tokenizer: Callable[[], Encoder | None]  # called in each worker process
    dtype: str
    end: int | None  # token after each document; None: running text


class ShardWriter:
    """Tokenizes text into shards."""

    def __init__(self, folder: Path, plan: BuildPlan) -> None:
        self.folder, self.plan = folder, plan
        tokenizer = plan.load_tokenizer()
        assert tokenizer is not None
        self.tokenizer = tokenizer

    def write(self, number: int) -> Shard:
        """Write a shard, and then its record."""
        path = shard_path(self.folder, number)
        dtype = np.dtype(self.plan.dtype).newbyteorder("<")
        digest, tokens, documents = hashlib.sha256(), 0, 0
        with name_output_errors(path), scratch_file(path) as file:
            for texts in _batches(self._texts(self.plan.groups[number])):
                suffix = [] if self.plan.end is None else [self.plan.end]
                ids = np.concatenate([np.array(ids + suffix, dtype=dtype) for ids in self.tokenizer.encode(texts)])
                data = ids.tobytes()
                digest.update(data)
                file.write(data)
                tokens, documents = tokens + len(ids), documents + len(texts)
            file.flush()
            edges = _edges(file.fileno(), tokens * dtype.itemsize)
        if self.plan.end is None:
            documents = 0
        shard = Shard(tokens=tokens, documents=documents, sha256=digest.hexdigest(), edges=edges)
        write_atomically(_record_path(self.folder, number), dumps(shard.to_dict()).encode())
        return shard

    def _texts(self, parts: Sequence[Part]) -> Iterator[str]:
        read = self.plan.source.pieces if self.plan.end is None else self.plan.source.documents
        return (text for part in parts for text in read(part))


def build_shards(
    folder: Path, plan: BuildPlan, index: Mapping[str, Any], workers: int | None, check: Callable[[], None]
) -> None:
    """Write the shards that are missing in a folder, in parallel, and then, after a check, the index.

    `index` has those of its values that are not known here.
    """
    shards = {number: shard for number in range(len(plan.groups)) if (shard := _complete(folder, number, plan))}
    missing = [number for number in range(len(plan.groups)) if number not in shards]
    count = min(workers or cpu_count(), len(missing))
    bars = Bars()
    total = plan.source.bytes
    bars.say(f"tokenizing {total / 1e6:,.0f} MB of text in {count or 1} process(es) into {folder}")
    began = time.monotonic()
    with bars.byte_bar("tokenizing", total) as progress:
        for number, shard in _written(folder, plan, missing, count):
            shards[number] = shard
            progress(total * len(shards) // len(plan.groups))
    try:
        check()
    except InputError:
        for number in shards:
            _record_path(folder, number).unlink(missing_ok=True)
        raise
    records = [shards[number].to_dict() for number in range(len(plan.groups))]
    values = {"version": VERSION, "dtype": plan.dtype, "documents": plan.end is not None, "shards": records, **index}
    complete = build(ShardIndex, values, INDEX)
    write_atomically(folder / INDEX, dumps(complete.to_dict(), indent=1).encode())
    for number in shards:
        _record_path(folder, number).unlink(missing_ok=True)
    seconds = time.monotonic() - began
    bars.say(f"{complete.tokens:,} tokens in {len(records)} shard(s), {seconds:.0f} s")


def damaged_shards(folder: Path, progress: Callable[[int], None] = lambda done: None) -> list[int]:
    """Return the shards that are missing or whose SHA-256 has changed, by reading all; `progress` gets their number."""
    numbers = []
    for number, shard in enumerate(read_index(folder).shards):
        path = shard_path(folder, number)
        if not path.is_file() or sha256(path) != shard.sha256:
            numbers.append(number)
        progress(number + 1)
    return numbers


def discard_shards(folder: Path, numbers: Sequence[int]) -> None:
    """Remove shards and the index, so that a build writes these shards again and keeps the others."""
    for number, shard in enumerate(read_index(folder).shards):
        if number not in numbers:
            write_atomically(_record_path(folder, number), dumps(shard.to_dict()).encode())
    (folder / INDEX).unlink()
    for number in numbers:
        shard_path(folder, number).unlink(missing_ok=True)


_writer: ShardWriter  # of a worker process


def _start_worker(folder: Path, plan: BuildPlan, plugins: Sequence[Path | str]) -> None:
    global _writer
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    load_plugins(plugins)
    _writer = ShardWriter(folder, plan)


def _write_in_worker(number: int) -> tuple[int, Shard]:
    return number, _writer.write(number)


def _written(folder: Path, plan: BuildPlan, numbers: Sequence[int], workers: int) -> Iterator[tuple[int, Shard]]:
    """Write shards, and yield each with its number when it is complete."""
    if workers <= 1:
        writer = ShardWriter(folder, plan)
        yield from ((number, writer.write(number)) for number in numbers)
        return
    from qkv.runtime.memory import trim_heap  # imports torch

    trim_heap()  # training the tokenizer has left free memory, and the workers need theirs
    with ProcessPool(workers, _start_worker, (folder, plan, loaded_plugins())) as pool:
        try:
            for future in as_completed([pool.submit(_write_in_worker, number) for number in numbers]):
                yield future.result()
        except BrokenProcessPool:
            raise QkvError(
                "a process that tokenizes was killed, perhaps for lack of memory: start again to continue, with fewer "
                "processes if need be (qkv data prepare --workers 1)"
            ) from None


def _complete(folder: Path, number: int, plan: BuildPlan) -> Shard | None:
    """Return the record of a shard that was completed before; None if there is none."""
    path = shard_path(folder, number)
    remove_scratch(path)
    with suppress(InputError, OSError):
        record = _record_path(folder, number)
        shard = build(Shard, read_object(record), str(record))
        if path.stat().st_size == shard.tokens * np.dtype(plan.dtype).itemsize:
            return shard
    return None


def _record_path(folder: Path, number: int) -> Path:
    return folder / f"{number:05}.json"


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    """Yield lists of texts of about BLOCK_BYTES characters."""
    batch: list[str] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size >= BLOCK_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _edges(file: int, size: int) -> str:
    """Return the SHA-256 of the first and the last bytes of a file."""
    first, last = (os.pread(file, EDGE_BYTES, offset) for offset in (0, max(0, size - EDGE_BYTES)))
    return hashlib.sha256(first + last).hexdigest()


def _close(files: Sequence[int]) -> None:
    for file in files:
        os.close(file)
