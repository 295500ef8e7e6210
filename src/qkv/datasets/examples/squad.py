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


def question_of_row(cells: Mapping[str, str | list[str]], where: str) -> Question:
    """Return the question of a row of a table; answers without a start are searched in the context."""
    for role in ("question", "context"):
        if not isinstance(cells[role], str) or not cells[role]:
            raise InputError(f"{where}: {role} must be a non-empty text")
    question, context = str(cells["question"]), str(cells["context"])
    answers, starts = (
        list(filter(None, cell if isinstance(cell, list) else [cell]))
        for cell in (cells["answer"], cells["answer_start"])
    )
    if starts and len(starts) != len(answers):
        raise InputError(f"{where}: has {len(answers)} answer(s) but {len(starts)} answer_start(s)")
    spans = []
    for index, answer in enumerate(answers):
        begin = _start(starts[index], where) if starts else context.find(answer)
        if context[max(begin, 0) : begin + len(answer)] != answer:
            at = f"at {begin:,}" if starts else "anywhere"
            raise InputError(f"{where}: the context does not have the answer {printable(repr(answer), 40)} {at}")
        spans.append(Passage(begin, begin + len(answer)))
    return Question(question, context, tuple(spans))


def _start(text: str, where: str) -> int:
    if text.strip().isascii() and text.strip().isdigit() and len(text) < 12:
        return int(text)
    raise InputError(f"{where}: answer_start must be a character index, not {printable(repr(text), 40)}")


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
