"""Results that draw themselves in a notebook, with a short repr.

The drawing is in `qkv.visualize.notebook`, which is imported when a notebook asks for it.
"""

from importlib import import_module
from typing import TypeVar

from qkv.runtime.text import escape_controls, shorten_middle

LONGEST_QUOTE = 60  # characters of a text in a repr
MAX_SHOWN = 3  # results in the repr of a list

T = TypeVar("T")


class Drawable:
    """A result with `_repr_html_`, the HTML that a notebook shows."""

    def _repr_html_(self) -> str:
        html: str = import_module("qkv.visualize.notebook").to_html(self)
        return html

    def table_row(self) -> tuple[str, str, str]:
        """Return the input, the output and the score, for a table of several results."""
        return "", repr(self), ""


class Results(list[T], Drawable):
    """The results of several inputs, a list with a short repr."""

    def __repr__(self) -> str:
        more = len(self) - MAX_SHOWN
        return f"[{', '.join([*map(repr, self[:MAX_SHOWN]), *([f'... and {more} more'] if more > 0 else [])])}]"


def quoted(text: str) -> str:
    """Return a text in quotes on one line, shortened, for a repr."""
    return f"'{escape_controls(shorten_middle(text, LONGEST_QUOTE))}'"
