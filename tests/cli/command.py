"""How tests run the command, and what they see of it."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

TINY = [
    "--set", "model.hidden=16", "--set", "model.embedding=8", "--set", "train.epochs=2",
    "--set", "train.batch_tokens=512", "--set", "train.valid_size=20", "--device", "cpu",
]  # fmt: skip


@dataclass(frozen=True)
class Ended:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The words of a command that failed on bad input: exit code 2, nothing on stdout, one line, no traceback."""
        assert (self.code, self.out) == (2, ""), self
        assert self.err.startswith("error: "), self.err
        assert self.err.count("\n") == 1, self.err
        return self.err.removeprefix("error: ").removesuffix("\n")


def process(*arguments: object, cwd: Path | None = None, code: str | None = None) -> Ended:
    """Run the command in a process of its own; `code` runs instead of the module."""
    start = ["-m", "qkv"] if code is None else ["-c", code]
    command = [sys.executable, *start, *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, capture_output=True, stdin=subprocess.DEVNULL, timeout=120)
    return Ended(done.returncode, done.stdout.decode(), done.stderr.decode())
