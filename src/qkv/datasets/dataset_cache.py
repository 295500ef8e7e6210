"""Locate the files of a dataset in user folders and the cache, and download missing ones."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from qkv.errors import InputError
from qkv.runtime.bars import Bars
from qkv.runtime.download import download
from qkv.runtime.files import expand_home, sha256

DATA_VARIABLE = "QKV_DATA"


@dataclass(frozen=True)
class DataFile:
    """A file with a known SHA-256."""

    path: str  # relative to a data folder
    sha256: str
    size: int  # bytes
    urls: tuple[str, ...] = ()  # that serve exactly these bytes
    unpacked: "DataFile | None" = None  # the decompressed file, accepted as well


@dataclass(frozen=True)
class DatasetInfo:
    """Name, license, origin and files of a dataset."""

    name: str
    license: str
    origin: str  # instructions for a manual download
    files: tuple[DataFile, ...]


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

    def fetch(self, info: DatasetInfo, files: Sequence[DataFile]) -> list[Path]:
        """Return the paths of these files of a dataset, downloading missing ones."""
        paths = {file: self.find(file) for file in files}
        missing = [file for file, path in paths.items() if path is None]
        if missing:
            paths |= self._download(info, missing)
        return [path for file in files if (path := paths[file]) is not None]

    def _download(self, info: DatasetInfo, files: Sequence[DataFile]) -> dict[DataFile, Path]:
        into = self.folders[-1]
        manual = next((file for file in files if not file.urls), None)
        if manual is not None:
            searched = ", ".join(str(folder) for folder in self.folders)
            raise InputError(
                f"{info.name}: {manual.path} is not in {searched}, and must be downloaded manually: {info.origin} "
                f"Save it in {into} as {(manual.unpacked or manual).path}, or set another folder with --data-dir or "
                f"{DATA_VARIABLE}"
            )
        display = Bars()
        size = sum(file.size for file in files)
        display.say(f"{info.name}: downloading {len(files)} file(s), {size / 1e6:.1f} MB, into {into}")
        display.say(f"{info.name}: license: {info.license}")
        for file in files:
            with display.byte_bar(Path(file.path).name, file.size) as progress:
                download(file.urls, into / file.path, digest=file.sha256, size=file.size, progress=progress)
        return {file: into / file.path for file in files}


def cache_folder() -> Path:
    """Return the folder of the user's cache of data files."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "qkv" / "data"


def _check_digest(path: Path, file: DataFile) -> None:
    try:
        stat = path.stat()
        digest = _digest(path, stat.st_size, stat.st_mtime_ns) if stat.st_size == file.size else None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    if digest != file.sha256:
        actual = f"its SHA-256 is {digest}" if digest else f"it has {stat.st_size:,} bytes"
        expected = f"{file.sha256}" if digest else f"{file.size:,}"
        fix = "delete it to download it again" if file.urls else "replace it with the right file"
        raise InputError(f"{path}: unexpected content: {actual}, expected {expected}; {fix}")


@lru_cache(maxsize=1024)
def _digest(path: Path, size: int, changed: int) -> str:
    """SHA-256 of a file, cached until its size or modification time changes."""
    return sha256(path)
