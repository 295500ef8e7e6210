"""What a run writes down: one JSON object a line, and the same numbers for TensorBoard."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any


class Log:
    """Appends records to log.jsonl, and to TensorBoard's event files where that package is installed."""

    def __init__(self, path: Path, first_step: int) -> None:
        self._file = path.open("a", encoding="utf-8")
        self._board = _tensorboard(path.parent / "tensorboard", first_step)

    def write(self, step: int, kind: str, values: Mapping[str, float]) -> None:
        """Record the numbers of a step; `kind` is "train" or "valid"."""
        self._file.write(json.dumps({"step": step, "kind": kind, **values}) + "\n")
        self._file.flush()
        if self._board is not None:
            for name, value in values.items():
                self._board.add_scalar(f"{kind}/{name}", value, step)

    def __enter__(self) -> "Log":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        if self._board is not None:
            self._board.close()


def _tensorboard(folder: Path, first_step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder), purge_step=first_step)
