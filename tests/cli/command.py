"""Run the command line in tests."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

TINY = [
    "--set", "model.hidden_dim=16", "--set", "model.embedding_dim=8", "--set", "train.epochs=2",
    "--set", "train.batch_size=512", "--set", "train.valid_size=20", "--device", "cpu",
]  # fmt: skip


@dataclass(frozen=True)
class Ended:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """Return the error message after checking exit code 2, empty stdout and a single line on stderr."""
        assert (self.code, self.out) == (2, ""), self
        assert self.err.startswith("error: "), self.err
        assert self.err.count("\n") == 1, self.err
        return self.err.removeprefix("error: ").removesuffix("\n")


def process(*arguments: object, cwd: Path | None = None, code: str | None = None) -> Ended:
    """Run the command in a subprocess; `code` runs instead of the module."""
    start = ["-m", "qkv"] if code is None else ["-c", code]
    command = [sys.executable, *start, *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, capture_output=True, stdin=subprocess.DEVNULL, timeout=120)
    return Ended(done.returncode, done.stdout.decode(), done.stderr.decode())
