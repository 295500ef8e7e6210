"""Heuristics on the content of user files: binary formats, headers, swapped columns, CoNLL columns."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise

from qkv.datasets.examples.tagged import DOCUMENT_START
from qkv.datasets.formats.roles import COLUMN_NAMES
from qkv.errors import InputError
from qkv.runtime.text import printable

MAX_PLAUSIBLE_LABELS = 20  # distinct labels that are plausible for any number of texts
WELL_FORMED = 0.8  # share of the lines from which a format is recognized
MAGIC_NUMBERS = {
    b"\x89PNG": "PNG image",
    b"\xff\xd8\xff": "JPEG image",
    b"GIF8": "GIF image",
    b"II*\0": "TIFF image",
    b"MM\0*": "TIFF image",
    b"RIFF": "RIFF file, such as WebP or WAV",
    b"%PDF": "PDF document",
    b"PK\x03\x04": "ZIP archive, such as .docx or .xlsx",
    b"\xd0\xcf\x11\xe0": "Microsoft Office document",
    b"\x1f\x8b": "gzip archive",
    b"BZh": "bzip2 archive",
    b"\xfd7zXZ": "xz archive",
    b"(\xb5/\xfd": "zstandard archive",
    b"7z\xbc\xaf": "7-Zip archive",
    b"\x7fELF": "executable program",
    b"SQLite": "SQLite database",
    b"\x89HDF": "HDF5 file",
    b"\x93NUMPY": "NumPy array",
    b"PAR1": "Parquet table",
    b"ARROW1": "Arrow table",
}


def binary_kind(data: bytes) -> str | None:
    """Return the format of binary data by its magic number, or None."""
    return next((kind for magic, kind in MAGIC_NUMBERS.items() if data.startswith(magic)), None)


def is_header(names: Sequence[str], last_column: Iterable[str], *, named: bool = False) -> bool:
    """Return whether the first row is a header: different column names, the last not among the data below it.

    `named` says that they name all columns that the examples need.
    """
    lower = [name.strip().lower() for name in names]
    distinct = len(lower) > 1 and len(set(lower)) == len(lower)
    return distinct and (named or COLUMN_NAMES.issuperset(lower)) and not any(cell == names[-1] for cell in last_column)


def check_labels(examples: Sequence[str], labels: Sequence[str], where: str, what: str = "text") -> None:
    """Raise if the labels are not plausible classes: almost one per example, or more labels than distinct examples."""
    distinct_examples, distinct_labels = len(set(examples)), len(set(labels))
    label, other = ("label", "pairs") if what == "text" else ("tag", "another kind")
    if distinct_labels <= MAX_PLAUSIBLE_LABELS:
        return
    if distinct_examples * 5 < distinct_labels:
        raise InputError(
            f"{where}: there are {distinct_labels:,} different {label}s but only {distinct_examples:,} different "
            f"{what}s: the columns are probably swapped; the {what} comes first"
        )
    if distinct_labels > len(examples) / 2:
        raise InputError(
            f"{where}: {len(examples):,} {what}s have {distinct_labels:,} different {label}s, such as "
            f"{printable(labels[0], 40)!r}: are the columns swapped, or is this a file of {other}?"
        )


def looks_tagged(lines: Sequence[str]) -> bool:
    """Return whether lines are CoNLL columns: words with few distinct tags, and empty lines between sentences.

    A few lines may be malformed, which the reader of tagged sentences reports.
    """
    lines = [line for line in lines if not line.startswith(DOCUMENT_START)]
    rows = [line.split("\t") if "\t" in line else line.split() for line in lines if line.strip()]
    gaps = sum(not line.strip() and bool(before.strip()) for before, line in pairwise(lines))
    if gaps < 2 or gaps < len(rows) / 100 or len(rows) < 2 * gaps:  # sentences of one word are paragraphs of text
        return False
    width = Counter(map(len, rows)).most_common(1)[0][0]
    tagged = [row for row in rows if len(row) == width and len(row[0].split()) == len(row[-1].split()) == 1]
    if width < 2 or len(tagged) < WELL_FORMED * len(rows):
        return False
    tags = {row[-1] for row in tagged}
    return len(tags) < len(tagged) and len(tags) <= max(MAX_PLAUSIBLE_LABELS, len(tagged) / 5)


def looks_like_texts(words: Sequence[str]) -> bool:
    """Return whether most of the words contain spaces."""
    return sum(" " in word.strip() for word in words) > len(words) / 2
