"""The code blocks of the documentation, and the commands in them."""

import json
import re
import shlex
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SHELL = {"sh", "bash", "console", ""}  # indented blocks have no language
PROGRAMS = ("qkv", "python", "pip", "make", "torchrun", "tensorboard")
ASSIGNMENT = re.compile(r"[A-Z_]+=")
VARIABLE = re.compile(r'^([a-z]\w*)="(.*)"$', re.MULTILINE)
SEPARATORS = {"|", "||", "&&", ";", "&"}
REDIRECTIONS = {">", ">>", "<", "2>", ">&"}


@dataclass(frozen=True)
class Block:
    """A code block of a page."""

    page: str  # path in the repository
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    def lines(self) -> list[str]:
        """Return the commands of a block of shell code, with continued lines joined; [] for anything else."""
        if self.language not in SHELL:
            return []
        text = re.sub(r"\\\n\s*", "", self.text)
        for name, value in VARIABLE.findall(text):
            text = text.replace(f"${name}", value)
        joined = text.splitlines()
        prompted = [line[2:] for line in joined if line.startswith("$ ")]
        return [line for line in prompted or joined if _starts_with_program(line)]


def _starts_with_program(line: str) -> bool:
    words = line.split()
    while words and ASSIGNMENT.match(words[0]):
        words = words[1:]
    return bool(words) and (words[0] in PROGRAMS or re.search(r"[|;] qkv ", line) is not None)


def pages() -> list[str]:
    """Return the pages whose code is checked: everything but the tables that commands generate."""
    docs = [path.relative_to(ROOT).as_posix() for path in DOCS.rglob("*.md")]
    return sorted(["README.md", "CONTRIBUTING.md", *(page for page in docs if page != "docs/results.md")])


def notebooks() -> list[Path]:
    return sorted((DOCS / "tutorials").glob("*.ipynb"))


@cache
def blocks(page: str) -> tuple[Block, ...]:
    """Return the code blocks of a page."""
    tokens = MarkdownIt().enable("table").parse((ROOT / page).read_text(encoding="utf-8"))
    return tuple(
        Block(page, token.map[0] + 1, token.info.split(" ")[0], token.content)
        for token in tokens
        if token.type in ("fence", "code_block") and token.map is not None
    )


def inline_commands(page: str) -> list[str]:
    """Return the commands in the prose of a page: code that begins with "qkv" and a space."""
    tokens = MarkdownIt().enable("table").parse((ROOT / page).read_text(encoding="utf-8"))
    children = [child for token in tokens for child in token.children or []]
    return [child.content for child in children if child.type == "code_inline" and child.content.startswith("qkv ")]


def shell_cells(notebook: Path) -> list[Block]:
    """Return the cells of a notebook that run in a shell."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    page = notebook.relative_to(ROOT).as_posix()
    return [Block(page, 0, "sh", text.partition("\n")[2]) for text in sources if text.startswith("%%sh")]


def qkv_arguments(line: str) -> list[list[str]]:
    """Return the arguments of each qkv command in a line of shell code, without redirections."""
    line = re.sub(r"\$\([^)]*\)", "$output", line).replace("2>&1", "").replace(" ... ", " ")
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.commenters, lexer.whitespace_split = "#", True
    calls: list[list[str]] = [[]]
    skip = False
    for word in lexer:
        if word in SEPARATORS:
            calls.append([])
        elif skip or word in REDIRECTIONS:
            skip = word in REDIRECTIONS
        else:
            calls[-1].append(word)
    for call in calls:
        while call and (ASSIGNMENT.match(call[0]) or call[0] in ("do", "then")):
            call.pop(0)
    return [call[1:] for call in calls if call and call[0] == "qkv"]
