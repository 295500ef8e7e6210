"""`qkv data baseline`: ROUGE of the first sentences, its record, and bad input."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from qkv.datasets.dataset import PairDataset
from qkv.datasets.examples.pair import Pair
from qkv.experiments.results import read_records
from qkv.registry import registered

from .command import Ended

Command = Callable[..., Ended]
CHATS = [Pair("Ann: a b | Bob: c | Ann: d | Bob: e", "a b c"), Pair("Ann: x", "y")]


@pytest.fixture(autouse=True)
def chats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the chats of samsum."""
    data = PairDataset({"train": CHATS, "test": CHATS}, separator=" | ")
    monkeypatch.setattr(registered("dataset")["samsum"], "read", lambda config: data)


def test_scores_are_printed_and_recorded(qkv: Command, tmp_path: Path) -> None:
    """Lead-1 of the first chat is "ann a b": two of three words; the second one has none."""
    ended = qkv("data", "baseline", "samsum", "--sentences", 1, "--json", "--output", tmp_path / "runs" / "lead")
    scores = json.loads(ended.out)
    assert scores["rouge_1"] == scores["rouge_l"] == pytest.approx(1 / 3)
    assert (scores["size"], scores["split"], scores["sentences"]) == (2, "test", 1)
    (record,) = read_records(tmp_path / "runs" / "lead")
    assert record.recipe == "lead-1"
    assert record.score("rouge_l").value == scores["rouge_l"]
    assert record.command.startswith("qkv data baseline samsum --split test --sentences 1")
    assert "lead-1" in qkv("compare", tmp_path / "runs" / "lead").out


def test_the_table_has_a_line_for_each_score(qkv: Command) -> None:
    ended = qkv("data", "baseline", "samsum", "--split", "train")
    assert [line.split()[0] for line in ended.out.splitlines()] == ["ROUGE-1", "ROUGE-2", "ROUGE-L"]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["nothing"], "nothing"),
        (["samsum", "--split", "tset"], "test"),
        (["shapes"], "captions"),
        (["samsum", "--output", "/dev/null/lead"], "/dev/null"),
    ],
)
def test_bad_input_is_an_error(qkv: Command, arguments: list[str], word: str) -> None:
    ended = qkv("data", "baseline", *arguments)
    assert ended.code == 2
    assert word in ended.err


def test_sentences_must_be_positive(qkv: Command) -> None:
    assert qkv("data", "baseline", "samsum", "--sentences", 0).code == 2
