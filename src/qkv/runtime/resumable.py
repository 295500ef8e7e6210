"""Output files that a killed job can continue, with a small progress file next to them."""

import io
import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from qkv.errors import InputError
from qkv.runtime.documents import read_object
from qkv.runtime.files import (
    check_output_file,
    file_kind,
    lock_file,
    name_output_errors,
    open_for_append,
    remove_scratch,
    write_atomically,
)
from qkv.runtime.text import printable

SUFFIX = ".progress.json"  # of the progress file
FOLDER_PROGRESS = f"bulk{SUFFIX}"  # in a folder of output files
SYNC_SECONDS = 2.0  # between writes of the progress file


def progress_file(output: Path, names: Sequence[str] = ()) -> Path:
    """Return the path of the progress file of an output file, or of the files `names` in an output folder."""
    return output / FOLDER_PROGRESS if names else output.with_name(f"{output.name}{SUFFIX}")


def check_resumable(output: Path, names: Sequence[str] = (), *, resume: bool, overwrite: bool) -> None:
    """Raise if an output file exists, unless it is to be continued or replaced."""
    progress = progress_file(output, names)
    if names:
        _check_folder(output)
    paths = [output / name for name in names] or [output]
    for path in (*paths, progress):
        check_output_file(path)
    if resume and overwrite:
        raise InputError("--resume cannot be combined with --overwrite")
    existing = next((path for path in paths if path.exists() and path.stat().st_size), None)
    if overwrite or existing is None:
        return
    unfinished = progress.exists()
    if not resume:
        choices = "--resume to continue it or --overwrite" if unfinished else "--overwrite"
        raise InputError(f"{existing}: already exists; pass {choices} to replace it")
    if not unfinished:
        raise InputError(
            f"{existing}: cannot be continued without {progress.name}: it is complete or was written by another "
            "command; pass --overwrite to replace it"
        )


def _check_folder(path: Path) -> None:
    """Raise unless `path` is a folder or does not exist."""
    with name_output_errors(path):
        if os.path.lexists(path) and not path.is_dir():
            kind = file_kind(path.lstat().st_mode)
            raise InputError(f"{path}: is {kind}; choose a folder, since there is one output file per input file")


class ResumableOutput:
    """Appends the results of a job to a file, and records how many of its inputs they cover.

    With `names`, `path` is a folder, and these files in it are written one after the other. `identity` is a JSON object
    of what the results depend on; a job with another identity is not continued. After a crash, results that were not
    recorded yet are removed, and computed again.
    """

    def __init__(
        self, path: Path, identity: Mapping[str, Any], names: Sequence[str] = (), *, resume: bool, overwrite: bool
    ) -> None:
        check_resumable(path, names, resume=resume, overwrite=overwrite)
        self.path, self._identity = path, dict(identity)
        self._paths = [path / name for name in names] or [path]
        self._progress = progress_file(path, names)
        self._continued = resume and self._progress.exists()
        # Number of complete files; inputs covered by the next file, and its size.
        self.files, self.inputs, self._bytes = self._read_progress() if self._continued else (0, 0, 0)
        self._recorded = 0.0

    def __enter__(self) -> Self:
        self._progress.parent.mkdir(parents=True, exist_ok=True)
        self._check_complete_files()
        self._locked = open_for_append(self._paths[0])  # for writing, as NFS requires of a lock
        self._file: io.BufferedWriter | None = None
        try:
            lock_file(self._locked, self.path)
            remove_scratch(self._progress)
            if self.files < len(self._paths):
                self._file = open_for_append(self._paths[self.files])
                self._check_size(self._file)
            self.record()  # before anything is removed
            if self._file is not None:
                self._file.truncate(self._bytes)
            if not self._continued:
                for path in self._paths[1:]:
                    path.unlink(missing_ok=True)
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close the file; the progress file is removed if the job is complete."""
        try:
            self.record()
            if kind is None:
                self._progress.unlink()
        finally:
            self._close()

    def append(self, data: bytes, inputs: int) -> None:
        """Append the results of the next `inputs` inputs."""
        assert self._file is not None
        self._file.write(data)
        self._file.flush()
        self.inputs, self._bytes = self.inputs + inputs, self._bytes + len(data)
        if time.monotonic() - self._recorded > SYNC_SECONDS:
            self.record()

    def next_file(self) -> None:
        """Finish a file of a folder and begin the next one."""
        assert self._file is not None
        self._sync()
        self._file.close()
        self.files, self.inputs, self._bytes, self._file = self.files + 1, 0, 0, None
        self.record()
        if self.files < len(self._paths):
            self._file = open_for_append(self._paths[self.files])
            self._file.truncate(0)

    def record(self) -> None:
        """Write the file to disk, then the progress file."""
        self._sync()
        progress = {**self._identity, "files": self.files, "inputs": self.inputs, "bytes": self._bytes}
        write_atomically(self._progress, f"{json.dumps(progress, indent=2)}\n".encode())
        self._recorded = time.monotonic()

    def _sync(self) -> None:
        if self._file is not None:
            os.fsync(self._file.fileno())

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._locked.close()

    def _check_complete_files(self) -> None:
        for path in self._paths[: self.files]:
            if not path.exists():
                raise InputError(f"{path}: is missing, but {self._progress.name} says it is complete; pass --overwrite")

    def _check_size(self, file: io.BufferedWriter) -> None:
        if os.fstat(file.fileno()).st_size < self._bytes:
            raise InputError(
                f"{self._paths[self.files]}: is shorter than {self._progress.name} says; pass --overwrite to replace it"
            )

    def _read_progress(self) -> tuple[int, int, int]:
        """Return the number of complete files, and the number of finished inputs of the next one and the bytes of their
        results; raise if the job is another one.
        """
        progress = read_object(self._progress)
        files, inputs, size = (progress.pop(key, None) for key in ("files", "inputs", "bytes"))
        if any(type(value) is not int or value < 0 for value in (files, inputs, size)):
            raise InputError(f"{self._progress}: not a progress file; pass --overwrite to start again")
        identity = json.loads(json.dumps(self._identity))  # as it is read back: lists for tuples
        if differences := [*_differences(progress, identity)]:
            raise InputError(
                f"{self.path}: cannot be continued: {', '.join(differences)}; pass what it was started with, or "
                "--overwrite to start again"
            )
        return min(files, len(self._paths)), inputs, size


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Describe what differs between two identities; the parts of an object are named themselves."""
    found = []
    for key in sorted({*before, *now}):
        old, new = before.get(key), now.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            found += _differences(old, new)
        elif old != new and isinstance(new, str) and len(new) == 64:  # SHA-256
            found.append(f"the {key} differs")
        elif old != new:
            found.append(f"{printable(key)} was {printable(repr(old), 40)} and is {printable(repr(new), 40)}")
    return found
