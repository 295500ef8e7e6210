"""Patterns in the navigation: "how-to/*.md" stands for all pages that no other entry names, in alphabetical order."""

from fnmatch import fnmatchcase
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files

Entry = Any  # a path, or a title with a path or a list of entries


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Expand the patterns of the navigation."""
    pages = sorted(file.src_uri for file in files.documentation_pages())
    named = set(_paths(config.nav))
    config.nav = _expand(config.nav, [page for page in pages if page not in named])
    return files


def _paths(entry: Entry) -> list[str]:
    if isinstance(entry, str):
        return [entry]
    parts = entry.values() if isinstance(entry, dict) else entry
    return [path for part in parts for path in _paths(part)]


def _expand(entry: Entry, pages: list[str]) -> Entry:
    if isinstance(entry, dict):
        return {title: _expand(part, pages) for title, part in entry.items()}
    if isinstance(entry, list):
        return [
            path
            for part in entry
            for path in (_matches(part, pages) if isinstance(part, str) else [_expand(part, pages)])
        ]
    return entry


def _matches(path: str, pages: list[str]) -> list[str]:
    if "*" not in path:
        return [path]
    return [page for page in pages if page.count("/") == path.count("/") and fnmatchcase(page, path)]
