"""Escape text for Markdown, so that it cannot become HTML, a link, a table cell or a new line."""

import html
import re

from qkv.runtime.text import escape_controls

# Underscores inside a word, and brackets not followed by a link, are not special in Markdown.
_SPECIAL = re.compile(r"[\\`*|#~]|\](?=[(\[])|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")


def plain(text: str) -> str:
    """Return Markdown that renders as the given text."""
    return html.escape(_SPECIAL.sub(r"\\\g<0>", escape_controls(" ".join(text.splitlines()))), quote=False)


def code(text: str) -> str:
    """Return text as inline code; as an HTML element if it contains backticks or HTML."""
    if re.search(r"[`<>&]", text) or not text.strip() or escape_controls(text) != text:
        return f"<code>{plain(text)}</code>"
    return f"`{text}`"
