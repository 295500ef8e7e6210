"""Common mistakes in a user's own files: each is a note or an input error of the function that loads the data."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

import qkv
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


def test_an_unclosed_quote_is_reported_where_it_opens(tmp_path):
    rows = "".join(f'"text, {number}",{"good" if number % 2 else "bad"}\n' for number in range(20))
    for content in (f'text,label\n{rows}"not closed,good\n{rows}', f'text,label\n{rows}"not closed,good\n'):
        with pytest.raises(InputError, match=r'line 22: .*quote \("\) is not closed'):
            load(tmp_path, "a.csv", content, "labelled")
    with pytest.raises(InputError, match="line 22 not closed"):
        load(tmp_path, "a.csv", f'text,label\n{rows}"{"not closed,good" * 10_000}\n', "labelled")
    loaded = load(tmp_path, "a.csv", f'text,label\n{rows}a 5" disk,good\n"two\nlines",bad\n', "labelled")
    assert len(examples(loaded)) == 22


def test_labels_of_several_types_are_noted(tmp_path):
    rows = [{"text": f"text {number}", "label": "good" if number % 2 else "bad"} for number in range(40)]
    rows += [{"text": "a", "label": True}, {"text": "b", "label": None}, {"text": None, "label": "good"}]
    loaded = load(tmp_path, "a.jsonl", "\n".join(map(json.dumps, rows)), "labelled")
    (types,) = [note for note in loaded.notes if "several types" in note]
    assert "label" in types
    assert "boolean in line 41 (true)" in types
    assert any("with no label, the first at line 42" in note for note in loaded.notes)
    assert any("with an empty text, the first at line 43" in note for note in loaded.notes)
    numbers = "\n".join(json.dumps({"text": f"t {number}", "label": number % 2}) for number in range(40))
    assert not any("several types" in note for note in load(tmp_path, "b.jsonl", numbers, "labelled").notes)


def test_one_example_is_too_few(tmp_path):
    with pytest.raises(InputError, match="single example"):
        load(tmp_path, "a.tsv", "ein Satz\tone sentence\n", "pairs")


def test_an_unknown_role_is_named_with_the_roles(tmp_path):
    with pytest.raises(InputError, match=r"--column txt=feedback: unknown role txt .*text, label"):
        load(tmp_path, "a.tsv", LABEL_HEADS, "labelled", column_names={"txt": "feedback"})


def test_rows_in_memory_are_named_as_such():
    with pytest.raises(InputError) as error:
        qkv.train("polarity-bert", data=[{"a": 1}])
    assert "DataFrame or list in data: row 1 lacks text, label" in str(error.value)
    assert "its columns are a" in str(error.value)
    assert "rows.jsonl" not in str(error.value)
