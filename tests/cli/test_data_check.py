"""`qkv data check`: what training would read, and a warning for each probable mistake."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.pipelines.recordings import write_wav

from .command import Ended

Command = Callable[..., Ended]
TEXTS = [f"the film number {number} was {'good' if number % 2 else 'bad'} to watch" for number in range(40)]
LABELED = [(text, "good" if number % 2 else "bad") for number, text in enumerate(TEXTS)]
LSTM = ("--recipe", "polarity-lstm-mean")


def table(folder: Path, rows: list[tuple[str, ...]], name: str = "a.tsv") -> Path:
    (folder / name).write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")
    return folder / name


@pytest.fixture
def report(qkv: Command) -> Callable[..., dict[str, Any]]:
    def call(*arguments: object) -> dict[str, Any]:
        ended = qkv("data", "check", *arguments, "--json")
        assert ended.code == 0, ended.err
        return json.loads(ended.out)

    return call


def test_the_report_has_kind_splits_lengths_labels_and_examples(qkv: Command, tmp_path: Path) -> None:
    path = table(tmp_path, LABELED)
    ended = qkv("data", "check", path, *LSTM, "--count", 2)
    assert (ended.code, ended.err) == (0, "")
    for words in ("texts with labels", "38 train, 2 valid texts", "good 20", "bad 20", "8 to 8 tokens", TEXTS[0]):
        assert words in ended.out
    assert f"train with: qkv train polarity-lstm-mean --data {path}" in ended.out
    found = json.loads(qkv("data", "check", path, *LSTM, "--json").out)
    assert found["splits"] == {"train": 38, "valid": 2}
    assert found["labels"] == {"good": 20, "bad": 20}
    assert found["lengths"]["text"] == {"shortest": 8, "median": 8, "longest": 8, "unit": "tokens"}
    assert found["examples"][0] == {"text": TEXTS[0], "label": "bad"}
    assert [warning.partition(":")[0] for warning in found["warnings"][:-1]] == ["few examples"]
    assert "train.epochs=300" in found["warnings"][-1]  # one step in each epoch
    found = json.loads(qkv("data", "check", path, *LSTM, "--set", "train.epochs=300", "--json").out)
    assert not any("step" in warning for warning in found["warnings"])


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda rows: [("feedback", "verdict"), *rows], "possible header"),
        (lambda rows: [(label, text) for text, label in rows[:18]], "probably swapped"),
        (lambda rows: [(text, f"label {number}") for number, (text, _) in enumerate(rows[:18])], "a label per text"),
        (lambda rows: [*rows, (TEXTS[0], "good")], "conflicts"),
        (lambda rows: [*rows, rows[0], rows[0]], "duplicates: 2"),
        (lambda rows: [*rows, ("schÃ¶n", "good")], "encoding"),
        (lambda rows: [*rows, ("lost \ufffd here", "good")], "encoding"),
        (lambda rows: [*rows, ("a bell \x07 here", "good")], "control"),
        (lambda rows: [*rows, ("very " * 200, "good")], "too long"),
        (lambda rows: [*rows, ("one more", "Good")], "case"),
        (lambda rows: [*rows, ("one more", "rare")], "fewer than 5"),
    ],
)
def test_probable_mistakes_are_warnings(
    report: Callable[..., dict[str, Any]], tmp_path: Path, change: Callable[[Any], Any], word: str
) -> None:
    clean = report(table(tmp_path, LABELED), *LSTM)["warnings"]
    assert not any(word in warning for warning in clean)
    assert any(word in warning for warning in report(table(tmp_path, change(LABELED)), *LSTM)["warnings"])


def test_taggers_of_entities_should_be_selected_by_their_f1(
    report: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    path = tmp_path / "a.conll"
    for tag, warned in (("B-PER", True), ("PROPN", False)):
        path.write_text("".join(f"w{number} {tag}\nruns O\n. O\n\n" for number in range(40)))
        options = (path, "--recipe", "ewt-lstm")
        assert any("best_by=f1" in warning for warning in report(*options)["warnings"]) is warned
        warnings = report(*options, "--set", "train.best_by=f1")["warnings"]
        assert not any("best_by" in warning for warning in warnings)


def test_a_recipe_without_its_pretrained_model_is_a_warning(
    report: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    rows = [("question", "context", "answer"), *((f"Where is {name}?", f"{name} is here.", "here") for name in "abcd")]
    found = report(table(tmp_path, rows))
    assert any("fine-tunes" in warning for warning in found["warnings"])
    assert not any("random weights" in warning for warning in found["warnings"])
    assert found["command"].endswith("--set init=FOLDER")


def test_labels_before_texts_are_not_taken_for_pairs(qkv: Command, tmp_path: Path) -> None:
    rows = [(label, f"{text} {number}") for number, (text, label) in enumerate(3 * LABELED)]
    assert "the columns are probably swapped" in qkv("data", "check", table(tmp_path, rows)).error


def test_an_encoding_problem_is_shown_in_its_context(report: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    rows = [*LABELED, ("word " * 20 + "schÃ¶n", "good")]
    assert any("schÃ¶n" in warning for warning in report(table(tmp_path, rows), *LSTM)["warnings"])


def test_duplicates_across_splits_and_unseen_labels_are_warnings(
    report: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    train = table(tmp_path, LABELED)
    valid = table(tmp_path, [LABELED[3], ("a new text", "meh")], "valid.tsv")
    found = report(train, "--valid", valid, *LSTM)
    assert any("1 of 2 texts of valid are also in train" in warning for warning in found["warnings"])
    test = table(tmp_path, [LABELED[3], LABELED[4], LABELED[5], ("a new text", "meh")], "test.tsv")
    warnings = report(train, "--valid", valid, "--test", test, *LSTM)["warnings"]
    assert any("3 of 4 texts of test are also in train" in warning for warning in warnings)
    assert any("1 of 4 texts of test are also in valid" in warning for warning in warnings)
    assert any("meh in valid" in warning for warning in found["warnings"])
    assert not any("also in train" in note for note in found["notes"])


def test_empty_items_are_noted_and_broken_files_are_errors(qkv: Command, tmp_path: Path) -> None:
    path = table(tmp_path, [*LABELED, ("", "good")])
    assert "skipped 1 line(s)" in qkv("data", "check", path, *LSTM).out
    path.write_bytes(path.read_bytes() + b"a\0b\tgood\n")
    assert "how-to/your-own-data" in qkv("data", "check", path).error
    (tmp_path / "a.jsonl").write_text('{"text": "a", "label": "b"}\n{"text"\n')
    assert "line 2: not valid JSON" in qkv("data", "check", tmp_path / "a.jsonl").error
    assert "no such file" in qkv("data", "check", tmp_path / "none.csv").error
    (tmp_path / "loop").symlink_to("loop")
    assert "loop" in qkv("data", "check", tmp_path / "loop").error


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        (
            "a.txt",
            "EU\tORG\nrejects\tO\nthis\n\nGo\tO\non\tO\n\nAda\tPER\n\nHe\tO\n",
            "line 3 has a word without a tag",
        ),
        ("a.conll", "EU ORG\nrejects\n", "line 2 has a word without a tag"),
        ("a.txt", "(TOP (X (Y z)))\n" * 4 + "(TOP (X\n", "line 5"),
        ("a.tsv", "a text\tgood\n" * 4, "the same text"),
    ],
)
def test_a_broken_file_is_reported_in_the_format_that_it_resembles(
    qkv: Command, tmp_path: Path, name: str, content: str, words: str
) -> None:
    (tmp_path / name).write_text(content)
    assert words in qkv("data", "check", tmp_path / name).error


def test_the_task_can_be_given(qkv: Command, report: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    path = table(tmp_path, LABELED)
    assert report(path)["kind"] == "labelled"
    assert report(path, "--task", "translate")["kind"] == "pairs"
    assert "unknown task" in qkv("data", "check", path, "--task", "translat").error
    assert "copy-ntm" not in qkv("data", "check", path, "--task", "algorithmic").error
    assert "--recipe" in qkv("data", "check", path, "--task", "classify", *LSTM).error


def test_swapped_pairs_of_files_and_texts_are_reported(qkv: Command, tmp_path: Path) -> None:
    (tmp_path / "source.txt").write_text("\n".join(TEXTS))
    (tmp_path / "target.txt").write_text("\n".join(text[::-1] for text in TEXTS))
    ended = qkv("data", "check", tmp_path / "source.txt", tmp_path / "target.txt")
    assert ended.code == 0, ended.err
    assert "38 train, 2 valid pairs" in ended.out
    assert "few" in ended.out


def test_copies_of_recordings_are_warnings_but_equal_texts_are_not(
    report: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    for number in range(6):
        write_wav(tmp_path / f"{number}.wav", 0.1, 8000, seed=number)
        (tmp_path / f"{number}.txt").write_text("one")
    assert not any("duplicates" in warning for warning in report(tmp_path)["warnings"])
    shutil.copy(tmp_path / "1.wav", tmp_path / "7.wav")
    (tmp_path / "7.txt").write_text("seven")
    assert any("duplicates: 1 of 7" in warning for warning in report(tmp_path)["warnings"])
