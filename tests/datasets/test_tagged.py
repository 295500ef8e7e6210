"""Tests of tagged sentences: both file formats and their errors."""

import os
from pathlib import Path

import pytest

from qkv.datasets.dataset import TaggedDataset
from qkv.datasets.detect import infer_kind
from qkv.datasets.examples.tagged import Tagged, parse_columns, parse_conllu
from qkv.errors import InputError
from tests.datasets.build import dataset, load

TREE = """# text = They're late
1-2\tThey're\t_\t_\t_\t_\t_\t_\t_\t_
1\tThey\tthey\tPRON\tPRP\t_\t3\tnsubj\t_\t_
2\t're\tbe\tAUX\tVBP\t_\t3\tcop\t_\t_
3\tlate\tlate\tADJ\tJJ\t_\t0\troot\t_\t_
3.1\tnow\tnow\tADV\tRB\t_\t_\t_\t_\t_

# text = Go
1\tGo\tgo\tVERB\tVB\t_\t0\troot\t_\t_
"""


def test_columns_have_the_word_first_and_the_tag_last():
    lines = ["EU\tNNP\tB-group", "rejects\tVBZ\tO", "\t", "", "Go\tVB\tO"]
    assert parse_columns(lines, "f") == [Tagged(("EU", "rejects"), ("B-group", "O")), Tagged(("Go",), ("O",))]


def test_lines_between_documents_are_skipped(tmp_path: Path):
    start = ["-DOCSTART- -X- O", ""]
    lines = [*start, "EU NNP B-group", "rejects VBZ O", "", "Go VB O", "", *start, "Stop VB O", ""]
    sentences = parse_columns(lines, "f")
    assert [sentence.words for sentence in sentences] == [("EU", "rejects"), ("Go",), ("Stop",)]
    (tmp_path / "a.txt").write_text("\n".join(lines).replace(" -X-", ""))  # with another number of columns
    assert infer_kind([tmp_path / "a.txt"]) == "tagged"
    assert sum(map(len, load("tagged", train=(str(tmp_path / "a.txt"),)).splits.values())) == 3


def test_conllu_skips_multiword_tokens_and_empty_nodes():
    assert parse_conllu(TREE.split("\n"), "f") == [
        Tagged(("They", "'re", "late"), ("PRON", "AUX", "ADJ"), (3, 3, 0)),
        Tagged(("Go",), ("VERB",), (0,)),
    ]


@pytest.mark.parametrize(
    ("column", "tags"),
    [("upos", ("PRON", "AUX", "ADJ")), ("xpos", ("PRP", "VBP", "JJ")), ("deprel", ("nsubj", "cop", "root"))],
)
def test_tags_come_from_the_configured_column(column, tags, tmp_path: Path):
    (tmp_path / "a.conllu").write_text(TREE)
    path = str(tmp_path / "a.conllu")
    loaded = load("tagged", train=(path,), valid=(path,), column=column)
    assert loaded.splits["train"][0] == Tagged(("They", "'re", "late"), tags, (3, 3, 0))


def test_column_is_rejected_for_other_formats(tmp_path: Path):
    (tmp_path / "a.txt").write_text("a X\n")
    with pytest.raises(InputError, match=r"a\.txt: data\.column = 'deprel' requires CoNLL-U"):
        load("tagged", train=(str(tmp_path / "a.txt"),), column="deprel")
    with pytest.raises(InputError, match="unknown key column"):
        dataset("wnut17", column="deprel")


def tree(*heads: int) -> list[str]:
    return [f"{number}\tw\tw\tX\t_\t_\t{head}\tdep\t_\t_" for number, head in enumerate(heads, start=1)]


@pytest.mark.parametrize(
    ("heads", "words"),
    [
        ((0, 1, 0), "f: line 1: the sentence has 2 roots"),
        ((2, 1), "f: line 1: the sentence has 0 roots"),
        ((0, 2), "f: line 1: .* cycle at word 2"),
        ((0, 3, 4, 3, 2), "f: line 1: .* cycle at word 3"),  # word 2 is not part of the cycle
        ((0, 4, 1), "f: line 1: a head is not a word of the sentence"),
    ],
)
def test_heads_that_are_not_a_tree_are_rejected(heads, words):
    with pytest.raises(InputError, match=words):
        parse_conllu(tree(*heads), "f")
    assert parse_conllu(tree(2, 3, 0, 3, 2, 5), "f")[0].heads == (2, 3, 0, 3, 2, 5)


@pytest.mark.parametrize(
    ("parse", "lines", "words"),
    [
        (parse_columns, ["a O", "b"], "f: line 2 has a word without a tag, or a tag without a word: 'b'"),
        (parse_columns, ["a\tO", "b\t"], "f: line 2 has a word without a tag"),
        (parse_columns, ["a\tO", "\tO"], "f: line 2 has a word without a tag"),
        (parse_columns, ["# text = a b", "a X"], "f: line 2 has 2 columns, the first 5: 'a X'"),
        (parse_columns, ["a X", "b Y Z"], "f: line 2 has 3 columns, the first 2"),
        (parse_conllu, ["1 a a X _ _ 0 _ _ _"], "f: line 1 is not CoNLL-U"),
        (parse_conllu, ["1\ta"], "f: line 1 is not CoNLL-U"),
        (parse_conllu, ["1\ta\ta\t\t_\t_\t0\t_\t_\t_"], "f: line 1 has an empty word or tag"),
        (parse_conllu, ["1\ta\ta\tX\t_\t_\tx\t_\t_\t_"], "f: line 1 is not CoNLL-U"),
        (parse_conllu, ["1\ta\ta\tX\t_\t_\t²\t_\t_\t_"], "f: line 1 is not CoNLL-U"),
        (parse_conllu, [f"1\ta\ta\tX\t_\t_\t{'1' * 5000}\t_\t_\t_"], "f: line 1 is not CoNLL-U"),
        (parse_conllu, ["1\ta\ta\tX\t_\t_\t2\t_\t_\t_"], "f: line 1: a head is not a word of the sentence"),
    ],
)
def test_malformed_files_are_reported_with_the_line(parse, lines, words):
    with pytest.raises(InputError) as caught:
        parse(lines, "f")
    assert str(caught.value).startswith(words)


def test_user_files_are_read_by_suffix_and_a_share_is_held_out(tmp_path: Path):
    (tmp_path / "a.conllu").write_text(TREE)
    (tmp_path / "b.txt").write_text("".join(f"w{number} O\n\n" for number in range(98)))
    loaded = load("tagged", train=(str(tmp_path / "a.conllu"), str(tmp_path / "b.txt")))
    assert len(loaded.splits["train"]) == 95
    assert len(loaded.splits["valid"]) == 5
    assert loaded.fingerprint != TaggedDataset({"train": loaded.splits["train"]}).fingerprint


def test_user_sentences_need_a_file():
    with pytest.raises(InputError, match=r"no tagged sentences given: --data train\.conllu"):
        load("tagged")


@pytest.mark.corpus
@pytest.mark.skipif("QKV_DATA" not in os.environ, reason="needs real data under QKV_DATA")
def test_every_sentence_of_ewt_has_a_tree_with_labels():
    sentences = load("ud_english_ewt", column="deprel").splits["train"]
    assert len({tag for one in sentences for tag in one.tags}) == 51
    for one in sentences:
        assert len(one.heads) == len(one.words)
        assert [tag == "root" for tag in one.tags] == [head == 0 for head in one.heads]


def test_a_sentence_with_unspecified_heads_has_none():
    words = ["1\ta\ta\tX\t_\t_\t_\t_\t_\t_", "2\tb\tb\tY\t_\t_\t1\t_\t_\t_"]
    assert parse_conllu(words, "f") == [Tagged(("a", "b"), ("X", "Y"), None)]
