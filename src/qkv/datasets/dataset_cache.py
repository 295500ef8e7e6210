"""Locate the files of a dataset in user folders and the cache, and download missing ones."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

from qkv.errors import InputError
from qkv.runtime.bars import Bars
from qkv.runtime.download import download
from qkv.runtime.files import cache_root, expand_home, sha256

DATA_VARIABLE = "QKV_DATA"


@dataclass(frozen=True)
class DataFile:
    """A file with a known SHA-256."""

    path: str  # relative to a data folder
    size: int  # bytes
    sha256: str
    url: str = ""  # that serves exactly these bytes; "": must be downloaded manually
    unpacked: "DataFile | None" = None  # the decompressed file, accepted as well


Sizes = Mapping[str, tuple[int, str]]  # file name -> (size in bytes, SHA-256)


def data_files(
    folder: str, files: Sizes, url: str = "", unpacked: Sizes = MappingProxyType({})
) -> tuple[DataFile, ...]:
    """Return the files of a dataset, whose names are appended to `folder` and `url`.

    `unpacked` has the decompressed files that are accepted instead of a .gz file.
    """
    plain = {f"{name}.gz": DataFile(f"{folder}/{name}", *entry) for name, entry in unpacked.items()}
    return tuple(
        DataFile(f"{folder}/{name}", *entry, f"{url}/{name}" if url else "", plain.get(name))
        for name, entry in files.items()
    )


@dataclass(frozen=True)
class DatasetCache:
    """Folders that are searched for dataset files, in this order; downloads go to the last."""

    folders: tuple[Path, ...]

    @classmethod
    def with_folder(cls, folder: str | Path | None = None) -> "DatasetCache":
        """Search `folder` (--data-dir), then $QKV_DATA, then the user's cache."""
        options = {"--data-dir, or data.folder of the recipe": folder, DATA_VARIABLE: os.environ.get(DATA_VARIABLE)}
        for option, path in options.items():
            if path and not expand_home(path).is_dir():
                raise InputError(f"{path}: no such folder (set by {option})")
        paths = [expand_home(path) for path in options.values() if path]
        return cls((*paths, cache_folder()))

    def find(self, file: DataFile) -> Path | None:
        """Return the path of a file, or None if it is missing; raise if its SHA-256 does not match."""
        for folder in self.folders:
            for candidate in (file, file.unpacked):
                if candidate is not None and (folder / candidate.path).exists():
                    _check_digest(folder / candidate.path, candidate)
                    return folder / candidate.path
        return None

    def fetch(self, name: str, files: Sequence[DataFile], license_name: str, origin: str) -> list[Path]:
        """Return the paths of files of a dataset, downloading missing ones.

        `origin` has the instructions for a manual download.
        """
        paths = [self.find(file) for file in files]
        missing = [file for file, path in zip(files, paths, strict=True) if path is None]
        into = self.folders[-1]
        manual = next((file for file in missing if not file.url), None)
        if manual is not None:
            searched = ", ".join(str(folder) for folder in self.folders)
            raise InputError(
                f"{name}: {manual.path} is not in {searched}, and must be downloaded manually: {origin} "
                f"Save it in {into} as {(manual.unpacked or manual).path}, or set another folder with --data-dir or "
                f"{DATA_VARIABLE}"
            )
        if missing:
            bars = Bars()
            size = sum(file.size for file in missing)
            bars.say(f"{name}: downloading {len(missing)} file(s), {size / 1e6:.1f} MB, into {into}")
            bars.say(f"{name}: license: {license_name}")
            for file in missing:
                with bars.byte_bar(Path(file.path).name, file.size) as progress:
                    download(file.url, into / file.path, digest=file.sha256, size=file.size, progress=progress)
        return [path or into / file.path for file, path in zip(files, paths, strict=True)]


def cache_folder() -> Path:
    """Return the folder of the user's cache of data files."""
    return cache_root() / "data"


def _check_digest(path: Path, file: DataFile) -> None:
    try:
        stat = path.stat()
        digest = _digest(path, stat.st_size, stat.st_mtime_ns) if stat.st_size == file.size else None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    if digest != file.sha256:
        actual = f"its SHA-256 is {digest}" if digest else f"it has {stat.st_size:,} bytes"
        expected = f"{file.sha256}" if digest else f"{file.size:,}"
        fix = "delete it to download it again" if file.url else "replace it with the right file"
        raise InputError(f"{path}: unexpected content: {actual}, expected {expected}; {fix}")


@lru_cache(maxsize=1024)
def _digest(path: Path, size: int, changed: int) -> str:
    """SHA-256 of a file, cached until its size or modification time changes."""
    return sha256(path)
