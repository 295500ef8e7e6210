"""Results of several inputs in notebooks: a table of inputs, outputs and scores."""

from collections.abc import Iterator
from functools import singledispatch
from typing import Any

from qkv.pipelines.classifier import Classification
from qkv.pipelines.generator import GeneratedText
from qkv.pipelines.mask_filler import FilledText
from qkv.pipelines.output import Answer
from qkv.pipelines.question_answerer import ExtractedAnswer
from qkv.pipelines.story_answerer import StoryAnswer
from qkv.pipelines.tagger import TaggedText
from qkv.runtime.notebook import Results
from qkv.visualize.notebook.html import fragment, paragraph, table, to_html

MAX_ROWS = 50
HEADERS = ("input", "output", "score")


@to_html.register
def _(result: Results) -> str:  # type: ignore[type-arg]  # singledispatch takes the class itself
    rows = [cells(answer) for answer in _flat(result)]
    more = len(rows) - MAX_ROWS
    note = [paragraph(f"and {more} more", quiet=True)] if more > 0 else []
    return fragment(table(HEADERS, rows[:MAX_ROWS], (0, 1)), *note)


def _flat(results: list[Any]) -> Iterator[Any]:
    """Yield the answers of a list, of which each may be a list."""
    for result in results:
        yield from result if isinstance(result, list) else [result]


@singledispatch
def cells(result: object) -> tuple[str, str, str]:
    """Return the input, the output and the score of a result."""
    return "", repr(result), ""


@cells.register
def _(result: Answer) -> tuple[str, str, str]:
    return result.source, result.text, f"{result.score:.4g}"


@cells.register
def _(result: StoryAnswer) -> tuple[str, str, str]:
    return result.question, result.text, f"{result.probabilities[result.text]:.1%}"


@cells.register
def _(result: GeneratedText) -> tuple[str, str, str]:
    return result.prompt, result.continuation, f"{result.score:.4g}"


@cells.register
def _(result: Classification) -> tuple[str, str, str]:
    return result.text, result.label, f"{result.score:.1%}"


@cells.register
def _(result: TaggedText) -> tuple[str, str, str]:
    entities = [f"{entity.text} ({entity.kind})" for entity in result.entities]
    return result.text, ", ".join(entities) or " ".join(result.tags), ""


@cells.register
def _(result: FilledText) -> tuple[str, str, str]:
    return result.text, result.filled, ", ".join(f"{best.probability:.1%}" for best, *_ in result.guesses)


@cells.register
def _(result: ExtractedAnswer) -> tuple[str, str, str]:
    return result.question, result.text or "no answer", f"{result.score:.1%}"
