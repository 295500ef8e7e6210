"""Patterns in the navigation: "how-to/*.md" stands for all pages that no other entry names, and no longer pattern fits.

Numbered pages are in the order of their numbers, others as the index page of their folder links them, then by name. The
pages of "claims/*/*.md" are grouped by folder.
"""

import re
from fnmatch import fnmatchcase
from itertools import groupby
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

Entry = Any  # a path, or a title with a path or a list of entries

NUMBER = re.compile(r"# (\d+)\. ")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Expand the patterns of the navigation."""
    pages = [file.src_uri for file in sorted(files.documentation_pages(), key=lambda file: _rank(file, files))]
    entries = _paths(config.nav)
    patterns = {page: max((entry for entry in entries if _fits(page, entry)), key=len, default="") for page in pages}
    config.nav = _expand(config.nav, {page: pattern for page, pattern in patterns.items() if page not in entries})
    return files


def _fits(page: str, pattern: str) -> bool:
    return page.count("/") == pattern.count("/") and fnmatchcase(page, pattern)


def _rank(page: File, files: Files) -> tuple[float, int, str]:
    number = NUMBER.match(page.content_string)
    folder, _, name = page.src_uri.rpartition("/")
    index = files.get_file_from_path(f"{folder}/index.md")
    link = index.content_string.find(f"]({name.removesuffix('md')}") if index else -1
    return (int(number[1]) if number else float("inf"), link, page.src_uri)


def _paths(entry: Entry) -> list[str]:
    if isinstance(entry, str):
        return [entry]
    parts = entry.values() if isinstance(entry, dict) else entry
    return [path for part in parts for path in _paths(part)]


def _expand(entry: Entry, pages: dict[str, str]) -> Entry:
    """Replace the patterns below an entry; `pages` has the pattern of each page."""
    if isinstance(entry, dict):
        return {title: _expand(part, pages) for title, part in entry.items()}
    if isinstance(entry, list):
        return [
            path
            for part in entry
            for path in (_matches(part, pages) if isinstance(part, str) else [_expand(part, pages)])
        ]
    return entry


def _matches(path: str, pages: dict[str, str]) -> list[Entry]:
    if "*" not in path:
        return [path]
    matches = [page for page, pattern in pages.items() if pattern == path]
    if "*" not in path.rpartition("/")[0]:
        return matches
    folders = list(dict.fromkeys(map(_folder, matches)))  # in the order of their first pages
    groups = groupby(sorted(matches, key=lambda page: folders.index(_folder(page))), key=_folder)
    return [{folder.replace("_", " ").capitalize(): list(group)} for folder, group in groups]


def _folder(page: str) -> str:
    return page.split("/")[-2]
