"""Training log: one JSON object per line, and the same values as TensorBoard event files."""

import json
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from qkv.errors import InputError
from qkv.runtime.files import name_output_errors, open_for_append


class Log:
    """Appends records to log.jsonl and to an event file."""

    def __init__(self, path: Path, first_step: int) -> None:
        self._path = path
        self._file = open_for_append(path)
        self._events = EventFile(path.parent / "tensorboard", first_step)

    def write(self, step: int, kind: str, values: Mapping[str, float]) -> None:
        """Append the values of a step; `kind` is "train" or "valid"."""
        with name_output_errors(self._path):
            self._file.write((json.dumps({"step": step, "kind": kind, **values}) + "\n").encode())
            self._file.flush()
        self._events.write(step, {f"{kind}/{name}": value for name, value in values.items()})

    def __enter__(self) -> "Log":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for path, file in ((self._path, self._file), (self._events.path, self._events.file)):
            try:
                file.close()
            except OSError as failure:  # while flushing; an error that ended training takes precedence
                if error is None:
                    raise InputError(f"{path}: cannot be written: {failure.strerror}") from None


class EventFile:
    """A TensorBoard event file that is written synchronously, so that errors are raised here and not in a thread."""

    def __init__(self, folder: Path, first_step: int) -> None:
        with name_output_errors(folder):
            if folder.is_symlink():
                raise InputError(f"{folder}: is a symbolic link; remove it")
            folder.mkdir(exist_ok=True)
        now = time.time()
        self.path = folder / f"events.out.tfevents.{now:.6f}.{socket.gethostname()}.{os.getpid()}"
        self.file = open_for_append(self.path)
        self._records = RecordWriter(self.file)
        self._append(Event(wall_time=now, file_version="brain.Event:2"))
        # Makes TensorBoard discard events of other files in the folder from this step on.
        self._append(Event(wall_time=now, step=first_step, session_log=SessionLog(status=SessionLog.START)))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Append the scalars of a step."""
        scalars = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._append(Event(wall_time=time.time(), step=step, summary=Summary(value=scalars)))

    def _append(self, event: Any) -> None:
        with name_output_errors(self.path):
            self._records.write(event.SerializeToString())
            self._records.flush()
