"""Answering: a question and a text in, and out where in the text the answer stands."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from qkv.config import require
from qkv.data.questions import Question
from qkv.errors import InputError
from qkv.models.bert import Bert
from qkv.tasks.reader import BATCH_TOKENS, Reader
from qkv.tasks.windows import LONGEST_ANSWER, Findings, find, question_room, windows_of


@dataclass(frozen=True)
class Candidate:
    """A part of the text that may be the answer."""

    text: str
    begin: int  # its first character,
    end: int  # and the one after its last
    probability: float


@dataclass(frozen=True)
class Answered:
    """A question about a text, and where the answer may stand."""

    question: str
    text: str
    candidates: tuple[Candidate, ...]  # the most probable first
    no_answer: float  # the probability that there is none

    @property
    def answer(self) -> Candidate | None:
        """The most probable candidate; None where it is more probable that the text has no answer."""
        return next((one for one in self.candidates[:1] if one.probability >= self.no_answer), None)


class Answerer(Reader):
    """A model with a head for spans: `Answerer("folders/bert-squad")("Who sat?", "The cat sat on the mat.").answer`.

    A text that is too long for the model is read in windows that overlap, and the best passage of all is the answer;
    a question may take half of what the model can look at, and is cut off there.
    """

    heads: ClassVar = ("span",)
    model: Bert

    def __call__(self, question: str, text: str, top: int = 1) -> Answered:
        """The answer to one question."""
        return self.answer([Question(question, text)], top)[0]

    def answer(
        self,
        questions: Sequence[Question],
        top: int = 1,
        *,
        longest: int = LONGEST_ANSWER,
        stride: int | None = None,
        batch_tokens: int = BATCH_TOKENS,
    ) -> list[Answered]:
        """The `top` best candidates for each question, of `longest` tokens at most; windows begin `stride` apart."""
        require(top >= 1, f"one answer at least has to be given, not {top}")
        require(longest >= 1, f"an answer has one token at least, not {longest}")
        require(stride is None or stride >= 1, f"windows begin one token apart at least, not {stride}")
        for number, one in enumerate(questions, start=1):
            for what, words in (("question", one.question), ("text", one.text)):
                if not words.strip():
                    raise InputError(f"input {number}: the {what} is empty")
        windows = windows_of(self.splitter, questions, self.model.config.max_length, stride)
        found = find(self.model, windows, self.splitter.pad, batch_tokens, top=top, longest=longest)
        return [_answered(one, findings) for one, findings in zip(questions, found, strict=True)]

    def questions_cut(self, questions: Sequence[Question]) -> list[int]:
        """The numbers, from 1, of the questions that are too long to be read to their end."""
        room = question_room(self.model.config.max_length)
        split = self.splitter.split([one.question for one in questions])
        return [number for number, ids in enumerate(split, start=1) if len(ids) > room]


def _answered(question: Question, found: Findings) -> Answered:
    candidates = (
        Candidate(question.text[place.begin : place.end], place.begin, place.end, math.exp(log_p))
        for place, log_p in found.best
    )
    return Answered(question.question, question.text, tuple(candidates), math.exp(found.none))
