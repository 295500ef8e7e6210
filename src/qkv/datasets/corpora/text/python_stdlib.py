"""Source code of the Python standard library that runs qkv, without its tests and tables of characters.

The files are those of the interpreter, so the text depends on its version. They are split by a hash of their names: a
file is in one split only, and in the same one in all versions.
"""

import hashlib
import platform
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from qkv.datasets.columns import Column
from qkv.datasets.dataset import TextDataset, TextDatasetConfig
from qkv.errors import InputError
from qkv.registry import register

SKIPPED = {"site-packages", "dist-packages", "test", "tests", "idle_test", "encodings", "pydoc_data"}  # folders
HELD_OUT = 20  # one file in 20 is for validation, one for test


@register("dataset", "python_stdlib")
class PythonStandardLibrary(TextDatasetConfig):
    """Python source files of the standard library."""

    summary = "source code of the standard library of the running Python: about 9 million characters"
    license = "PSF License Agreement"
    dataset_class = TextDataset
    columns = (Column("nats", "nats per character", digits=4, higher_is_better=False),)

    def read(self) -> TextDataset:
        root = Path(sysconfig.get_path("stdlib"))
        texts: dict[str, list[str]] = {"train": [], "valid": [], "test": []}
        for path in source_files(root):
            data = path.read_bytes()
            if data.strip() and data.isascii():
                name = path.relative_to(root).as_posix()
                texts[split_of(name)].append(data.decode().replace("\r\n", "\n").strip() + "\n")
        if not all(texts.values()):
            raise InputError(f"python_stdlib: the standard library in {root} has too few source files")
        note = f"python_stdlib: Python {platform.python_version()}, {sum(map(len, texts.values()))} files"
        return TextDataset({split: "\n\n".join(files) for split, files in texts.items()}, (note,))


def source_files(root: Path) -> Iterator[Path]:
    """Yield the files of a standard library in the order of their names."""
    for path in sorted(root.rglob("*.py"), key=lambda path: path.relative_to(root).as_posix()):
        folders = path.relative_to(root).parts[:-1]
        if not SKIPPED & set(folders) and not path.name.startswith("_sysconfigdata") and path.is_file():
            yield path


def split_of(name: str) -> str:
    """Return the split of a file, e.g. "json/decoder.py"."""
    remainder = int(hashlib.sha256(name.encode()).hexdigest(), 16) % HELD_OUT
    return {0: "valid", 1: "test"}.get(remainder, "train")
