"""Tests of the SQuAD format."""

import json
from typing import Any

import pytest

from qkv.datasets.examples.squad import Passage, Question, parse_squad
from qkv.errors import InputError

TEXT = "The cat sat on the mat."


def squad(*asked: Any, context: Any = TEXT) -> str:
    return json.dumps({"version": "v2.0", "data": [{"title": "x", "paragraphs": [{"context": context, "qas": asked}]}]})


def asked(question: Any = "Who?", *answers: Any, **more: Any) -> dict[str, Any]:
    given = [{"text": words, "answer_start": begin} for words, begin in answers]
    return {"id": "1", "question": question, "answers": given, **more}


def test_answers_are_spans_of_the_text():
    content = squad(asked("Who sat?", ("The cat", 0), ("cat", 4)), asked("Why?", is_impossible=True))
    first, second = parse_squad(content, "file")
    assert first == Question("Who sat?", TEXT, (Passage(0, 7), Passage(4, 7)))
    assert first.answer_texts == ("The cat", "cat")
    assert (second.question, second.answer_texts) == ("Why?", ())


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "file: .*JSON"),
        ("[" * 100_000, "file: .*JSON"),
        ("[]", "file: .*'data'"),
        ('{"data": [1]}', r"file: data\[0\]"),
        ('{"data": [{}]}', r"file: data\[0\].*'paragraphs'"),
        ('{"data": []}', "file: .*questions"),
        (squad(context=" "), r"data\[0\]\.paragraphs\[0\].*context"),
        (squad(asked(3, ("cat", 4))), r"qas\[0\].*question"),
        (squad(asked()), r"qas\[0\].*answers"),
        (squad(asked(is_impossible="no")), "is_impossible.*'no'"),
        (squad(asked("Who?", ("cat", 4), ("", 0))), r"answers\[1\].*text"),
        (squad(asked("Who?", ("cat", True))), "answer_start.*True"),
        (squad(asked("Who?", ("cat", -19))), "answer_start.*-19"),
        (squad(asked("Who?", ("cat", 5))), "'at '.*'cat'"),
        (squad(asked("Who?", ("cat", 900))), "900.*'cat'"),
    ],
)
def test_malformed_squad_files_are_reported_with_the_location(content, words):
    with pytest.raises(InputError, match=words):
        parse_squad(content, "file")
