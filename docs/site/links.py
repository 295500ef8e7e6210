"""Links out of docs: README, CONTRIBUTING and CHANGELOG become pages of the site, and so does each linked source file.

Names of recipes in code, such as `dates-gru`, become links to the recipes. A link to a Python file may name a function
or class: "../src/qkv/attention/operator.py#attend". It opens the lines of its definition.
"""

import ast
import os
import re
from functools import cache
from pathlib import Path
from posixpath import dirname, normpath, relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

NOT_IN_NAV = InclusionLevel.NOT_IN_NAV
ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")  # in the root of the repository
RECIPES = {path.stem: path.relative_to(ROOT).as_posix() for path in (ROOT / "src/qkv/recipes").rglob("*.toml")}
NAME = re.compile(r"(?<![\[`])`([a-z0-9-]+)`(?![\]`])")
LINK = re.compile(r"(\]\()([^()\s#:]+)(#[\w.\-]+)?\)")
LANGUAGES = {".py": "python", ".toml": "toml", ".c": "c", ".sh": "bash"}
LINE_LINK = re.compile(r'data-line="(\d+)" href="([^"]+)"')
LINES = re.compile(r"#L(\d+)(?:-L\d+)?")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the root, and a page for each source file that some page links."""
    for name in PAGES:
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    linked = {
        target
        for file in files.documentation_pages()
        for match in LINK.finditer(file.content_string)
        if (target := repository_path(file.src_uri, match[2])) and is_source(target)
    }
    folders = {target for target in linked if (ROOT / target).is_dir()}
    linked |= set(RECIPES.values())
    linked |= {path.relative_to(ROOT).as_posix() for folder in folders for path in (ROOT / folder).rglob("*.toml")}
    for target in sorted(linked):
        files.append(File.generated(config, source_page(target), content=source_text(target), inclusion=NOT_IN_NAV))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point the links of a page to pages of the site."""

    def site_link(match: re.Match[str]) -> str:
        target = repository_path(page.file.src_uri, match[2])
        if target is None:
            return match[0]
        link = f"{match[1]}{relpath(site_path(target), dirname(page.file.src_uri) or '.')}"
        if is_source(target) and match[3]:
            return f"{link}){{ data-line={line_of(target, match[3])} }}"
        return f"{link}{match[3] or ''})"

    return LINK.sub(site_link, NAME.sub(lambda match: recipe_link(match, page.file.src_uri), markdown))


def recipe_link(match: re.Match[str], page: str) -> str:
    """Return a name in code as a link to the recipe of that name, if there is one."""
    if match[1] not in RECIPES:
        return match[0]
    folder = "." if page in PAGES else f"docs/{dirname(page)}"
    return f"[{match[0]}]({relpath(RECIPES[match[1]], folder)})"


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Complete the links to lines: mkdocs, which checks anchors, does not see those of lines."""
    return LINE_LINK.sub(r'data-line="\1" href="\2#__span-0-\1"', content)


def repository_path(page: str, link: str) -> str | None:
    """Return the path of a linked file in the repository; None if there is no such file."""
    folder = "." if page in PAGES else f"docs/{dirname(page)}"
    target = normpath(f"{folder}/{link}")
    if target.startswith("..") or not (ROOT / target).exists():
        return None
    return target


def is_source(target: str) -> bool:
    """Return whether a path of the repository is no page or file of the site."""
    return not target.startswith("docs/") and target not in PAGES


def site_path(target: str) -> str:
    """Return where a file of the repository is in the site."""
    if is_source(target):
        return source_page(target)
    path = target.removeprefix("docs/")
    return f"{path.removesuffix('.ipynb')}.md" if path.endswith(".ipynb") else path  # notebooks.py makes pages of them


def source_page(target: str) -> str:
    return f"source/{target}.md"


def source_text(target: str) -> str:
    """Return the page of a source file, below its command if it is a recipe, or the list of files of a folder."""
    path = ROOT / target
    head = f"---\nsearch:\n  exclude: true\n---\n\n# {target}\n\n"
    if path.is_dir():
        names = sorted(file.relative_to(path).as_posix() for file in path.rglob("*.toml"))
        return head + "\n".join(f"- [{name}]({os.path.basename(target)}/{name}.md)" for name in names) + "\n"
    if target in RECIPES.values():
        head += f"    qkv train {path.stem}\n\n"
    language = LANGUAGES.get(path.suffix, "text")
    return f'{head}~~~~~~ {{ .{language} linenums="1" }}\n{path.read_text(encoding="utf-8")}~~~~~~\n'


def line_of(target: str, anchor: str) -> int:
    """Return the line that "#L12" or "#Class.method" names."""
    lines = LINES.fullmatch(anchor)
    return int(lines[1]) if lines else definitions(target)[anchor.removeprefix("#")][0]


@cache
def definitions(target: str) -> dict[str, tuple[int, int]]:
    """Return the first and last line of each class and function of a Python file, by qualified name."""
    found: dict[str, tuple[int, int]] = {}

    def visit(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                found[prefix + node.name] = (node.lineno, node.end_lineno or node.lineno)
                visit(node.body, f"{prefix}{node.name}.")

    visit(ast.parse((ROOT / target).read_text(encoding="utf-8")).body, "")
    return found
