"""Rank of pages in the search: pages for users before those about the design of qkv."""

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

DESIGN_BOOST = 0.3


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lower the rank of the pages below "Design" in the navigation."""
    if any(section.title == "Design" for section in page.ancestors):
        page.meta["search"] = {"boost": DESIGN_BOOST}
    return markdown
