"""Tagged sentences: both kinds of file, and words for what is wrong in one."""

from pathlib import Path

import pytest

from qkv.data.registry import DataConfig, Loaded, load_data
from qkv.data.tagged import Tagged, parse_columns, parse_conllu
from qkv.errors import InputError

TREE = """# text = They're late
1-2\tThey're\t_\t_\t_\t_\t_\t_\t_\t_
1\tThey\tthey\tPRON\tPRP\t_\t3\tnsubj\t_\t_
2\t're\tbe\tAUX\tVBP\t_\t3\tcop\t_\t_
3\tlate\tlate\tADJ\tJJ\t_\t0\troot\t_\t_
3.1\tnow\tnow\tADV\tRB\t_\t_\t_\t_\t_

# text = Go
1\tGo\tgo\tVERB\tVB\t_\t0\troot\t_\t_
"""


def test_columns_have_the_word_first_and_the_tag_last_with_any_space_between_sentences():
    lines = ["EU\tNNP\tB-group", "rejects\tVBZ\tO", "\t", "", "Go\tVB\tO"]
    assert parse_columns(lines, "f") == [Tagged(("EU", "rejects"), ("B-group", "O")), Tagged(("Go",), ("O",))]


def test_conllu_gives_words_parts_of_speech_and_heads_without_contractions_and_empty_words():
    assert parse_conllu(TREE.split("\n"), "f") == [
        Tagged(("They", "'re", "late"), ("PRON", "AUX", "ADJ"), (3, 3, 0)),
        Tagged(("Go",), ("VERB",), (0,)),
    ]


@pytest.mark.parametrize(
    ("parse", "lines", "words"),
    [
        (parse_columns, ["a O", "b"], "f: line 2 has a word without a tag: 'b'"),
        (parse_columns, ["# text = a b", "a X"], "f: line 2 has 2 columns, the first 5: 'a X'; a comment has to go"),
        (parse_columns, ["a X", "b Y Z"], "f: line 2 has 3 columns, the first 2"),
        (parse_conllu, ["1 a a X _ _ 0 _ _ _"], "f: line 1 is no word of CoNLL-U"),
        (parse_conllu, ["1\ta"], "f: line 1 is no word of CoNLL-U"),
        (parse_conllu, ["1\ta\ta\tX\t_\t_\tx\t_\t_\t_"], "f: line 1 is no word of CoNLL-U"),
        (parse_conllu, ["1\ta\ta\tX\t_\t_\t2\t_\t_\t_"], "f: line 1: a head of this sentence is not in it"),
    ],
)
def test_what_is_wrong_in_a_file_is_said_with_its_line(parse, lines, words):
    with pytest.raises(InputError) as caught:
        parse(lines, "f")
    assert str(caught.value).startswith(words)


def test_own_files_are_read_by_their_ending_and_a_share_is_held_out(tmp_path: Path):
    (tmp_path / "a.conllu").write_text(TREE)
    (tmp_path / "b.txt").write_text("".join(f"w{number} O\n\n" for number in range(98)))
    loaded = load_data(DataConfig(name="tagged", train=(str(tmp_path / "a.conllu"), str(tmp_path / "b.txt"))))
    assert len(loaded.tagged["train"]) == 95
    assert len(loaded.tagged["valid"]) == 5
    assert loaded.fingerprint != Loaded({}, tagged={"train": loaded.tagged["train"]}).fingerprint


def test_own_sentences_need_a_file():
    with pytest.raises(InputError, match=r"no tagged sentences given: --data train\.conllu"):
        load_data(DataConfig(name="tagged"))
