"""Docstrings are plain text, not HTML: "<s>" in one is a token."""

import re

import griffe

TAG = re.compile(r"<(?=[A-Za-z/])")
CODE = re.compile(r"(`[^`]*`)")


class EscapeTags(griffe.Extension):
    """Escape what Markdown would take for HTML, except in code."""

    def on_object(self, *, obj: griffe.Object, **kwargs: object) -> None:
        """Escape the docstring of a module, class, function or attribute."""
        if obj.docstring is not None:
            obj.docstring.value = "\n".join(map(_escaped, obj.docstring.value.split("\n")))


def _escaped(line: str) -> str:
    if line.startswith("    "):  # a code block, such as an equation
        return line
    return "".join(part if part.startswith("`") else TAG.sub("&lt;", part) for part in CODE.split(line))
