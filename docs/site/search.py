"""Rank of pages in the search: what users look up before what was measured and why qkv is built as it is."""

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

BOOST = {  # by the title of the section in the navigation; elsewhere 1
    "Get started": 2.0, "Tutorials": 2.0, "How-to": 2.0, "Claims": 0.5, "Results": 0.5, "Design": 0.3,
}  # fmt: skip


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Raise or lower the rank of the pages in these sections."""
    for section in page.ancestors:
        if section.title in BOOST:
            page.meta["search"] = {"boost": BOOST[section.title]}
    return markdown
