"""Equations as MathML, which browsers draw without a script."""

import html
import re

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

EQUATION = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
TOKEN = re.compile(r"\\[a-zA-Z]+|\\.|[{}]|[^\\{}]+", re.DOTALL)
OPENING, CLOSING = ("{", r"\left", r"\begin"), ("}", r"\right", r"\end")


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replace the LaTeX of a page, which pymdownx.arithmatex has found."""

    def mathml(match: re.Match[str]) -> str:
        latex = html.unescape(match[2]).strip()
        if match[1] == "span":
            return convert(latex)
        parts = [convert(part, display="block") for part in split_at_quads(latex)]
        return f'<div class="equations">{"".join(parts)}</div>'

    return EQUATION.sub(mathml, content)


def split_at_quads(latex: str) -> list[str]:
    r"""Split a display at \quad and \qquad outside groups: a browser cannot break the line within a `math` element."""
    parts, depth = [""], 0
    for token in TOKEN.findall(latex):
        depth += (token in OPENING) - (token in CLOSING)
        if depth == 0 and token in (r"\quad", r"\qquad"):
            parts.append("")
        else:
            parts[-1] += token
    return [part.strip() for part in parts]
