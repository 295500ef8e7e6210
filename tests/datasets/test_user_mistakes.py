"""Common mistakes in a user's own files: each is a note or an input error of the function that loads the data."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from qkv.datasets.dataset import Dataset
from qkv.datasets.examples.pair import Pair
from qkv.datasets.formats.text_files import read_pairs
from qkv.errors import InputError
from tests.datasets.build import dataset
from tests.datasets.build import load as load_dataset

PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(range(256))
LABEL_HEADS = "".join(f"text number {number}\t{'good' if number % 2 else 'bad'}\n" for number in range(40))
PAIRS = "".join(f"satz {number}\tsentence {number}\n" for number in range(40))
CONLL = "".join(f"w{number}\tNOUN\nruns\tVERB\n.\tPUNCT\n\n" for number in range(40))


def load(folder: Path, name: str, content: str | bytes, kind: str, **config: object) -> Dataset[Any]:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return load_dataset(kind, train=(str(path),), **config)


def examples(loaded: Dataset[Any]) -> list[Pair]:
    return loaded.splits["train"] + loaded.splits["valid"]


@pytest.mark.parametrize(
    ("kind", "header", "rows"),
    [
        ("labelled", "text\tlabel", LABEL_HEADS),
        ("labelled", "Sentence\tSentiment", LABEL_HEADS),
        ("pairs", "source\ttarget", PAIRS),
        ("pairs", "DE\tEN", PAIRS),
    ],
)
def test_a_header_is_skipped_with_a_note_or_an_error_if_strict(tmp_path, kind, header, rows):
    loaded = load(tmp_path, "a.tsv", f"{header}\n{rows}", kind)
    assert len(examples(loaded)) == 40
    assert [note for note in loaded.notes if "header" in note]
    with pytest.raises(InputError, match="header"):
        load(tmp_path, "a.tsv", f"{header}\n{rows}", kind, strict=True)


@pytest.mark.parametrize(
    ("kind", "first", "rows"),
    [
        ("labelled", "text\tgood", LABEL_HEADS),  # one of the labels
        ("labelled", "text\ttext", LABEL_HEADS),
        ("labelled", "class\tlabel", LABEL_HEADS + "another text\tlabel\n"),
        ("pairs", "Guten Tag\ttext", PAIRS),
    ],
)
def test_a_first_line_that_may_be_data_is_kept(tmp_path, kind, first, rows):
    assert Pair(*first.split("\t")) in examples(load(tmp_path, "a.tsv", f"{first}\n{rows}", kind))


def test_nearly_one_label_for_each_text_is_an_error(tmp_path):
    with pytest.raises(InputError, match="40 different labels"):
        load(tmp_path, "a.tsv", PAIRS, "labelled")
    few = "".join(PAIRS.splitlines(keepends=True)[:20])
    assert len(examples(load(tmp_path, "a.tsv", few, "labelled"))) == 20
    with pytest.raises(InputError, match="different tags"):
        load(tmp_path, "a.conll", "".join(f"w{number}\tt{number}\n\n" for number in range(40)), "tagged")


def test_swapped_columns_are_detected(tmp_path):
    swapped = "".join("\t".join(reversed(line.split("\t"))) + "\n" for line in LABEL_HEADS.splitlines())
    with pytest.raises(InputError, match="swapped"):
        load(tmp_path, "a.tsv", swapped * 3, "labelled")


@pytest.mark.parametrize("content", [LABEL_HEADS, "She\tPRON\nreads\tVERB\n"])
def test_a_wrong_tagging_format_is_an_error_with_the_expected_format(tmp_path, content):
    with pytest.raises(InputError, match="CoNLL"):
        load(tmp_path, "a.tsv", content, "tagged")


def test_words_and_tags_read_as_pairs_are_noted(tmp_path):
    (tmp_path / "a.conll").write_text(CONLL)
    assert [note for note in read_pairs([tmp_path / "a.conll"])[1] if "CoNLL" in note]
    (tmp_path / "a.tsv").write_text(PAIRS + "\n" + PAIRS)
    assert not [note for note in read_pairs([tmp_path / "a.tsv"])[1] if "CoNLL" in note]


@pytest.mark.parametrize("kind", ["pairs", "labelled", "tagged", "text", "questions"])
@pytest.mark.parametrize(
    ("content", "words"),
    [(PNG, "PNG image"), (b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n", "PDF"), (b"PK\x03\x04\x14\0", "ZIP"), (b"a\tb\0\n", "NUL")],
)
def test_binary_files_are_recognized(tmp_path, kind, content, words):
    with pytest.raises(InputError, match="binary") as caught:
        load(tmp_path, "a.tsv", content, kind)
    assert words in str(caught.value)
    assert "iconv" not in str(caught.value)


@pytest.mark.parametrize("kind", ["pairs", "labelled"])
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", 'a text,x\n"one, with ""quotes""\nand two lines",y\n\n'),
        ("a.CSV", 'text,label\r\na text,x\r\n"one, with ""quotes""\nand two lines",y\r\n'),
        ("a.jsonl", '{"id": "7", "text": "a text", "label": "x", "source": "a text", "target": "x"}\n\n'
                    '{"text": "", "label": "", "source": "one, with \\"quotes\\"\\nand two lines", "target": "y"}\n'),
        ("b.jsonl", '{"sentence": "a text", "id": 1, "tag": "x"}\n'
                    '{"id": 2, "tag": "y", "sentence": "one, with \\"quotes\\"\\nand two lines"}\n'),
    ],
)  # fmt: skip
def test_csv_and_json_lines_are_read_by_their_names(tmp_path, kind, name, content):
    (tmp_path / name).write_bytes(content.encode())
    found = read_pairs([tmp_path / name], labelled=kind == "labelled")[0]
    if (kind, name) == ("labelled", "a.jsonl"):
        assert found == [Pair("a text", "x")]
    else:
        assert found == [Pair("a text", "x"), Pair('one, with "quotes"\nand two lines', "y")]


def test_labels_in_json_lines_may_be_numbers(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "a", "label": 0}\n{"text": "b", "label": 1}\n')
    assert read_pairs([tmp_path / "a.jsonl"], labelled=True)[0] == [Pair("a", "0"), Pair("b", "1")]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.csv", "a,b\nc\n", "line 2"),
        ("a.csv", f"a,{'b' * 200_000}\n", "CSV"),
        ("a.jsonl", '{"text": "a", "label": "b"}\n[1]\n', "line 2"),
        ("a.jsonl", '{"text": "a", "label": "b"}\n{"text": "a"}\n', "line 2"),
        ("a.jsonl", '{"x": "a", "y": "b", "z": "c"}\n', "line 1"),
        ("a.jsonl", '{"text": "\\ud800", "label": "b"}\n', "line 1"),
        ("a.jsonl", "[" * 100_000 + "\n", "JSON"),
        ("a.tsv", "a,b\n", ".csv"),
        ("a.tsv", '{"text": "a"}\n', ".jsonl"),
    ],
)
def test_a_malformed_table_is_an_error_that_names_its_line_or_format(tmp_path, name, content, words):
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError) as caught:
        read_pairs([tmp_path / name], labelled=True)
    assert words in str(caught.value)
    assert len(str(caught.value)) < 500


def test_data_are_read_from_regular_files_only(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop.tsv").symlink_to("loop.tsv")
    for kind in ("pairs", "labelled", "tagged", "text", "questions"):
        for path in (tmp_path / "fifo", tmp_path / "loop.tsv", tmp_path, tmp_path / "a\0b", Path("/dev/zero")):
            with pytest.raises(InputError):
                load_dataset(kind, train=(str(path),))
    with pytest.raises(InputError, match="pipe"):
        load_dataset("pairs", train=(str(tmp_path / "fifo"),))


def test_paths_are_made_absolute_and_links_are_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link.tsv").symlink_to("elsewhere.tsv")
    (tmp_path / "loop").symlink_to("loop")
    config = dataset("pairs", train=("link.tsv",), folder="loop")
    assert (config.train, config.folder) == ((str(tmp_path / "link.tsv"),), str(tmp_path / "loop"))


def test_features_are_read_from_a_regular_file_only(tmp_path):
    from qkv.datasets.examples.captions import read_features

    os.mkfifo(tmp_path / "features.safetensors")
    with pytest.raises(InputError, match="pipe"):
        read_features(tmp_path / "features.safetensors")


def test_squad_errors_quote_only_a_few_characters(tmp_path):
    wrong = {"context": "x" * 10**6, "qas": [{"question": "q", "answers": [{"text": "y" * 10**6, "answer_start": 0}]}]}
    with pytest.raises(InputError) as caught:
        load(tmp_path, "a.json", json.dumps({"data": [{"paragraphs": [wrong]}]}), "questions")
    assert len(str(caught.value)) < 500
