"""A group of commands whose list can be searched: `qkv recipes shakespeare`."""

import re
from collections.abc import Sequence
from typing import Any, TypeVar

import typer
from typer.core import TyperGroup

from qkv.errors import InputError
from qkv.registry import nearest

METAVAR = "[WORD]... | COMMAND [ARGS]..."
LIST = "list"
SEARCH_KEY = "qkv.words"  # key in the meta data of a context
ENDING = re.compile("(?:[iy][sz](?:ation|e|ing)|ation|iers?|ies|ing|ers?|es|s|y|e)$")
MIN_STEM = 4  # characters

Row = TypeVar("Row", bound=Sequence[str])


class SearchGroup(TyperGroup):
    """A group whose arguments are words to search for, unless the first one is a command.

    As in other groups, `list` before the words, or without any, lists the rows.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        words = [word for word in args if not word.startswith("-")]
        if words[:1] == [LIST]:
            index, words = args.index(LIST), words[1:]
            args = [*args[:index], *args[index + 1 :]]
        if words and words[0] not in self.commands:
            takes_value = {name for parameter in self.params for name in parameter.opts if not _is_flag(parameter)}
            words = []
            rest: list[str] = []
            for number, word in enumerate(args):
                is_option = word.startswith("-") or (number > 0 and args[number - 1] in takes_value)
                (rest if is_option else words).append(word)
            ctx.meta[SEARCH_KEY], args = words, rest
        return list(super().parse_args(ctx, args))


def _is_flag(parameter: Any) -> bool:
    return bool(getattr(parameter, "is_flag", False))


def search_words(context: typer.Context) -> list[str]:
    """Return the words to search for; none lists everything."""
    return list(context.meta.get(SEARCH_KEY, ()))


def _stem(word: str) -> str:
    """Return a word without an English ending, so that "summarization" finds "summaries"."""
    stem = ENDING.sub("", word.casefold())
    return stem if len(stem) >= MIN_STEM else word.casefold()


def search(rows: Sequence[Row], words: Sequence[str], what: str) -> list[Row]:
    """Return the rows that contain all words in any of their cells, in any case; their first cell is the name.

    If there are none, words may have other endings.
    """
    texts = [" ".join(row).casefold() for row in rows]
    for form in (str.casefold, _stem):
        forms = [form(word) for word in words]
        if found := [row for row, text in zip(rows, texts, strict=True) if all(word in text for word in forms)]:
            return found
    close = nearest(words[0], [row[0] for row in rows])
    hint = close if "did you mean" in close else f"; qkv {what}s lists all"
    raise InputError(f"no {what} contains {' and '.join(words)}{hint}")
