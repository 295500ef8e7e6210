"""Questions about texts, whose answers stand in them, and the files of SQuAD's making that they come in.

{"data": [{"paragraphs": [{"context": "...", "qas": [
    {"question": "...", "answers": [{"text": "...", "answer_start": 17}], "is_impossible": false}]}]}]}
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from qkv.config import shown
from qkv.data.rows import parse_json
from qkv.errors import InputError


@dataclass(frozen=True, slots=True)
class Passage:
    """A part of a text: its first character, and the one after its last."""

    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Question:
    """A question about a text, and where in it the answers stand that people gave; without any it has no answer."""

    question: str
    text: str
    answers: tuple[Passage, ...] = ()

    @property
    def right(self) -> tuple[str, ...]:
        """The answers that people gave, in words."""
        return tuple(self.text[one.begin : one.end] for one in self.answers)


def parse_squad(content: str, where: str) -> list[Question]:
    """The questions of a file in SQuAD's format (Rajpurkar et al. 2016, 2018); `where` opens every error message."""
    if not content.strip():
        raise InputError(f"{where}: is empty")
    data = parse_json(content, where)
    found = list(_questions(data, where))
    if not found:
        raise InputError(f"{where}: no questions found")
    return found


def _questions(data: Any, where: str) -> Iterator[Question]:
    for article, at in _each(data, "data", where):
        for paragraph, below in _each(article, "paragraphs", at):
            text = _filled(paragraph, "context", below)
            for asked, here in _each(paragraph, "qas", below):
                yield Question(_filled(asked, "question", here), text, tuple(_answers(asked, text, here)))


def _answers(asked: Mapping[str, Any], text: str, where: str) -> Iterator[Passage]:
    impossible = asked.get("is_impossible", False)
    if not isinstance(impossible, bool):
        raise InputError(f"{where}: is_impossible must be true or false, not {shown(repr(impossible), 40)}")
    if impossible:  # what was plausible is no answer
        return
    answers = list(_each(asked, "answers", where))
    if not answers:
        raise InputError(f'{where}: has no answers; where there is none, say "is_impossible": true')
    for answer, here in answers:
        words, begin = _filled(answer, "text", here), answer.get("answer_start")
        if type(begin) is not int or begin < 0:
            raise InputError(f"{here}: answer_start must be the number of a character, not {shown(repr(begin), 40)}")
        passage = Passage(begin, begin + len(words))
        stands = text[passage.begin : passage.end]
        if stands != words:
            raise InputError(
                f"{here}: {shown(repr(words), 40)} does not stand at {shown(str(begin), 20)} of its context, but "
                f"{shown(repr(stands), 40)}"
            )
        yield passage


def _each(holder: Any, key: str, where: str) -> Iterator[tuple[Mapping[str, Any], str]]:
    """The objects of a list that an object holds, each with where it is."""
    items = holder.get(key) if isinstance(holder, dict) else None
    if not isinstance(items, list):
        raise InputError(f"{where}: must be an object with a list of {key!r}, as SQuAD has it")
    for number, item in enumerate(items):
        here = f"{where}{': ' if key == 'data' else '.'}{key}[{number}]"
        if not isinstance(item, dict):
            raise InputError(f"{here}: must be an object")
        yield item, here


def _filled(holder: Mapping[str, Any], key: str, where: str) -> str:
    value = holder.get(key)
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"{where}: {key} must be a text that is not empty")
    return value
