"""Files decoded in chunks: order, bounded chunks, and jobs that are killed and continued."""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from qkv.cli.commands import generate, translate
from qkv.hub import convert, save_model
from qkv.models.gpt2 import GPT2, GPT2Config
from qkv.models.transformer import Transformer, TransformerConfig
from qkv.tokenizers import CharTokenizer

TOKENIZER = CharTokenizer.train(["abcdefghij 0123456789"])
VOCAB = {"source_vocab_size": len(TOKENIZER), "target_vocab_size": len(TOKENIZER)}
SIZES = {"dim": 16, "heads": 2, "encoder_layers": 1, "decoder_layers": 1, "ffn_dim": 32, "max_length": 40}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained Transformer and an untrained GPT-2."""
    folder = tmp_path_factory.mktemp("models")
    torch.manual_seed(1)
    transformer = Transformer(TransformerConfig(**VOCAB, **SIZES))
    gpt2 = GPT2(GPT2Config(vocab_size=len(TOKENIZER), dim=16, heads=2, layers=1, max_length=40))
    for name, model in (("translate", transformer), ("generate", gpt2)):
        for weight in model.parameters():
            torch.nn.init.normal_(weight, std=0.5)
        (folder / name).mkdir()
        save_model(model, TOKENIZER, folder / name)
    return folder


def write_lines(path: Path, count: int, *, blank: bool = False) -> Path:
    generator = random.Random(0)
    lines = ["".join(generator.choices("abcdefghij ", k=generator.randint(1, 12))).strip() or "a" for _ in range(count)]
    if blank:
        lines[1] = ""
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


SEARCHES: list[tuple[str, list[object]]] = [
    ("translate", []),
    ("translate", ["--num-beams", 2, "--num-return-sequences", 2, "--json", "--align", "none"]),
    ("translate", ["--do-sample", "--seed", 3, "--max-new-tokens", 6]),
    ("translate", ["--align", "pharaoh", "--max-new-tokens", 4]),
    ("generate", ["--max-new-tokens", 6]),
    ("generate", ["--max-new-tokens", 6, "--num-return-sequences", 2, "--json", "--dtype", "int8"]),
]


@pytest.mark.parametrize(("command", "options"), SEARCHES)
def test_the_output_file_equals_stdout(qkv, models, tmp_path, monkeypatch, command, options):
    lines = write_lines(tmp_path / "in.txt", 30, blank=command == "translate")
    expected = qkv(command, models / command, "--input", lines, *options)
    assert expected.code == 0, expected.err
    out = tmp_path / "new" / "out.txt"
    monkeypatch.setattr(translate, "CHUNK", 7)
    monkeypatch.setattr(generate, "CHUNK", 7)
    done = qkv(command, models / command, "--input", lines, *options, "--output", out)
    assert (done.code, done.out, done.err) == (0, f"{out}\n", expected.err)
    assert out.read_text() == expected.out
    assert [path.name for path in out.parent.iterdir()] == ["out.txt"]


def test_an_existing_output_needs_resume_or_overwrite(qkv, models, tmp_path):
    lines, out = write_lines(tmp_path / "in.txt", 5), tmp_path / "out.txt"
    arguments = ["translate", models / "translate", "--input", lines, "--output", out]
    assert qkv(*arguments).code == 0
    expected = out.read_bytes()
    out.write_text("mine\n")
    assert "--overwrite" in qkv(*arguments).error
    assert "--overwrite" in qkv(*arguments, "--resume").error
    assert out.read_text() == "mine\n"
    assert qkv(*arguments, "--overwrite").code == 0
    assert out.read_bytes() == expected


def test_resume_needs_files(qkv, models, tmp_path):
    lines = write_lines(tmp_path / "in.txt", 5)
    model = models / "translate"
    for arguments in (["abc"], ["abc", "--output", "x"], ["--input", lines], ["--output", "x"]):
        assert "--resume" in qkv("translate", model, *arguments, "--resume").error
    missing = ["--input", tmp_path / "none.txt", "--output", tmp_path / "out.txt"]
    assert "none.txt: no such file" in qkv("translate", model, *missing, "--resume").error
    arguments = ["--input", lines, "--output", tmp_path / "out.txt"]
    assert "--page" in qkv("translate", model, *arguments, "--resume", "--page", tmp_path / "p.html").error
    assert "--overwrite" in qkv("translate", model, *arguments, "--resume", "--overwrite").error


def test_a_line_that_cannot_be_translated_is_an_error_before_anything_is_written(qkv, models, tmp_path):
    lines = tmp_path / "in.txt"
    lines.write_text("abc\n" * 2000 + "a" * 99 + "\n")
    arguments = ["--input", lines, "--output", tmp_path / "out.txt"]
    assert qkv("translate", models / "translate", *arguments).error.startswith("input 2001 ")
    assert qkv("generate", models / "generate", *arguments, "--max-new-tokens", 5).error.startswith("prompt 2001 ")
    lines.write_text("abc\n\nabc\n")
    assert qkv("generate", models / "generate", *arguments).error.startswith("input 2 ")
    assert qkv("translate", models / "translate", *arguments, "--strict").error.startswith("input 2 ")
    assert [path.name for path in tmp_path.iterdir()] == ["in.txt"]


def test_only_the_same_job_is_continued(qkv, models, tmp_path, monkeypatch):
    monkeypatch.setattr(translate, "CHUNK", 4)
    lines, out = write_lines(tmp_path / "in.txt", 10), tmp_path / "out.txt"
    job = ["translate", models / "translate", "--input", lines, "--output", out]
    interrupt(monkeypatch, qkv, *job)
    assert len(out.read_text().splitlines()) == 4
    progress = out.with_name("out.txt.progress.json")
    assert json.loads(progress.read_text())["inputs"] == 4
    assert "num_beams was 1 and is 2" in qkv(*job, "--resume", "--num-beams", 2).error.replace(
        "--num-beams", "num_beams"
    )
    assert "--resume" in qkv(*job).error
    text = lines.read_text()
    lines.write_text(text.replace("a", "b"))
    assert "the input differs" in qkv(*job, "--resume").error
    lines.write_text(text)
    convert(models / "translate", tmp_path / "other", to="qkv", dtype=torch.bfloat16)
    assert "the model differs" in qkv("translate", tmp_path / "other", *job[2:], "--resume").error
    done = qkv(*job, "--resume")
    assert done.code == 0, done.err
    assert out.read_text() == qkv("translate", models / "translate", "--input", lines).out
    assert not progress.exists()


def interrupt(monkeypatch: pytest.MonkeyPatch, qkv: Any, *arguments: object) -> None:
    """Run a command that is interrupted after its first chunk."""
    decode, calls = translate._translate, []

    def second_call_raises(*values: Any) -> Any:
        calls.append(values)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return decode(*values)

    with monkeypatch.context() as patch:
        patch.setattr(translate, "_translate", second_call_raises)
        ended = qkv(*arguments)
    assert ended.code == 130
    assert "--resume" in ended.err


def test_verbose_and_dtype(qkv, models):
    done = qkv("translate", models / "translate", "abc", "--dtype", "int8", "-v", "--device", "cpu")
    assert done.code == 0
    assert done.err.startswith("decoding: ")
    assert "int8" in done.err
    assert "--dtype" in qkv("generate", models / "generate", "abc", "--dtype", "int4").error
    assert qkv("generate", models / "generate", "abc", "--max-new-tokens", 3).err == ""


# The job kills itself at the given write of the progress file: before it, so that the last results are not recorded,
# or after it. Short chunks give a short job many such moments.
JOB = """
import os, signal, sys
from qkv.cli import main
from qkv.cli.commands import {command}
from qkv.runtime import resumable

{command}.CHUNK, resumable.SYNC_SECONDS = {chunk}, -1.0
record, calls = resumable.ResumableOutput.record, []

def record_or_die(output):
    calls.append(output)
    if len(calls) == {kill} and not {recorded}:
        os.kill(os.getpid(), signal.SIGKILL)
    record(output)
    if len(calls) == {kill}:
        os.kill(os.getpid(), signal.SIGKILL)

resumable.ResumableOutput.record = record_or_die
if __name__ == "__main__":
    main.main()
"""


def start(
    command: str, arguments: list[object], *, chunk: int, kill: int | None = None, recorded: bool = True
) -> subprocess.Popen[bytes]:
    code = JOB.format(command=command, chunk=chunk, kill=kill, recorded=recorded)
    return subprocess.Popen(
        [sys.executable, "-c", code, command, *map(str, arguments), "--device", "cpu"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def finish(process: subprocess.Popen[bytes]) -> None:
    _, error = process.communicate(timeout=600)
    assert process.returncode == 0, error.decode()


def inputs_done(out: Path) -> int:
    return int(json.loads(out.with_name(f"{out.name}.progress.json").read_text())["inputs"])


def check_killed_job(qkv: Any, command: str, model: Path, folder: Path, chunks: list[int], *options: object) -> None:
    """Kill a job several times, each time after these numbers of chunks, and compare with an undisturbed job."""
    count = CHUNK * (sum(chunks) + 3)
    lines, out, done = write_lines(folder / "in.txt", count), folder / "out.txt", 0
    expected = qkv(command, model, "--input", lines, "--output", folder / "expected.txt", "--device", "cpu", *options)
    assert expected.code == 0, expected.err
    arguments = [model, "--input", lines, "--output", out, "--resume", *options]
    for number, more in enumerate(chunks):
        recorded = number % 2 == 0
        # The progress file is written once at the start, then after each chunk.
        process = start(command, arguments, chunk=CHUNK, kill=1 + more, recorded=recorded)
        _, error = process.communicate(timeout=600)
        assert process.returncode == -signal.SIGKILL, error.decode()
        done += CHUNK * (more if recorded else more - 1)
        assert inputs_done(out) == done
        assert out.read_bytes().count(b"\n") >= done
        with out.open("ab") as file:
            file.write(b"a partial li" * (number % 2))
    finish(start(command, arguments, chunk=CHUNK))
    assert out.read_bytes() == (folder / "expected.txt").read_bytes()
    assert out.read_bytes().count(b"\n") >= count
    assert {path.name for path in folder.iterdir()} == {"in.txt", "expected.txt", "out.txt"}


CHUNK = 32
GENERATE: list[object] = ["--max-new-tokens", 16, "--seed", 2]


@pytest.mark.parametrize(
    ("command", "options"),
    [("translate", []), pytest.param("generate", GENERATE, marks=pytest.mark.slow)],
)
def test_a_job_that_is_killed_again_and_again(qkv, models, tmp_path, monkeypatch, command, options):
    monkeypatch.setattr(translate, "CHUNK", CHUNK)
    monkeypatch.setattr(generate, "CHUNK", CHUNK)
    check_killed_job(qkv, command, models / command, tmp_path, [2, 3], *options)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("translate", []),
        ("translate", ["--num-beams", 4]),
        ("translate", ["--do-sample", "--seed", 5]),
        ("generate", GENERATE),
    ],
)
def test_a_long_job_that_is_killed_again_and_again(qkv, models, tmp_path, monkeypatch, command, options):
    monkeypatch.setattr(translate, "CHUNK", CHUNK)
    monkeypatch.setattr(generate, "CHUNK", CHUNK)
    check_killed_job(qkv, command, models / command, tmp_path, [1, 40, 2, 90, 170], *options)
