"""Tests of sentence splitting."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.tokenizers.sentences import split_sentences
from tests.limits import cpu_limit


@pytest.mark.parametrize(
    "sentences",
    [
        ["It is bad.", "I left!", "Really?!", "Yes."],
        ["Mr. and Mrs. Smith met Dr. No.", "He smiled."],
        ["J. R. R. Tolkien and George W. Bush walk in.", "It ends."],
        ["So did he and I.", "He left."],
        ['"Why?" he asked.', '"Go!" she said.', '"No."', "He went (sadly.)", "The end."],
        ["He said ‘go.’", "“Stop.”", "It ends."],
        ["It was... well... bad.", "And long…", "And loud... and slow."],
        ["Hmm . . . right .", "The end ."],
        ["It costs 3.50 at 5 p.m. sharp, i.e. nothing, e.g. for Mr. Bean.", "Go."],
        ["He lives in the U.S. Army camp of the U.K.", "The rest do not.", "They are cats, dogs, etc.", "I am none."],
        ["He is Robert Downey Jr.", "The others are not, nor is Cuba Gooding Jr. Someone."],
        ["See No. 5 and vol. 2, pp. 3.", "No.", "He did not."],
        ["4/10.", "It is 1999.", "We left."],
        ["1. The plot is bad.", "2. The cast is not.", "a. One.", "B. Two."],
        ["A bad film.", "what a pity!", "i left."],
        ["Visit www.IMDb.com or a.b.c now.", "Version 2.0 is out."],
        ["Wow!!!", "Great???", "(And how.)", "[Yes.]"],
    ],
)  # fmt: skip
def test_sentence_boundaries(sentences):
    assert split_sentences(" ".join(sentences)) == sentences


def test_a_missing_space_between_a_word_and_a_capitalised_one_is_a_boundary():
    assert split_sentences("A bad film.The plot!It drags.i know") == ["A bad film.", "The plot!", "It drags.i know"]
    assert split_sentences("Dr.Strange and St.John act.Well, ok.") == ["Dr.Strange and St.John act.", "Well, ok."]


def test_a_line_break_ends_a_sentence_unless_lower_case_follows():
    assert split_sentences("A title\nA line that\ngoes on.\n\nmore") == ["A title", "A line that\ngoes on.", "more"]
    assert split_sentences("Pros\n- acting\n Cons\r\nnone\n\nbut this") == [
        "Pros",
        "- acting",
        "Cons\r\nnone",
        "but this",
    ]


@pytest.mark.parametrize("text", ["", " ", "\n\n \t"])
def test_blank_texts_have_no_sentences(text):
    assert split_sentences(text) == []


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.text(max_size=60), st.text("aBI1. .!?…\n\"')(Mrs", max_size=60)))
def test_sentences_concatenate_to_the_text_and_are_not_empty(text):
    found = split_sentences(text)
    assert "".join("".join(found).split()) == "".join(text.split())
    assert all(one == one.strip() != "" for one in found)


@pytest.mark.parametrize("part", [".", " ", "\n", "a", "'", ". ", ". (", "\n ", "a.'"])
def test_long_repetitive_texts_take_linear_time(part):
    with cpu_limit(30):  # linear time takes 0.1 s, quadratic time minutes
        split_sentences(part * 100_000 + "x")
