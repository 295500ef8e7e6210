"""Options such as --num-beams in inline code, in which a line does not break."""

import re

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

CODE = re.compile(r"<code>[^<]*</code>")
OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Mark the options for the style sheet."""
    return CODE.sub(lambda code: OPTION.sub(r'<span class="option">\g<0></span>', code[0]), content)
