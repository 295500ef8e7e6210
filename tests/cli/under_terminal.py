"""Runs commands with chosen standard streams: `python -m tests.cli.under_terminal CASES.json` prints what they left.

One process imports everything and forks for each command. A stream is "pty", "pipe", "null", "closed" or "stdout" (for
stderr: the same terminal or pipe).
"""

import fcntl
import importlib
import json
import os
import select
import struct
import sys
import termios
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path

PRELOADED = [
    "qkv.cli.main",
    "qkv.visualize.views",
    "qkv.experiments.table",
    "qkv.pipelines.question_answerer",
    "qkv.pipelines.captioner",
    "qkv.pipelines.classifier",
    "qkv.pipelines.embedder",
    "qkv.pipelines.mask_filler",
    "qkv.pipelines.generator",
    "qkv.interpret.attention_probe",
    "qkv.pipelines.image_classifier",
    "qkv.pipelines.tagger",
    "qkv.pipelines.translator",
    "qkv.training.job",
    "qkv.visualize",
    "torch._dynamo",
    "torch.utils.tensorboard",
    "sacrebleu",
]
WIDTH = 100


@dataclass(frozen=True)
class Case:
    """A command and its standard streams."""

    arguments: list[str]
    stdin: str = "null"
    stdout: str = "pipe"
    stderr: str = "pipe"
    environment: dict[str, str] = field(default_factory=dict)


def main() -> None:
    cases = {name: Case(**case) for name, case in json.loads(Path(sys.argv[1]).read_text()).items()}
    for module in PRELOADED:
        importlib.import_module(module)
    print(json.dumps({name: run(case) for name, case in cases.items()}))


def run(case: Case) -> dict[str, object]:
    """Fork, run the command there and collect its exit code and what it wrote."""
    readers, writers = {}, {}
    for name, kind in (("out", case.stdout), ("err", case.stderr)):
        if kind in ("pty", "pipe"):
            readers[name], writers[name] = _terminal() if kind == "pty" else os.pipe()
    child = os.fork()
    if child == 0:
        _become(case, writers)
    for writer in writers.values():
        os.close(writer)
    written = _drained(readers)
    _, status = os.waitpid(child, 0)
    texts = {name: written.get(name, b"").decode(errors="replace").replace("\r\n", "\n") for name in ("out", "err")}
    return {"code": os.waitstatus_to_exitcode(status), **texts}


def _terminal() -> tuple[int, int]:
    reader, writer = os.openpty()
    fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", 40, WIDTH, 0, 0))
    return reader, writer


def _become(case: Case, writers: dict[str, int]) -> None:
    """Be the command, with Python's standard streams as the interpreter would have made them; never returns."""
    code = 1
    try:
        null = os.open(os.devnull, os.O_RDWR)
        chosen = {0: case.stdin, 1: case.stdout, 2: case.stderr}
        sources = {"null": null, "pipe": None, "pty": None, "stdout": writers.get("out")}
        for number, kind in chosen.items():
            if kind == "closed":
                os.close(number)
            else:
                source = sources[kind]
                os.dup2(writers["out" if number == 1 else "err"] if source is None else source, number)
        for descriptor in (null, *writers.values()):
            os.close(descriptor)
        for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
            stream = None
            if chosen[number] != "closed":
                stream = os.fdopen(number, mode, encoding="utf-8", closefd=False, errors="backslashreplace")
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
        if sys.stderr is not None:
            sys.stderr.reconfigure(line_buffering=True)
        os.environ.update({"TERM": "xterm-256color", "TOKENIZERS_PARALLELISM": "false", **case.environment})
        for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "COLUMNS"):
            os.environ.pop(name, None)
        sys.argv = ["qkv", *case.arguments]
        sys.modules["qkv.cli.main"].main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0
    except BaseException:
        if sys.stderr is not None:
            traceback.print_exc()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(code)


def _drained(readers: dict[str, int]) -> dict[str, bytes]:
    """Everything that comes from the descriptors until their ends; the end of a terminal is an error."""
    written = dict.fromkeys(readers, b"")
    waiting = dict(readers)
    while waiting:
        ready, _, _ = select.select(list(waiting.values()), [], [])
        for name, reader in list(waiting.items()):
            if reader not in ready:
                continue
            try:
                data = os.read(reader, 65536)
            except OSError:
                data = b""
            written[name] += data
            if not data:
                os.close(waiting.pop(name))
    return written


def as_json(cases: dict[str, Case]) -> str:
    return json.dumps({name: asdict(case) for name, case in cases.items()})


if __name__ == "__main__":
    main()
