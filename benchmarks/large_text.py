"""Tokenize and train on a text larger than the memory allowed: peak memory, time to the first step, time to resume.

    python benchmarks/large_text.py prepare --bytes 2e9 --folder /tmp/large       build a text, tokenize and train on it
    python benchmarks/large_text.py resume --folder /tmp/large --steps 10 100000  resume a run after each number

The text is made of real paragraphs (the training texts under QKV_DATA) in random order, with random numbers and names
inserted, so that it does not repeat. Every process is watched: its peak resident memory is the kernel's (VmHWM), which
includes pages of mapped files.
"""

import argparse
import gzip
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

MODEL = {
    "data.tokenizer.name": "bpe",
    "data.tokenizer.vocab_size": "8000",
    "model.dim": "32",
    "model.heads": "2",
    "model.layers": "1",
    "model.max_length": "64",
    "task.length": "64",
    "train.batch_size": "256",
    "train.epochs": "1",
    "train.ema": "0",
    "train.validate_every": "1000000000",
    "train.save_every": "1000000000",
}


def paragraphs(data: Path) -> list[str]:
    """Return paragraphs of real text of different kinds."""
    texts = []
    for path in sorted(data.rglob("*")):
        if path.suffix in (".txt", ".tsv", ".json", ".en", ".de", ".gz") and path.stat().st_size > 2**16:
            data_bytes = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
            try:
                parts = re.split(r"\n\s*\n|\n(?=.{200})", data_bytes.decode())
            except UnicodeDecodeError:
                continue
            texts += [part for part in parts if 80 < len(part) < 5000]
    return texts


def write_text(path: Path, size: int, data: Path) -> None:
    """Write `size` bytes of paragraphs in random order with random words inserted."""
    texts, rng = paragraphs(data), random.Random(0)
    print(f"{len(texts):,} paragraphs of real text, {sum(map(len, texts)) / 1e6:.1f} M characters")
    written = 0
    with path.open("w", encoding="utf-8") as file:
        while written < size:
            words = rng.choice(texts).split(" ")
            for _ in range(1 + len(words) // 40):
                words.insert(rng.randrange(len(words) + 1), f"{rng.choice('BDFGKLMNPRST')}{rng.randrange(36**4):x}")
            written += file.write(" ".join(words) + "\n\n")


class Watched:
    """A command whose processes are watched until it ends or `until` is true."""

    def __init__(self, *arguments: str) -> None:
        self.began = time.monotonic()
        self.process = subprocess.Popen([sys.executable, "-m", "qkv", *arguments], stdout=subprocess.DEVNULL)
        self.peaks: dict[int, int] = {}
        self.sum = 0
        self.cpu = 0.0  # seconds of the main process

    def wait(self, until: object = None) -> float:
        """Return the seconds until the command ends, or until the function `until` returns true."""
        while self.process.poll() is None:
            self.sample()
            if until is not None and until():  # type: ignore[operator]
                return time.monotonic() - self.began
            time.sleep(0.01)
        if self.process.returncode not in (0, 130):
            raise SystemExit(f"the command failed with {self.process.returncode}")
        return time.monotonic() - self.began

    def stop(self) -> None:
        self.process.send_signal(signal.SIGINT)
        self.wait()

    def sample(self) -> None:
        """Record the memory of the process and its descendants."""
        total, pending = 0, [(self.process.pid, "")]
        while pending:
            pid, parent = pending.pop()
            try:
                status, command = (Path(f"/proc/{pid}/{name}").read_text() for name in ("status", "cmdline"))
                pending += (
                    (int(child), command) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
                )
            except OSError:
                continue
            if command == parent:  # between vfork and exec: the memory is that of its parent
                continue
            sizes = dict(re.findall(r"^(VmHWM|VmRSS):\s+(\d+) kB$", status, re.MULTILINE))
            if sizes:
                self.peaks[pid] = 1024 * int(sizes["VmHWM"])
                total += 1024 * int(sizes["VmRSS"])
        self.sum = max(self.sum, total)
        with suppress(OSError):
            fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
            self.cpu = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def report(self, what: str, seconds: float) -> None:
        largest = max(self.peaks.values()) / 1e6
        print(
            f"{what:36} {seconds:7.1f} s, CPU {self.cpu:6.1f} s   largest of {len(self.peaks)} process(es) "
            f"{largest:6.0f} MB   all together {self.sum / 1e6:6.0f} MB",
            flush=True,
        )


def last_step(run: Path) -> int:
    """Return the last step in the log of a run; 0 if there is none."""
    log = run / "log.jsonl"
    if not log.exists():
        return 0
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 2**12))
        lines = [line for line in file.read().split(b"\n")[:-1] if line.startswith(b"{") and line.endswith(b"}")]
    return int(json.loads(lines[-1])["step"]) if lines else 0


def options(text: Path) -> list[str]:
    return ["shakespeare-gpt", "--data", str(text), *(f"--set={key}={value}" for key, value in MODEL.items())]


def prepare(folder: Path, size: int, data: Path, steps: int) -> None:
    text = folder / "large.txt"
    if not text.exists():
        write_text(text, size, data)
    print(f"{text}: {text.stat().st_size / 1e9:.2f} GB")
    command = Watched("data", "prepare", *options(text))
    command.report("tokenizer and shards", command.wait())
    for name in ("first", "second"):
        run = folder / f"{name}-run"
        command = Watched("train", *options(text), "--output", str(run))
        seconds = command.wait(lambda run=run: last_step(run) > 0)
        command.report(f"{name} start to the first step", seconds)
        seconds = command.wait(lambda run=run: last_step(run) >= steps)
        command.report(f"{steps} steps", seconds)
        command.stop()


def resume(folder: Path, steps: list[int]) -> None:
    text = folder / "large.txt"
    for count in steps:
        run = folder / f"run-{count}"
        if not run.exists():
            command = Watched("train", *options(text), "--output", str(run), f"--set=train.save_every={count}")
            command.wait(lambda run=run, count=count: (run / f"step-{count:08}").exists())
            command.stop()
    for repeat in range(3):
        for count in steps:
            run = folder / f"run-{count}"
            last = last_step(run)
            command = Watched("train", "--resume", str(run))
            seconds = command.wait(lambda run=run, last=last: last_step(run) > last)
            command.report(f"resume after step {last:,} ({repeat + 1})", seconds)
            command.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["prepare", "resume"])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--bytes", type=float, default=2e9)
    parser.add_argument("--steps", type=int, nargs="+", default=[10, 100_000])
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    os.environ["XDG_CACHE_HOME"] = str(arguments.folder / "cache")
    if arguments.action == "prepare":
        prepare(arguments.folder, int(arguments.bytes), Path(os.environ["QKV_DATA"]), arguments.steps[-1])
    else:
        resume(arguments.folder, arguments.steps)


if __name__ == "__main__":
    main()
