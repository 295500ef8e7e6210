"""SAMSum: chats on one line, training chats of other splits left out, malformed lines, and the real files."""

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from qkv.datasets.corpora.text import samsum
from qkv.datasets.dataset import PairDataset
from qkv.datasets.examples.pair import Pair
from qkv.errors import InputError
from qkv.registry import registered
from qkv.tokenizers import BPETokenizer
from tests.datasets.build import load

real = pytest.mark.skipif("QKV_DATA" not in os.environ, reason="QKV_DATA names no folder with the real data sets")
Load = Callable[..., PairDataset]
CHATS = {
    "train.jsonl": [
        ("1", "Ann: Hi,  Bob!\r\nBob: Hello :-)\r\n\r\nAnn: Bye", "Ann greets\r\nBob. "),
        ("2", "Cy: skipped by its id", "Skipped."),
        ("3", "Ann:  in   test", "In the test split, too."),
        ("4", "\r\n", "Empty."),
    ],
    "validation.jsonl": [("5", "Dan: valid", "Valid.")],
    "test.jsonl": [("6", "Ann: in test", "Test.")],
}


@pytest.fixture
def load_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Load small files instead of the real ones; arguments replace their content."""
    monkeypatch.delenv("QKV_DATA", raising=False)

    def load_files(**contents: bytes) -> PairDataset:
        files = []
        for file in registered("dataset")["samsum"].files:
            name = Path(file.path).name
            rows = [dict(zip(("id", "dialogue", "summary"), row, strict=True)) for row in CHATS.get(name, [])]
            content = "".join(json.dumps(row) + "\n" for row in rows).encode() or b"2\n7\n"
            content = contents.get(name.split(".")[0], content)
            path = tmp_path / file.path
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)
            files.append(replace(file, size=len(content), sha256=hashlib.sha256(content).hexdigest()))
        monkeypatch.setattr(registered("dataset")["samsum"], "files", tuple(files))
        return load("samsum", folder=str(tmp_path))

    return load_files


def test_utterances_are_joined_and_repeated_chats_left_out(load_small: Load) -> None:
    data = load_small()
    assert data.splits == {
        "train": [Pair("Ann: Hi, Bob! | Bob: Hello :-) | Ann: Bye", "Ann greets Bob.")],
        "valid": [Pair("Dan: valid", "Valid.")],
        "test": [Pair("Ann: in test", "Test.")],
    }
    assert data.separator == " | "
    assert "3 empty or repeated" in data.notes[0]


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b'{"id": "1", "dialogue": "Ann: Hi"}\n', "line 1"),
        (b'{"id": "1", "dialogue": "Ann: Hi", "summary": "Hi."}\n[]\n', "line 2"),
        (b'{"id": "1", "dialogue": 5, "summary": "Hi."}\n', "line 1"),
        (b'{"id": "1", "dialogue"\n', "line 1"),
        (b"\xff\xfe\n", "UTF-8"),
        (b"", "empty"),
    ],
)
def test_malformed_files_are_errors_that_name_the_line(load_small: Load, content: bytes, line: str) -> None:
    with pytest.raises(InputError, match=f"train.jsonl.*{line}"):
        load_small(train=content)


def test_names_have_the_same_tokens_in_chats_and_summaries() -> None:
    chat, summary = samsum.one_line("Amanda: Hi\nJerry: Hello"), "Amanda and Jerry"
    tokenizer = BPETokenizer.train([chat, summary] * 5, vocab_size=100)
    source, target = tokenizer.encode([chat, summary])
    assert {target[0], target[-1]} <= set(source)


@real
def test_the_real_files_have_disjoint_splits() -> None:
    data = load("samsum")
    assert {split: len(pairs) for split, pairs in data.splits.items()} == {"train": 14638, "valid": 818, "test": 819}
    sources = {split: {pair.source for pair in pairs} for split, pairs in data.splits.items()}
    assert not sources["train"] & (sources["valid"] | sources["test"])
    assert all("\n" not in pair.source and pair.target for pairs in data.splits.values() for pair in pairs)
