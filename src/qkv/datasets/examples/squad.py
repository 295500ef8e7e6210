"""Extractive question answering: questions with answer spans, and the SQuAD file format.

{"data": [{"paragraphs": [{"context": "...", "qas": [
    {"question": "...", "answers": [{"text": "...", "answer_start": 17}], "is_impossible": false}]}]}]}
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from qkv.datasets.formats.tables import parse_json
from qkv.errors import InputError
from qkv.runtime.text import printable


@dataclass(frozen=True, slots=True)
class Passage:
    """A span [begin, end) of characters of a text."""

    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Question:
    """A question about a text, with reference answer spans; none if the question is unanswerable."""

    question: str
    text: str
    answers: tuple[Passage, ...] = ()

    @property
    def answer_texts(self) -> tuple[str, ...]:
        """The texts of the reference answers."""
        return tuple(self.text[span.begin : span.end] for span in self.answers)


def parse_squad(content: str, where: str) -> list[Question]:
    """Parse a file in SQuAD format (Rajpurkar et al. 2016, 2018); error messages start with `where`."""
    if not content.strip():
        raise InputError(f"{where}: is empty")
    data = parse_json(content, where)
    questions = list(_questions(data, where))
    if not questions:
        raise InputError(f"{where}: no questions found")
    return questions


def _questions(data: Any, where: str) -> Iterator[Question]:
    for article, article_path in _items(data, "data", where):
        for paragraph, paragraph_path in _items(article, "paragraphs", article_path):
            text = _text(paragraph, "context", paragraph_path)
            for entry, path in _items(paragraph, "qas", paragraph_path):
                yield Question(_text(entry, "question", path), text, tuple(_answers(entry, text, path)))


def _answers(question: Mapping[str, Any], text: str, where: str) -> Iterator[Passage]:
    impossible = question.get("is_impossible", False)
    if not isinstance(impossible, bool):
        raise InputError(f"{where}: is_impossible must be true or false, not {printable(repr(impossible), 40)}")
    if impossible:  # plausible answers are ignored
        return
    answers = list(_items(question, "answers", where))
    if not answers:
        raise InputError(f'{where}: has no answers; mark unanswerable questions with "is_impossible": true')
    for answer, path in answers:
        expected, begin = _text(answer, "text", path), answer.get("answer_start")
        if type(begin) is not int or begin < 0:
            raise InputError(f"{path}: answer_start must be a character index, not {printable(repr(begin), 40)}")
        span = Passage(begin, begin + len(expected))
        actual = text[span.begin : span.end]
        if actual != expected:
            raise InputError(
                f"{path}: the context has {printable(repr(actual), 40)} at {printable(str(begin), 20)}, not "
                f"{printable(repr(expected), 40)}"
            )
        yield span


def _items(parent: Any, key: str, where: str) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Yield the objects of the list `key` of an object, each with its path for error messages."""
    items = parent.get(key) if isinstance(parent, dict) else None
    if not isinstance(items, list):
        raise InputError(f"{where}: must be an object with a list {key!r}, as in SQuAD")
    for index, item in enumerate(items):
        path = f"{where}{': ' if key == 'data' else '.'}{key}[{index}]"
        if not isinstance(item, dict):
            raise InputError(f"{path}: must be an object")
        yield item, path


def _text(parent: Mapping[str, Any], key: str, where: str) -> str:
    value = parent.get(key)
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"{where}: {key} must be a non-empty string")
    return value
