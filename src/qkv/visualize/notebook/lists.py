"""Results of several inputs in notebooks: a table of inputs, outputs and scores."""

from collections.abc import Iterator
from typing import Any

from qkv.runtime.notebook import Drawable, Results
from qkv.visualize.notebook.html import fragment, paragraph, table, to_html

MAX_ROWS = 50
HEADERS = ("input", "output", "score")


@to_html.register
def _(result: Results) -> str:  # type: ignore[type-arg]  # singledispatch takes the class itself
    answers = list(_flat(result))
    more = len(answers) - MAX_ROWS
    note = [paragraph(f"and {more} more", quiet=True)] if more > 0 else []
    return fragment(table(HEADERS, map(_row, answers[:MAX_ROWS]), (0, 1)), *note)


def _row(answer: object) -> tuple[str, str, str]:
    return answer.table_row() if isinstance(answer, Drawable) else ("", repr(answer), "")


def _flat(results: list[Any]) -> Iterator[Any]:
    """Yield the answers of a list, of which each may be a list."""
    for result in results:
        yield from result if isinstance(result, list) else [result]
