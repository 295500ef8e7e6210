"""Text files of any length, read a few lines at a time."""

import codecs
import hashlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from qkv.datasets.sniff import binary_kind
from qkv.errors import InputError
from qkv.runtime.files import open_regular

MAX_LINE_BYTES = 2**26
MAGIC_BYTES = 16  # from which the kind of a binary file is recognized


class LineFile:
    """The lines of a UTF-8 file, which end as in `decode_lines`. It is read once to check and to count them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = self.blank_count = 0
        self.first_blank: int | None = None  # number of the first blank line
        digest = hashlib.sha256()
        for line in self._lines(digest):
            self.count += 1
            if not line.strip():
                self.blank_count += 1
                self.first_blank = self.first_blank or self.count
        self.sha256 = digest.hexdigest()
        if self.blank_count == self.count:
            raise InputError(f"{path}: is empty")

    def chunks(self, size: int, first: int = 0) -> Iterator[tuple[int, list[str]]]:
        """Yield (index of the first line, lines) for every `size` lines, from line `first` on."""
        lines = islice(self._lines(), first, None)
        while chunk := list(islice(lines, size)):
            yield first, chunk
            first += len(chunk)

    def _lines(self, digest: Any = None) -> Iterator[str]:
        """Yield the lines, and update a hash with their bytes."""
        with open_regular(self.path) as file:
            offset = number = 0
            while data := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(data) > MAX_LINE_BYTES:
                    raise InputError(f"{self.path}: line {number} is longer than {MAX_LINE_BYTES // 2**20} MiB")
                if digest is not None:
                    digest.update(data)
                line = self._decode(data, number, offset)
                if number == 1 and not line.endswith("\n"):  # a text without LF: its lines may end with CR
                    yield from line.removesuffix("\r").split("\r")
                    return
                yield line.removesuffix("\n").removesuffix("\r")
                offset += len(data)

    def _decode(self, data: bytes, number: int, offset: int) -> str:
        try:
            text = data.removeprefix(codecs.BOM_UTF8).decode() if number == 1 else data.decode()
        except UnicodeDecodeError as error:
            start = error.start + (3 if number == 1 and data.startswith(codecs.BOM_UTF8) else 0)
            self._raise_if_binary()
            raise InputError(
                f"{self.path}: not UTF-8 at byte {offset + start} (0x{data[start]:02x}), line {number}: convert it "
                "first, e.g. with iconv"
            ) from None
        if (start := data.find(b"\0")) >= 0:
            self._raise_if_binary()
            raise InputError(
                f"{self.path}: is a binary file (NUL at byte {offset + start}, line {number}), expected text in UTF-8"
            )
        return text

    def _raise_if_binary(self) -> None:
        with open_regular(self.path) as file:
            if kind := binary_kind(file.read(MAGIC_BYTES)):
                raise InputError(f"{self.path}: is a binary file ({kind}), expected text")
