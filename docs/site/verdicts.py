"""The verdict of each claim after its link in the lecture map; it is read from the page of the claim."""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

LECTURES = Path(__file__).parents[1] / "lectures"
CLAIM = re.compile(r"^- Claim \d+: .*\]\((\.\./claims/\w+/[\w-]+\.md)\)$", re.MULTILINE)
VERDICT = re.compile(r"^\*\*Verdict: ([a-z ]+)\*\*", re.MULTILINE)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Add the verdicts to a page of the lecture map."""
    if not page.file.src_uri.startswith("lectures/"):
        return markdown
    return CLAIM.sub(lambda match: f"{match[0]} ({verdict(match[1])})", markdown)


def verdict(link: str) -> str:
    """Return the verdict of a claim, "supported", "not supported" or "mixed"."""
    found = VERDICT.search((LECTURES / link).read_text(encoding="utf-8"))
    if found is None:
        raise ValueError(f"{link}: has no verdict")
    return found[1]
