"""Bad input gets one clear line, exit code 2, no traceback, and leaves nothing half-written.

Once each for training and for use this is seen of a real process; the rest asks the same command inside this one.
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
    ("given", "arguments", "words"),
    [
        pytest.param({}, ["--data", "none.tsv"], "none.tsv: no such file", id="missing"),
        pytest.param({"a.tsv": b""}, ["--data", "a.tsv"], "a.tsv: is empty", id="empty"),
        pytest.param(
            {"de": b"eins\nzwei\ndrei\n", "en": b"one\ntwo\n"},
            ["--data", "de", "--data", "en"],
            "en has 2 lines but {folder}/de has 3: line 3 of {folder}/de has no partner",
            id="sides of different length",
        ),
        pytest.param(
            {"a.tsv": PAIRS.encode() + b"f\xfcnf\tfive\n"},
            ["--data", "a.tsv"],
            "a.tsv: not UTF-8 at byte 30 (0xfc), line 4: convert it first, e.g. with iconv",
            id="not UTF-8",
        ),
        pytest.param(
            {"a.tsv": PAIRS.encode() + b"\nvier\t\n"},
            ["--data", "a.tsv", "--strict"],
            "a.tsv: line 4 has an empty side (2 such line(s))",
            id="an empty line in strict mode",
        ),
    ],
)
def test_training_refuses_files_it_cannot_use_and_writes_nothing(
    qkv: Callable[..., Ended],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    given: dict[str, bytes],
    arguments: list[str],
    words: str,
) -> None:
    for name, content in given.items():
        (tmp_path / name).write_bytes(content)
    monkeypatch.chdir(tmp_path)
    ended = qkv("train", "pairs-gru", *arguments, "--out", "run", *TINY)
    assert ended.error == f"{tmp_path}/{words.format(folder=tmp_path)}"
    assert files(tmp_path) == given


def test_an_unknown_recipe_key_names_the_nearest_valid_one(tmp_path: Path) -> None:
    ended = process("train", "dates-gru", "--set", "model.scroe=dot", cwd=tmp_path)
    assert ended.error == "recipe dates-gru: unknown key model.scroe (did you mean model.score?)"
    assert files(tmp_path) == {}


def test_an_output_folder_that_holds_another_run_is_left_alone(qkv: Callable[..., Ended], run: Path) -> None:
    before = files(run)
    ended = qkv("train", "dates-gru", "--set", "data.size=50", *TINY, "--out", run)
    assert ended.error == f"{run} holds another run: go on with --resume {run}, or choose another --out"
    assert files(run) == before


def test_a_checkpoint_that_is_cut_short_is_named(run: Path, tmp_path: Path) -> None:
    damaged = shutil.copytree(run, tmp_path / "damaged")
    weights = next(damaged.glob("step-*/model.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-100])
    ended = process("translate", damaged, "5 March 2026", "--attention", tmp_path / "page.html")
    assert ended.error == f"{weights}: cut short or altered since it was saved (its SHA-256 differs)"
    assert not (tmp_path / "page.html").exists()


def test_a_character_the_model_never_saw_is_read_as_unknown_and_reported(qkv: Callable[..., Ended], run: Path) -> None:
    ended = qkv("translate", run, "5 March 2026", "5 ☃ 2026 ☃")
    assert ended.code == 0
    assert ended.err == "note: input 2: never seen in training, read as unknown: '☃' (U+2603)\n"
    assert ended.out.count("\n") == 2


def test_an_input_longer_than_the_model_allows_is_told_the_limit(qkv: Callable[..., Ended], run: Path) -> None:
    ended = qkv("translate", run, "short", "1" * 513)
    assert ended.error == "input 2 has 513 tokens; this model takes at most 512"


def test_a_word_that_is_no_command_or_option_is_told_on_one_line(qkv: Callable[..., Ended]) -> None:
    assert qkv("trian").error == "No such command 'trian'. Did you mean 'train'? (see qkv --help)"
    assert qkv("train", "--beam", "3").error == "No such option: --beam (see qkv train --help)"
