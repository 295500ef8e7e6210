"""Questions about stories, and the file format of bAbI.

    1 Mary moved to the bathroom.
    2 John went to the hallway.
    3 Where is Mary? <tab> bathroom <tab> 1             question, answer, numbers of the supporting sentences

A line with the number 1 begins a new story. A question refers to all sentences of its story that precede it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from qkv.errors import InputError
from qkv.runtime.text import printable

MAX_SHOWN = 80  # characters of a line in an error message
MAX_SENTENCES = 10_000  # of a story


@dataclass(frozen=True, slots=True)
class StoryQuestion:
    """A question about a story."""

    sentences: tuple[str, ...]  # oldest first
    question: str
    answer: str = ""  # a word, or several joined by commas; "": unknown
    task: int = 0  # number of the bAbI task

    @property
    def text(self) -> str:
        """The sentences and the question."""
        return " ".join((*self.sentences, self.question))


def parse_stories(lines: Sequence[str], where: str, task: int = 0) -> list[list[StoryQuestion]]:
    """Parse a file in the format of bAbI into the questions of each story; error messages start with `where`."""
    stories: list[list[StoryQuestion]] = []
    sentences: list[str] = []
    expected = 1
    for line_number, line in enumerate(lines, start=1):
        number, _, rest = line.strip().partition(" ")
        if number == "1":
            stories.append([])
            sentences, expected = [], 1
        if number != str(expected) or not rest.strip() or expected > MAX_SENTENCES:
            raise InputError(
                f"{where}: line {line_number}: expected the number {'1 or ' if stories else ''}{expected} and a "
                f"sentence, not {printable(repr(line), MAX_SHOWN)}"
            )
        expected += 1
        question, *fields = (field.strip() for field in rest.split("\t"))
        if not fields:
            sentences.append(question)
        elif question and fields[0]:
            stories[-1].append(StoryQuestion(tuple(sentences), question, fields[0], task))
        else:
            raise InputError(f"{where}: line {line_number}: the question or its answer is empty")
    if not any(stories):
        raise InputError(f"{where}: no questions found: a question has its answer after a tab")
    return [questions for questions in stories if questions]
