"""Where data sets that come as files are found: in a folder of the user's, in the cache, or on the web."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from qkv.errors import InputError
from qkv.runtime.bars import Bars
from qkv.runtime.download import download
from qkv.runtime.files import expand_home, sha256

VARIABLE = "QKV_DATA"


@dataclass(frozen=True)
class DataFile:
    """A file whose every byte is known."""

    path: str  # inside a data folder
    sha256: str
    size: int  # bytes
    urls: tuple[str, ...] = ()  # where just these bytes are served
    unpacked: "DataFile | None" = None  # the same without its packing, which serves as well


@dataclass(frozen=True)
class Corpus:
    """A data set that comes as files."""

    name: str
    licence: str
    origin: str  # where to get it, in words
    files: tuple[DataFile, ...]


@dataclass(frozen=True)
class Store:
    """The folders in which files are looked for, in this order; the last is where downloads go."""

    folders: tuple[Path, ...]

    @classmethod
    def of(cls, chosen: str | Path | None = None) -> "Store":
        """The folder that the user chose (--data-dir), that of QKV_DATA, and the cache."""
        named = {"--data-dir, or data.folder of the recipe": chosen, VARIABLE: os.environ.get(VARIABLE)}
        for name, folder in named.items():
            if folder and not expand_home(folder).is_dir():
                raise InputError(f"{folder}: no such folder (named by {name})")
        given = [expand_home(folder) for folder in named.values() if folder]
        return cls((*given, cache_folder()))

    def find(self, file: DataFile) -> Path | None:
        """Where a file lies, or None; one with other bytes than are expected is an error."""
        for folder in self.folders:
            for form in (file, file.unpacked):
                if form is not None and (folder / form.path).exists():
                    _require_bytes(folder / form.path, form)
                    return folder / form.path
        return None

    def provide(self, corpus: Corpus, files: Sequence[DataFile]) -> list[Path]:
        """Where these files of a corpus lie, after downloading those that are nowhere."""
        found = {file: self.find(file) for file in files}
        missing = [file for file, path in found.items() if path is None]
        if missing:
            found |= self._download(corpus, missing)
        return [path for file in files if (path := found[file]) is not None]

    def _download(self, corpus: Corpus, files: Sequence[DataFile]) -> dict[DataFile, Path]:
        into = self.folders[-1]
        nowhere = next((file for file in files if not file.urls), None)
        if nowhere is not None:
            looked = ", ".join(str(folder) for folder in self.folders)
            raise InputError(
                f"{corpus.name}: {nowhere.path} is not in {looked}, and qkv cannot download it: {corpus.origin} Put it "
                f"into {into} as {(nowhere.unpacked or nowhere).path}, or name another folder with --data-dir or "
                f"{VARIABLE}"
            )
        display = Bars()
        size = sum(file.size for file in files)
        display.say(f"{corpus.name}: downloading {len(files)} file(s), {size / 1e6:.1f} MB, into {into}")
        display.say(f"{corpus.name}: licence: {corpus.licence}")
        for file in files:
            with display.byte_bar(Path(file.path).name, file.size) as progress:
                download(file.urls, into / file.path, digest=file.sha256, size=file.size, progress=progress)
        return {file: into / file.path for file in files}


def cache_folder() -> Path:
    """The user's cache of data files."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "qkv" / "data"


def _require_bytes(path: Path, file: DataFile) -> None:
    try:
        state = path.stat()
        digest = _digest(path, state.st_size, state.st_mtime_ns) if state.st_size == file.size else None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    if digest != file.sha256:
        found = f"its SHA-256 is {digest}" if digest else f"it has {state.st_size:,} bytes"
        expected = f"{file.sha256}" if digest else f"{file.size:,}"
        again = "remove it, and it is downloaded again" if file.urls else "put the right one in its place"
        raise InputError(f"{path}: not the file that qkv knows: {found}, expected {expected}; {again}")


@lru_cache(maxsize=1024)
def _digest(path: Path, size: int, changed: int) -> str:
    """The SHA-256 of a file, computed again only when the file has changed."""
    return sha256(path)
