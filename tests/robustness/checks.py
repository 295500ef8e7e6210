"""The requirements that every command has to meet for every input."""

import json
import re
import tomllib
from collections.abc import Iterable
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path

from tests.robustness.process import MEMORY, Ended, start
from tests.robustness.sandbox import Sandbox, Snapshot, changes

BAD_INPUT, INTERRUPTED = 2, 130
LONGEST_ERROR = 500  # characters of the line
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
PROGRESS = re.compile(r"epoch \d+/|\S+  [\d,]+ .* parameters ")  # progress lines of training
TORCH_CACHE = "tmp/torchinductor_*"  # created by torch when parts of it are imported
LABELLING = ("classify", "tag")  # commands that print labels of the model


def check_end(ended: Ended, *, interrupted: bool) -> list[str]:
    """The exit code, the time and the memory."""
    found = []
    if ended.stopped:
        found.append(f"limits: {ended.stopped}")
    elif ended.code < 0:
        found.append(f"exit code: ended by signal {-ended.code}")
    elif ended.code not in (0, BAD_INPUT) and not (interrupted and ended.code == INTERRUPTED):
        found.append(f"exit code: {ended.code}")
    if ended.memory > MEMORY and not ended.stopped:
        found.append(f"limits: {ended.memory / 2**30:.1f} GiB of memory")
    return found


def check_words(ended: Ended, command: str, stdout: str, stderr: str) -> list[str]:
    """Exactly one error line with exit code 2, no traceback, and no control characters."""
    found = []
    lines = stderr.splitlines()
    if "Traceback (most recent call last)" in stderr:
        found.append("traceback")
    if CONTROL.search(stderr):
        found.append("stderr: control characters")
    if command in LABELLING and CONTROL.search(stdout):
        found.append("stdout: control characters")
    if ended.code == BAD_INPUT:
        errors = [line for line in lines if line.startswith("error: ")]
        if len(errors) != 1:
            found.append(f"stderr: {len(errors)} error lines")
        expected = [line for line in lines if command == "train" and PROGRESS.match(line)]
        if others := [line for line in lines if not line.startswith(("error: ", "note: ")) and line not in expected]:
            found.append(f"stderr: another line: {others[0][:80]!r}")
        if errors and len(errors[0]) > LONGEST_ERROR:
            found.append(f"stderr: an error line of {len(errors[0])} characters")
    return found


def check_files(ended: Ended, before: Snapshot, after: Snapshot, allowed: Iterable[str]) -> list[str]:
    """After success only the output has changed; after an error nothing has.

    The times of what may be written are not compared: after an error it may have been written again as it was.
    """
    before, after = (_without_times(snapshot, [*allowed]) for snapshot in (before, after))
    found = [f"leftover: {name}" for name in after if ".writing-" in name and name not in before]
    if ended.code == BAD_INPUT:
        allowed = [pattern for pattern in allowed if pattern.endswith("/.lock")]
    different = changes(before, after, [*allowed, "*.writing-*", TORCH_CACHE])
    return found + [f"files: {change}" for change in different[:5]]


def _without_times(snapshot: Snapshot, names: list[str]) -> Snapshot:
    return {
        name: replace(entry, mtime=0) if any(fnmatch(name, pattern) for pattern in names) else entry
        for name, entry in snapshot.items()
    }


def check_refused(ended: Ended, recipe: Path, original: Path) -> list[str]:
    """Resuming with an edited recipe has to be refused."""
    if ended.code == BAD_INPUT or ended.stopped or _toml(recipe) == _toml(original):
        return []
    return ["refusal: resumed with another recipe"]


def _toml(path: Path) -> str:
    if not path.is_file():  # it may be a FIFO
        return str(path)
    try:
        return json.dumps(tomllib.loads(path.read_text()), default=str)
    except (OSError, ValueError, RecursionError):
        return str(path)


def check_output(kind: str, path: Path, sandbox: Sandbox, output: Path) -> list[str]:
    """The output is complete: a file can be read, a model or a run can be loaded."""
    if path.is_symlink() or not path.exists():
        return [f"output: {path.name} is {'a link' if path.is_symlink() else 'missing'}"]
    ended = start(
        lambda: _read(kind, path),
        output=output,
        working=sandbox.working,
        environment={"TMPDIR": str(sandbox.temporary)},
    ).wait()
    if ended.code == 0:
        return []
    words = Path(f"{output}.stderr").read_text(errors="replace").strip().splitlines() or [str(ended)]
    return [f"output: cannot be read: {words[-1][:120]}"]


def _read(kind: str, path: Path) -> int:
    import numpy as np
    from PIL import Image
    from safetensors.numpy import load_file

    import qkv

    if kind in ("model", "run", "resumed"):
        qkv.load(path)
    elif kind == "npy":
        np.load(path, allow_pickle=False)
    elif kind == "safetensors":
        load_file(path)
    elif kind == "png":
        with Image.open(path) as image:
            image.load()
    else:
        text = path.read_text(encoding="utf-8")
        assert text.endswith("\n"), "no end of line"
        assert kind != "html" or text.rstrip().endswith("</html>"), "the page is cut off"
    return 0
