"""Text files of any length, read a few lines at a time."""

import codecs
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from qkv.datasets.sniff import binary_kind
from qkv.errors import InputError
from qkv.runtime.files import open_regular

MAX_LINE_BYTES = 2**26
MAGIC_BYTES = 16  # from which the kind of a binary file is recognized


@dataclass(frozen=True)
class Span:
    """Consecutive lines of a file, which another process can read without the lines before them."""

    path: str
    first: int  # index of the first line
    count: int
    offset: int  # of the first line, in bytes; 0 if the lines before it must be read (they end with CR)
    sha256: str  # of the lines

    def read(self) -> list[str]:
        """Return the lines; raise if they are not those that the span was created from."""
        skipped = 0 if self.offset else self.first
        lines = (line for _, line in _read(Path(self.path), offset=self.offset, number=self.first - skipped))
        texts = list(islice(lines, skipped, skipped + self.count))
        if _sha256(texts) != self.sha256:
            raise InputError(f"{self.path}: has changed since the job was started, or is another file on this machine")
        return texts


class LineFile:
    """The lines of a UTF-8 file, which end as in `decode_lines`. It is read once to check and to count them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = self.blank_count = 0
        self.first_blank: int | None = None  # number of the first blank line
        digest = hashlib.sha256()
        for _, line in _read(path, digest):
            self.count += 1
            if not line.strip():
                self.blank_count += 1
                self.first_blank = self.first_blank or self.count
        self.sha256 = digest.hexdigest()
        if self.blank_count == self.count:
            raise InputError(f"{path}: is empty")

    def spans(self, size: int, first: int = 0) -> Iterator[Span]:
        """Yield every `size` lines, from line `first` on."""
        path = str(self.path.absolute())
        lines = islice(_read(self.path), first, None)
        while chunk := list(islice(lines, size)):
            yield Span(path, first, len(chunk), chunk[0][0], _sha256([line for _, line in chunk]))
            first += len(chunk)


def _read(path: Path, digest: Any = None, offset: int = 0, number: int = 0) -> Iterator[tuple[int, str]]:
    """Yield (offset in bytes, line) from an offset on, before which there are `number` lines; update a hash."""
    with open_regular(path) as file:
        file.seek(offset)
        while data := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(data) > MAX_LINE_BYTES:
                raise InputError(f"{path}: line {number} is longer than {MAX_LINE_BYTES // 2**20} MiB")
            if digest is not None:
                digest.update(data)
            line = _decode(path, data, number, offset)
            if number == 1 and not line.endswith("\n"):  # a text without LF: its lines may end with CR
                yield from ((0, part) for part in line.removesuffix("\r").split("\r"))
                return
            yield offset, line.removesuffix("\n").removesuffix("\r")
            offset += len(data)


def _decode(path: Path, data: bytes, number: int, offset: int) -> str:
    try:
        text = data.removeprefix(codecs.BOM_UTF8).decode() if number == 1 else data.decode()
    except UnicodeDecodeError as error:
        start = error.start + (3 if number == 1 and data.startswith(codecs.BOM_UTF8) else 0)
        _raise_if_binary(path)
        raise InputError(
            f"{path}: not UTF-8 at byte {offset + start} (0x{data[start]:02x}), line {number}: convert it first, e.g. "
            "with iconv"
        ) from None
    if (start := data.find(b"\0")) >= 0:
        _raise_if_binary(path)
        raise InputError(
            f"{path}: is a binary file (NUL at byte {offset + start}, line {number}), expected text in UTF-8"
        )
    return text


def _raise_if_binary(path: Path) -> None:
    with open_regular(path) as file:
        if kind := binary_kind(file.read(MAGIC_BYTES)):
            raise InputError(f"{path}: is a binary file ({kind}), expected text")


def _sha256(lines: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
