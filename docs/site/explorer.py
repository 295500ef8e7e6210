"""The page that docs/explorer.md embeds: the explorer with the attention of a pretrained model of the package."""

import tempfile
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

import qkv

PAGE = "explorer-dates.html"
MODEL, TEXT = "dates", "Donnerstag, 5. März 2026"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the page."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / PAGE
        qkv.view(MODEL, TEXT, page=path, device="cpu")
        files.append(File.generated(config, PAGE, content=path.read_text(encoding="utf-8")))
    return files
