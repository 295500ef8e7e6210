"""An output file that a killed job can continue, with a small progress file next to it."""

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from qkv.errors import InputError
from qkv.runtime.documents import read_object
from qkv.runtime.files import check_output_file, lock_file, open_for_append, remove_scratch, write_atomically
from qkv.runtime.text import printable

SUFFIX = ".progress.json"  # of the progress file
SYNC_SECONDS = 2.0  # between writes of the progress file


def progress_file(output: Path) -> Path:
    """Return the path of the progress file of an output file."""
    return output.with_name(f"{output.name}{SUFFIX}")


def check_resumable(output: Path, *, resume: bool, overwrite: bool) -> None:
    """Raise if the output file exists, unless it is to be continued or replaced."""
    check_output_file(output)
    check_output_file(progress_file(output))
    if resume and overwrite:
        raise InputError("--resume cannot be combined with --overwrite")
    if overwrite or not output.exists() or output.stat().st_size == 0:
        return
    unfinished = progress_file(output).exists()
    if not resume:
        choices = "--resume to continue it or --overwrite" if unfinished else "--overwrite"
        raise InputError(f"{output}: already exists; pass {choices} to replace it")
    if not unfinished:
        raise InputError(
            f"{output}: cannot be continued without {progress_file(output).name}: it is complete or was written by "
            "another command; pass --overwrite to replace it"
        )


class ResumableOutput:
    """Appends the results of a job to a file, and records how many of its inputs they cover.

    `identity` is a JSON object of what the results depend on; a job with another identity is not continued. After a
    crash, results that were not recorded yet are removed, and computed again.
    """

    def __init__(self, path: Path, identity: Mapping[str, Any], *, resume: bool, overwrite: bool) -> None:
        check_resumable(path, resume=resume, overwrite=overwrite)
        self.path, self._identity = path, dict(identity)
        self._progress = progress_file(path)
        continued = resume and self._progress.exists()
        self.inputs, self._bytes = self._read_progress() if continued else (0, 0)  # covered by the file, and its size
        self._recorded = 0.0

    def __enter__(self) -> Self:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open_for_append(self.path)
        try:
            lock_file(self._file, self.path)
            remove_scratch(self._progress)
            if os.fstat(self._file.fileno()).st_size < self._bytes:
                raise InputError(
                    f"{self.path}: is shorter than {self._progress.name} says; pass --overwrite to replace it"
                )
            self.record()  # before anything is removed
            self._file.truncate(self._bytes)
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close the file; the progress file is removed if the job is complete."""
        with self._file:
            self.record()
            if kind is None:
                self._progress.unlink()

    def append(self, data: bytes, inputs: int) -> None:
        """Append the results of the next `inputs` inputs."""
        self._file.write(data)
        self._file.flush()
        self.inputs, self._bytes = self.inputs + inputs, self._bytes + len(data)
        if time.monotonic() - self._recorded > SYNC_SECONDS:
            self.record()

    def record(self) -> None:
        """Write the file to disk, then the progress file."""
        os.fsync(self._file.fileno())
        progress = {**self._identity, "inputs": self.inputs, "bytes": self._bytes}
        write_atomically(self._progress, f"{json.dumps(progress, indent=2)}\n".encode())
        self._recorded = time.monotonic()

    def _read_progress(self) -> tuple[int, int]:
        """Return the number of finished inputs and the bytes of their results; raise if the job is another one."""
        progress = read_object(self._progress)
        inputs, size = progress.pop("inputs", None), progress.pop("bytes", None)
        if type(inputs) is not int or type(size) is not int or inputs < 0 or size < 0:
            raise InputError(f"{self._progress}: not a progress file; pass --overwrite to start again")
        identity = json.loads(json.dumps(self._identity))  # as it is read back: lists for tuples
        if differences := [*_differences(progress, identity)]:
            raise InputError(
                f"{self.path}: cannot be continued: {', '.join(differences)}; pass what it was started with, or "
                "--overwrite to start again"
            )
        return inputs, size


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
