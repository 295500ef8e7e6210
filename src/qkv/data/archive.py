"""Compressed files, read up to a size limit: a few kilobytes can decompress to many gigabytes."""

import gzip
import io
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from qkv.errors import InputError
from qkv.runtime.files import open_regular

LARGEST = 256 * 2**20  # bytes


def unpack(path: Path, member: str | None = None, limit: int = LARGEST) -> bytes:
    """The bytes of a .gz file, of one member of a .zip, .npz or .tgz file, or of a file that is not compressed."""
    with _opened(path) as file:
        if path.suffix == ".gz":
            return _read(gzip.open(file), path, limit)
        if path.suffix in (".zip", ".npz"):
            with zipfile.ZipFile(file) as archive:
                return _read(archive.open(member or archive.namelist()[0]), path, limit)
        if path.suffix == ".tgz":
            with tarfile.open(fileobj=file, mode="r:gz") as tar:
                inside = tar.extractfile(member or tar.getnames()[0])
                return _read(inside or io.BytesIO(), path, limit)
        return _read(file, path, limit)


def unpack_members(path: Path, wanted: Callable[[str], bool], limit: int = LARGEST) -> dict[str, bytes]:
    """The bytes of those members of a .zip file that are wanted, by their names; together at most `limit`."""
    found: dict[str, bytes] = {}
    with _opened(path) as file, zipfile.ZipFile(file) as archive:
        for name in filter(wanted, archive.namelist()):
            found[name] = _read(archive.open(name), path, limit)
            limit -= len(found[name])
    return found


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """A regular file, whose damage is an input error."""
    with open_regular(path) as file:
        try:
            yield file
        except (
            EOFError,
            zlib.error,
            zipfile.BadZipFile,
            tarfile.TarError,
            KeyError,
            IndexError,
            RuntimeError,
        ) as error:
            raise InputError(f"{path}: cut short or altered: {error}") from None
        except OSError as error:  # BadGzipFile too, which has no strerror
            raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None


def _read(file: IO[bytes] | gzip.GzipFile, path: Path, limit: int) -> bytes:
    with file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise InputError(f"{path}: decompresses to more than the limit of {limit:,} bytes")
    return data
