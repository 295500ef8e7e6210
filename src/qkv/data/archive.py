"""What is inside a packed file, as far as a limit on its size allows: a few kilobytes can unpack to many gigabytes."""

import gzip
import zipfile
import zlib
from pathlib import Path

from qkv.errors import InputError

LARGEST = 256 * 2**20  # bytes


def unpack(path: Path, member: str | None = None, limit: int = LARGEST) -> bytes:
    """The bytes of a .gz file, of one member of a .zip file, or of a file that is not packed."""
    try:
        if path.suffix == ".gz":
            with gzip.open(path) as file:
                data = file.read(limit + 1)
        elif path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive, archive.open(member or archive.namelist()[0]) as inside:
                data = inside.read(limit + 1)
        else:
            with path.open("rb") as plain:
                data = plain.read(limit + 1)
    except (EOFError, zlib.error, zipfile.BadZipFile, KeyError, IndexError, NotImplementedError, RuntimeError) as error:
        raise InputError(f"{path}: cut short or altered: {error}") from None
    except OSError as error:  # BadGzipFile too, which has no strerror
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    if len(data) > limit:
        raise InputError(f"{path}: holds more than {limit:,} bytes, which is more than is read")
    return data
