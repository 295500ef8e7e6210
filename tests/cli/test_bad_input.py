"""Bad input gives a one-line error, exit code 2, no traceback and no partial output.

Training and inference are checked once each in a subprocess; the other tests run in this process.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from .command import TINY, Ended, process

PAIRS = "eins\tone\nzwei\ttwo\ndrei\tthree\n"


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("contents", "arguments", "words"),
    [
        pytest.param({}, ["--data", "none.tsv"], "none.tsv: no such file", id="missing"),
        pytest.param({"a.tsv": b""}, ["--data", "a.tsv"], "a.tsv: is empty", id="empty"),
        pytest.param(
            {"de": b"eins\nzwei\ndrei\n", "en": b"one\ntwo\n"},
            ["--data", "de", "--data", "en"],
            "de has 3 lines",
            id="sides of different length",
        ),
        pytest.param(
            {"a.tsv": PAIRS.encode() + b"f\xfcnf\tfive\n"},
            ["--data", "a.tsv"],
            "a.tsv: not UTF-8 at byte 30",
            id="not UTF-8",
        ),
        pytest.param(
            {"a.tsv": PAIRS.encode() + b"\nvier\t\n"},
            ["--data", "a.tsv", "--strict"],
            "a.tsv: line 4",
            id="an empty line in strict mode",
        ),
    ],
)
def test_training_on_invalid_files_is_an_error_and_writes_nothing(
    qkv: Callable[..., Ended],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    contents: dict[str, bytes],
    arguments: list[str],
    words: str,
) -> None:
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    monkeypatch.chdir(tmp_path)
    ended = qkv("train", "pairs-gru", *arguments, "--output", "run", *TINY)
    assert ended.error.startswith(f"{tmp_path}/{words}")
    assert files(tmp_path) == contents


def test_an_unknown_recipe_key_names_the_nearest_valid_one(tmp_path: Path) -> None:
    ended = process("train", "dates-gru", "--set", "model.scroe=dot", cwd=tmp_path)
    assert ended.error == "recipe dates-gru: unknown key model.scroe (did you mean model.score?)"
    assert files(tmp_path) == {}


def test_an_output_folder_with_another_run_is_unchanged(qkv: Callable[..., Ended], run: Path) -> None:
    before = files(run)
    ended = qkv("train", "dates-gru", "--set", "data.size=50", *TINY, "--output", run)
    assert "--resume" in ended.error
    assert files(run) == before


def test_a_truncated_checkpoint_is_named(run: Path, tmp_path: Path) -> None:
    damaged = shutil.copytree(run, tmp_path / "damaged")
    weights = next(damaged.glob("step-*/model.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-100])
    ended = process("translate", damaged, "5 March 2026", "--page", tmp_path / "page.html")
    assert ended.error.startswith(f"{weights}: ")
    assert not (tmp_path / "page.html").exists()


def test_an_out_of_vocabulary_character_is_noted(qkv: Callable[..., Ended], run: Path) -> None:
    ended = qkv("translate", run, "5 March 2026", "5 ☃ 2026 ☃")
    assert ended.code == 0
    assert ended.err.startswith("note: input 2: ")
    assert ended.err.endswith("'☃' (U+2603)\n")
    assert ended.out.count("\n") == 2


def test_an_input_that_is_too_long_is_an_error_with_the_limit(qkv: Callable[..., Ended], run: Path) -> None:
    ended = qkv("translate", run, "short", "1" * 513)
    assert ended.error.startswith("input 2 ")


def test_an_unknown_command_or_option_is_a_one_line_error(qkv: Callable[..., Ended]) -> None:
    assert qkv("trian").error == "No such command 'trian'. Did you mean 'train'? (see qkv --help)"
    assert qkv("train", "--num-beams", "3").error == "No such option: --num-beams (see qkv train --help)"
