"""Text of any size in files of the user, read in parts with constant memory.

Files are plain text, JSON Lines, a JSON array of objects, each of them perhaps compressed (.gz, .zst), tables
(.parquet, .arrow), or a folder written by `datasets.Dataset.save_to_disk`. A part is a range of a file: bytes of a
text, rows of a table. Where a text is split depends on the file alone, so that other processes can read its parts,
each without the others.
"""

import codecs
import glob
import gzip
import os
import re
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, NamedTuple

from qkv.datasets.formats.sniff import binary_kind
from qkv.datasets.formats.tables import JSON, JSON_LINES, is_json_array, parse_json, parse_json_array
from qkv.errors import InputError
from qkv.runtime.files import open_regular
from qkv.runtime.text import printable_repr

BLOCK_BYTES = 2**18  # of text that is read at a time
WINDOW_BYTES = 2**12  # first searched for a position to split at
ROWS = 256  # of a table that are read at a time
MAX_FILES = 100_000
DOCUMENT_END = "\n\n"  # between documents in running text
BLANK_LINE = re.compile(r"\n\s*\n")


class Splitter(NamedTuple):
    """Where a text can be split."""

    pattern: re.Pattern[str]
    after: bool  # split after the match, not before it
    max_bytes: int  # searched; then the text is split between two characters
    strict: bool = False  # raise instead


# Tokenizers treat a space as the start of a word, so the tokens on both sides are those of the undivided text.
SPACES = Splitter(re.compile(r"(?<=\S) (?=\S)"), after=False, max_bytes=2**16)
BLANK_LINES = Splitter(BLANK_LINE, after=True, max_bytes=2**20)
LINES = Splitter(re.compile("\n"), after=True, max_bytes=2**26, strict=True)


@dataclass(frozen=True)
class Part:
    """A range of a file."""

    path: str
    begin: int  # byte of a text, or row of a table
    end: int | None  # None: the end of the file
    followed: bool = False  # whether another file follows its end


class TextFile(ABC):
    """The texts in a file."""

    def __init__(self, path: Path, column: str) -> None:
        self.path, self.column = path, column

    @property
    def bytes(self) -> int:
        """Size of the file; 0 if it cannot be read."""
        return self.path.stat().st_size if self.path.is_file() else 0

    @property
    @abstractmethod
    def extent(self) -> int | None:
        """Number of bytes or rows; None if that is known only at the end."""

    @abstractmethod
    def documents(self, begin: int, end: int | None) -> Iterator[str]:
        """Yield the documents of a part."""

    def pieces(self, begin: int, end: int | None) -> Iterator[str]:
        """Yield running text, with an empty line between documents."""
        return (document + DOCUMENT_END for document in self.documents(begin, end))

    def position(self, size: int) -> int:
        """Return the end of the first `size` bytes of text."""
        return size

    def _text(self, value: object, where: str) -> str:
        """Return the text of a JSON object or a row."""
        text = value.get(self.column) if isinstance(value, dict) else None
        if isinstance(text, str):
            return text
        keys = f"; it has {', '.join(map(str, value))[:200]}" if isinstance(value, dict) else ""
        raise InputError(f"{where}: no text in {printable_repr(self.column)}{keys}: set data.column")


class PlainText(TextFile):
    """Running text in UTF-8; empty lines separate documents."""

    @property
    def extent(self) -> int | None:
        return None if self.path.suffix.lower() in COMPRESSIONS else self.bytes

    def documents(self, begin: int, end: int | None) -> Iterator[str]:
        for block in self._blocks(begin, end, BLANK_LINES):
            yield from (text for text in BLANK_LINE.split(block) if text.strip())

    def pieces(self, begin: int, end: int | None) -> Iterator[str]:
        return self._blocks(begin, end, SPACES)

    def _blocks(self, begin: int, end: int | None, splitter: Splitter) -> Iterator[str]:
        """Yield the text in blocks of about BLOCK_BYTES, decoded."""
        try:
            with self._open() as stream:
                yield from BlockReader(stream, str(self.path), splitter, begin).blocks(end)
        except (EOFError, zlib.error, OSError) as error:  # of a compressed file
            raise InputError(f"{self.path}: cannot be read: {error}") from None

    def _open(self) -> IO[bytes]:
        return COMPRESSIONS.get(self.path.suffix.lower(), open_regular)(self.path)


class JsonLines(PlainText):
    """One document per line, in the field `column` of a JSON object."""

    def documents(self, begin: int, end: int | None) -> Iterator[str]:
        for block in self._blocks(begin, end, LINES):
            for line in block.splitlines() if "\r" in block else block.split("\n"):
                if line.strip():
                    where = f"{self.path}: {printable_repr(line[:60])}"
                    if (text := self._text(parse_json(line, where), where)).strip():
                        yield text

    def pieces(self, begin: int, end: int | None) -> Iterator[str]:
        return TextFile.pieces(self, begin, end)


class Table(TextFile):
    """One document per row, in the column `column`."""

    @property
    @abstractmethod
    def extent(self) -> int: ...

    @abstractmethod
    def rows(self, begin: int, end: int) -> Iterator[Sequence[str | None]]:
        """Yield the values of the column from row `begin` to `end`."""

    def documents(self, begin: int, end: int | None) -> Iterator[str]:
        for values in self.rows(begin, self.extent if end is None else end):
            for text in values:
                if text is not None and self._text({self.column: text}, str(self.path)).strip():
                    yield text

    def position(self, size: int) -> int:
        rows = 0
        for values in self.rows(0, self.extent):
            for text in values:
                if size <= 0:
                    return rows
                rows, size = rows + 1, size - len(text or "")
        return rows

    def _require_column(self, columns: Sequence[str]) -> None:
        if self.column not in columns:
            self._text(dict.fromkeys(columns), str(self.path))


class JsonArray(Table):
    """A JSON array with one document per object, in the field `column`; the file is read whole."""

    @staticmethod
    def detect(path: Path) -> bool:
        """Return whether a file with JSON holds an array."""
        return path.is_file() and is_json_array(next(PlainText(path, "").pieces(0, None), ""))

    @property
    def extent(self) -> int:
        return len(self._entries())

    def rows(self, begin: int, end: int) -> Iterator[Sequence[str | None]]:
        entries = enumerate(self._entries()[begin:end], start=begin + 1)
        yield [self._text(entry, f"{self.path}: entry {number}") for number, entry in entries]

    def _entries(self) -> list[dict[str, Any]]:
        return parse_json_array("".join(PlainText(self.path, "").pieces(0, None)), str(self.path))


class Parquet(Table):
    """A Parquet file."""

    @property
    def extent(self) -> int:
        return int(self._open().metadata.num_rows)

    def rows(self, begin: int, end: int) -> Iterator[Sequence[str | None]]:
        file = self._open()
        self._require_column(file.schema_arrow.names)
        first = 0
        for group in range(file.num_row_groups):
            count = file.metadata.row_group(group).num_rows
            if first < end and first + count > begin:
                batches = file.iter_batches(ROWS, row_groups=[group], columns=[self.column])
                yield from _rows_between(batches, self.column, begin - first, end - first)
            first += count

    def _open(self) -> Any:
        parquet = _import("pyarrow.parquet", self.path)
        with _arrow_errors(self.path):
            return parquet.ParquetFile(self.path)


class Arrow(Table):
    """An Arrow IPC file or stream."""

    @property
    def extent(self) -> int:
        return sum(batch.num_rows for batch in self._batches())

    def rows(self, begin: int, end: int) -> Iterator[Sequence[str | None]]:
        yield from _rows_between(self._batches(), self.column, begin, end)

    def _batches(self) -> Iterator[Any]:
        pyarrow = _import("pyarrow", self.path)
        with _arrow_errors(self.path), pyarrow.memory_map(str(self.path)) as source:
            try:
                reader = pyarrow.ipc.open_stream(source)
                batches: Iterable[Any] = reader
            except pyarrow.ArrowInvalid:
                reader = pyarrow.ipc.open_file(source)
                batches = (reader.get_batch(number) for number in range(reader.num_record_batches))
            self._require_column(reader.schema.names)
            yield from batches


class SavedDataset(Table):
    """A folder written by `datasets.Dataset.save_to_disk`."""

    @property
    def bytes(self) -> int:
        return sum(path.stat().st_size for path in files_of(self.path))

    @property
    def extent(self) -> int:
        return len(self._open())

    def rows(self, begin: int, end: int) -> Iterator[Sequence[str | None]]:
        dataset = self._open()
        self._require_column(dataset.column_names)
        dataset = dataset.select_columns(self.column)
        for first in range(begin, end, ROWS):
            yield dataset[first : min(first + ROWS, end)][self.column]

    def _open(self) -> Any:
        datasets = _import("datasets", self.path)
        if (self.path / SAVED_SPLITS).exists():
            raise InputError(f"{self.path}: has several splits: pass the folder of one, e.g. {self.path / 'train'}")
        try:
            return datasets.load_from_disk(str(self.path))
        except (ValueError, OSError, KeyError, TypeError) as error:
            raise InputError(f"{self.path}: not a dataset of the datasets library: {error}") from None


class BlockReader:
    """Reads UTF-8 text from a stream, from `begin` on, in blocks that end where the text can be split."""

    def __init__(self, stream: IO[bytes], name: str, splitter: Splitter, begin: int) -> None:
        self.stream, self.name, self.splitter = stream, name, splitter
        self.begin = begin
        self.start, self.buffer = begin, b""  # the offset and the bytes that were read and not yet returned
        if stream.seekable():
            stream.seek(begin)
        else:
            while begin > 0 and (skipped := len(stream.read(min(begin, BLOCK_BYTES)))):
                begin -= skipped

    def blocks(self, end: int | None) -> Iterator[str]:
        """Yield the text to the first split at or after `end`."""
        position, nominal = self.split_after(self.begin), self.begin
        while end is None or nominal < end:
            nominal = nominal + BLOCK_BYTES if end is None else min(nominal + BLOCK_BYTES, end)
            stop = self.split_after(nominal)
            data = self.buffer[position - self.start : stop - self.start]
            if not data and not self._fill(nominal + 1):
                return
            done = min(len(self.buffer), max(0, nominal - self.start))
            self.buffer, self.start = self.buffer[done:], self.start + done
            if data:
                yield self._decode(data, position)
            position = stop

    def split_after(self, position: int) -> int:
        """Return the offset of the first split at or after `position`; the text begins and ends with one."""
        if position == 0:
            return 0
        lead = 0
        for size in (WINDOW_BYTES, self.splitter.max_bytes):
            complete = self._fill(position + size)
            window = self.buffer[position - self.start : position - self.start + size]
            lead = next((index for index, byte in enumerate(window[:4]) if byte & 0xC0 != 0x80), 0)
            text = window[lead:].decode("utf-8", "ignore")
            match = self.splitter.pattern.search(text)
            if match is not None and (not complete or match.end() < len(text.rstrip())):
                before = text[: match.end() if self.splitter.after else match.start()]
                return position + lead + len(before.encode())
            if not complete:
                return self.start + len(self.buffer)
        if self.splitter.strict:
            limit = self.splitter.max_bytes // 2**20
            raise InputError(f"{self.name}: a line after byte {position} is longer than {limit} MiB")
        return position + lead

    def _fill(self, stop: int) -> bool:
        """Read up to the offset `stop`; return whether the text has that many bytes."""
        while (missing := stop - self.start - len(self.buffer)) > 0:
            data = self.stream.read(max(missing, BLOCK_BYTES))
            if not data:
                return False
            self.buffer += data
        return True

    def _decode(self, data: bytes, offset: int) -> str:
        try:
            text = data.decode("utf-8-sig" if offset == 0 else "utf-8")
        except UnicodeDecodeError as error:
            at = offset + error.start + (3 if offset == 0 and data.startswith(codecs.BOM_UTF8) else 0)
            raise InputError(f"{self.name}: not UTF-8 at byte {at}: convert it first, e.g. with iconv") from None
        if "\0" in text:
            kind = binary_kind(data) if offset == 0 else ""
            raise InputError(f"{self.name}: contains NUL: is it a binary file{f' ({kind})' if kind else ''}?")
        return text


def _open_gzip(path: Path) -> IO[bytes]:
    return gzip.GzipFile(fileobj=open_regular(path))  # type: ignore[return-value]


def _open_zstandard(path: Path) -> IO[bytes]:
    stream: IO[bytes] = _import("pyarrow", path).CompressedInputStream(open_regular(path), "zstd")
    return stream


COMPRESSIONS = {".gz": _open_gzip, ".zst": _open_zstandard}
FORMATS: dict[str, type[TextFile]] = {**dict.fromkeys(JSON_LINES, JsonLines), ".parquet": Parquet, ".arrow": Arrow}
SAVED, SAVED_SPLITS = "state.json", "dataset_dict.json"  # in folders of `datasets`


def open_text(path: str | Path, column: str) -> TextFile:
    """Return the reader of a file, by its name; a JSON file is an array, or else plain text."""
    path = Path(path)
    if path.is_dir():
        return SavedDataset(path, column)
    name = path.with_suffix("") if path.suffix.lower() in COMPRESSIONS else path
    if name.suffix.lower() == JSON and JsonArray.detect(path):
        return JsonArray(path, column)
    return FORMATS.get(name.suffix.lower(), PlainText)(path, column)


def find_files(paths: Iterable[str | Path]) -> list[Path]:
    """Return the files of paths, folders (all files in them) and patterns such as `part-*.txt`, sorted within each."""
    files: list[Path] = []
    for path in map(Path, paths):
        matches = [path]
        if not os.path.lexists(path) and glob.has_magic(str(path)):
            matches = sorted(map(Path, glob.iglob(str(path), recursive=True)))
        for match in matches:
            saved = any((match / name).exists() for name in (SAVED, SAVED_SPLITS))
            files += [match] if saved or not match.is_dir() else files_below(match)
        if not files:
            raise InputError(f"{path}: no files found")
        if len(files) > MAX_FILES:
            raise InputError(f"{path}: more than {MAX_FILES:,} files")
    return files


def files_of(path: Path) -> list[Path]:
    """Return a file, or the files in a folder."""
    return files_below(path) if path.is_dir() else [path]


@dataclass(frozen=True)
class TextSource:
    """The files of a text."""

    files: tuple[str, ...]
    column: str = "text"  # of JSON Lines and tables

    @property
    def bytes(self) -> int:
        """Size of all files."""
        return sum(open_text(path, self.column).bytes for path in self.files)

    def split(self, size: int) -> tuple[list[Part], list[Part]]:
        """Return the parts with the first `size` bytes, and those with the rest."""
        head, rest = [], []
        for number, path in enumerate(self.files):
            file, followed = open_text(path, self.column), number + 1 < len(self.files)
            if size >= file.bytes and followed:
                head.append(Part(path, 0, file.extent, followed))
            else:
                begin = file.position(size) if size else 0
                head += [Part(path, 0, begin)] if begin else []
                rest.append(Part(path, begin, file.extent, followed))
            size = max(0, size - file.bytes)
        return head, rest

    def divide(self, parts: Sequence[Part], size: int) -> list[list[Part]]:
        """Divide parts into groups of about `size` bytes each; a compressed file is not divided."""
        groups: list[list[Part]] = []
        room = 0.0
        for part in parts:
            share, count = float(open_text(part.path, self.column).bytes), 1
            if part.end is not None:
                share *= (part.end - part.begin) / max(1, part.end)
                count = max(1, min(round(share / size), part.end - part.begin))
            for divided in _divide(part, count):
                if not groups or room < share / count / 2:
                    groups.append([])
                    room = size
                groups[-1].append(divided)
                room -= share / count
        return groups

    def documents(self, part: Part) -> Iterator[str]:
        """Yield the documents of a part."""
        return open_text(part.path, self.column).documents(part.begin, part.end)

    def pieces(self, part: Part) -> Iterator[str]:
        """Yield the running text of a part; a line ends at the end of a file that another follows."""
        pending = ""
        for piece in open_text(part.path, self.column).pieces(part.begin, part.end):
            if pending:
                yield pending
            pending = piece
        yield pending + "\n" * part.followed


def _divide(part: Part, count: int) -> Iterator[Part]:
    """Yield a part in `count` equal ranges."""
    if part.end is None or count == 1:
        yield part
        return
    bounds = [part.begin + (part.end - part.begin) * number // count for number in range(count + 1)]
    for begin, end in pairwise(bounds):
        yield replace(part, begin=begin, end=end, followed=part.followed and end == part.end)


def _rows_between(batches: Iterable[Any], column: str, begin: int, end: int) -> Iterator[Sequence[str | None]]:
    """Yield the values of rows `begin` to `end` of record batches."""
    first = 0
    for batch in batches:
        if first >= end:
            return
        skipped = max(0, begin - first)
        if skipped < batch.num_rows:
            yield batch.column(column).slice(skipped, min(batch.num_rows, end - first) - skipped).to_pylist()
        first += batch.num_rows


def files_below(folder: Path) -> list[Path]:
    """Return the files in a folder and its subfolders, except hidden ones."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.is_file() and not any(name.startswith(".") for name in path.relative_to(folder).parts)
    )


@contextmanager
def _arrow_errors(path: Path) -> Iterator[None]:
    """Turn errors of pyarrow into an InputError that names the file."""
    pyarrow = _import("pyarrow", path)
    try:
        yield
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from None


def _import(module: str, path: Path) -> Any:
    try:
        return import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        raise InputError(f"{path}: requires {package}, which is not installed: pip install 'qkv[datasets]'") from None
