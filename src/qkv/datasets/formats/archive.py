"""Read compressed files up to a size limit, as protection against decompression bombs."""

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
from qkv.runtime.text import printable

LARGEST = 256 * 2**20  # bytes


def unpack(path: Path, member: str | None = None, limit: int = LARGEST) -> bytes:
    """Return the content of a .gz file, of one member of a .zip, .npz or .tgz file, or of an uncompressed file."""
    with _open(path) as file:
        if path.suffix == ".gz":
            return _read(gzip.open(file), path, limit)
        if path.suffix in (".zip", ".npz"):
            with zipfile.ZipFile(file) as archive:
                return _read(archive.open(member or archive.namelist()[0]), path, limit)
        if path.suffix == ".tgz":
            with tarfile.open(fileobj=file, mode="r:gz") as tar:
                extracted = tar.extractfile(member or tar.getnames()[0])
                return _read(extracted or io.BytesIO(), path, limit)
        return _read(file, path, limit)


def unpack_members(path: Path, select: Callable[[str], bool], limit: int = LARGEST) -> dict[str, bytes]:
    """Return the contents of the selected members of a .zip file by name, at most `limit` bytes in total."""
    members: dict[str, bytes] = {}
    with _open(path) as file, zipfile.ZipFile(file) as archive:
        for name in filter(select, archive.namelist()):
            members[name] = _read(archive.open(name), path, limit)
            limit -= len(members[name])
    return members


def tar_members(path: Path, largest: int = LARGEST) -> Iterator[tuple[str, bytes]]:
    """Yield the name and content of each file of an uncompressed .tar file in order, without unpacking it.

    A file of more than `largest` bytes is an error before it is read.
    """
    with _open(path) as file, tarfile.open(fileobj=file, mode="r:") as tar:
        for member in tar:
            if not member.isfile():
                continue
            if member.size > largest:
                raise InputError(
                    f"{path}: {printable(member.name, 80)} has {member.size:,} bytes, more than {largest:,}"
                )
            extracted = tar.extractfile(member)
            yield member.name, _read(extracted or io.BytesIO(), path, largest)


@contextmanager
def _open(path: Path) -> Iterator[IO[bytes]]:
    """Open a regular file; damaged content raises InputError."""
    with open_regular(path) as file:
        try:
            yield file
        except (EOFError, zlib.error, zipfile.BadZipFile, tarfile.TarError, LookupError, RuntimeError) as error:
            raise InputError(f"{path}: truncated or corrupt: {error}") from None
        except OSError as error:  # BadGzipFile too, which has no strerror
            raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None


def _read(file: IO[bytes] | gzip.GzipFile, path: Path, limit: int) -> bytes:
    with file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise InputError(f"{path}: decompresses to more than the limit of {limit:,} bytes")
    return data
