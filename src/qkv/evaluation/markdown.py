"""Text from files inside a Markdown page: nothing in it becomes HTML, a link, a table cell or another line."""

import html
import re

from qkv.runtime.text import escape_controls

# Underscores inside a word, and brackets that no link follows, mean nothing to Markdown.
_SPECIAL = re.compile(r"[\\`*|#~]|\](?=[(\[])|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")


def plain(text: str) -> str:
    """Text as Markdown that is shown as this text."""
    return html.escape(_SPECIAL.sub(r"\\\g<0>", escape_controls(" ".join(text.splitlines()))), quote=False)


def code(text: str) -> str:
    """Text as an inline code element; as HTML where the text has backticks or would be HTML itself."""
    if re.search(r"[`<>&]", text) or not text.strip() or escape_controls(text) != text:
        return f"<code>{plain(text)}</code>"
    return f"`{text}`"
