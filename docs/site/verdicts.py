"""The verdict of each claim after its link in the lecture map, with a command that measures it; from its page."""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

LECTURES = Path(__file__).parents[1] / "lectures"
CLAIM = re.compile(r"^- Claim \d+: .*\]\((\.\./claims/\w+/[\w-]+\.md)\)$", re.MULTILINE)
VERDICT = re.compile(r"^\*\*Verdict: ([a-z ]+)\*\*", re.MULTILINE)
COMMAND = re.compile(r"^    (qkv claims run .*--scale small)$", re.MULTILINE)
SECONDS = re.compile(r"^Measured in ([\d.]+) s ", re.MULTILINE)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Add verdicts and commands to a page of the lecture map."""
    if not page.file.src_uri.startswith("lectures/"):
        return markdown
    return CLAIM.sub(lambda match: f"{match[0]} ({verdict(match[1])}){small_scale(match[1])}", markdown)


def verdict(link: str) -> str:
    """Return the verdict of a claim, "supported", "not supported" or "mixed"."""
    found = VERDICT.search(claim_page(link))
    if found is None:
        raise ValueError(f"{link}: has no verdict")
    return found[1]


def small_scale(link: str) -> str:
    """Return the command that measures a claim at small scale, and how long it took; "" if only full scale exists."""
    text = claim_page(link)
    command = COMMAND.search(text)
    seconds = command and SECONDS.search(text, command.end())
    return f"; in {duration(float(seconds[1]))}: `{command[1]}`" if command and seconds else ""


def duration(seconds: float) -> str:
    """Return a duration in words: "1 s", "93 s", "13 min"."""
    return f"{max(1, round(seconds))} s" if seconds < 120 else f"{round(seconds / 60)} min"


def claim_page(link: str) -> str:
    return (LECTURES / link).read_text(encoding="utf-8")
