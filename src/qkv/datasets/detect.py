"""Detect what kind of examples the files of a user hold, by their names and contents."""

import re
from collections.abc import Mapping, Sequence
from itertools import islice
from operator import itemgetter
from pathlib import Path

from qkv.datasets.examples.dialogue import KEYS as DIALOGUE_KEYS
from qkv.datasets.formats.folders import class_folders, find_splits, find_table, has_suffix
from qkv.datasets.formats.images import SUFFIXES
from qkv.datasets.formats.roles import match_columns, missing_roles
from qkv.datasets.formats.sniff import MAX_PLAUSIBLE_LABELS, WELL_FORMED, looks_tagged
from qkv.datasets.formats.tables import JSON, JSON_LINES, TABLES, as_json_lines, parse_json, table_columns, table_rows
from qkv.datasets.formats.text_files import is_parsed, read_lines
from qkv.datasets.shards.large_text import LARGE_BYTES
from qkv.datasets.shards.text_source import COMPRESSIONS, SAVED, SAVED_SPLITS, PlainText
from qkv.datasets.user_files import naming_page, user_datasets
from qkv.datasets.user_media import WAV
from qkv.errors import InputError

SAMPLED_ROWS = 1000
CONLL = (".conll", ".bio", ".iob", ".iob2")  # suffixes of words with tags in columns
STORY = re.compile(r"1 [^\n]+\n2 ")  # the first lines of a story in the format of bAbI
# Tables are tried in this order: "text" and "label" could also be words and tags.
TABLE_KINDS = ("questions", "labelled", "tagged", "pairs")


def infer_kind(paths: Sequence[Path], columns: Mapping[str, str] | None = None) -> str:
    """Infer the kind of data from the names and contents of user files; `columns` are names of columns by role."""
    with naming_page(""):
        return _kind_of(paths, columns)


def _kind_of(paths: Sequence[Path], columns: Mapping[str, str] | None) -> str:
    path = paths[0]
    if path.is_dir():
        return _kind_of_folder(path, columns)
    suffix = path.suffix.lower()
    if suffix in (*COMPRESSIONS, ".parquet", ".arrow"):
        return "text"
    if (is_parsed(path) or suffix in CONLL) and len(paths) == 1:
        return "tagged"
    if suffix == JSON:
        squad = as_json_lines(read_lines(path), suffix, str(path))[1] == suffix
        return "questions" if squad else _kind_of_table(path, columns or {})
    if suffix in TABLES and len(paths) == 1:
        return _kind_of_table(path, columns or {})
    if len(paths) == 2:
        return "pairs"
    text = PlainText(path, "")
    lines = read_lines(text.path) if text.bytes <= LARGE_BYTES else next(text.pieces(0, None)).split("\n")
    if looks_tagged(lines):
        return "tagged"
    filled = [line.strip() for line in lines if line.strip()]
    if sum(line.startswith("(") and line.endswith(")") for line in filled) >= WELL_FORMED * len(filled):
        return "trees"
    if STORY.match("\n".join(lines[:2])) and any("\t" in line for line in lines):
        return "stories"
    return _pairs_or_labels([line.split("\t") for line in lines]) if any("\t" in line for line in lines) else "text"


def _kind_of_folder(folder: Path, columns: Mapping[str, str] | None) -> str:
    if any((folder / name).exists() for name in (SAVED, SAVED_SPLITS)):
        return "text"
    if splits := find_splits(folder):
        return _kind_of([splits["train"]], columns)
    if has_suffix(folder, WAV):
        return "speech"
    if not has_suffix(folder, SUFFIXES):
        table = find_table(folder)
        return "text" if table is None else _kind_of_table(table, columns or {})
    table = None if class_folders(folder) else find_table(folder)
    return "images" if table is None else _kind_of_table(table, columns or {})


def _kind_of_table(path: Path, columns: Mapping[str, str]) -> str:
    """Return the kind of a table by the names of its columns, or by what its cells look like."""
    where = str(path)
    lines, suffix = as_json_lines(read_lines(path), path.suffix.lower(), where)
    try:
        names, rows = table_columns(lines, suffix, where), _sample(lines, suffix, where)
    except InputError:  # the reader of any kind of table reports the line
        return "labelled"
    media, guess = _media_of(rows), _pairs_or_labels(rows)
    kinds = {
        "audio": ("speech",),
        "image": ("images", "captions") if guess == "labelled" else ("captions", "images"),
    }
    by_parts = ("questions", guess, "labelled" if guess == "pairs" else "pairs")
    for kind in kinds.get(media, TABLE_KINDS):
        if _has_columns(kind, names, columns, by_parts=False):
            return kind
    if suffix in JSON_LINES and not set(DIALOGUE_KEYS).isdisjoint(names):
        return "dialogues"
    for kind in kinds.get(media, by_parts):
        if _has_columns(kind, names, columns, by_parts=True):
            return kind
    if media:
        return kinds[media][0]
    if suffix in JSON_LINES and len(names) < 2:
        return "text"
    if suffix not in JSON_LINES and looks_tagged(lines):
        return "tagged"
    return guess


def _has_columns(kind: str, names: Sequence[str], columns: Mapping[str, str], *, by_parts: bool) -> bool:
    """Return whether a table has the columns that a kind of data needs; `columns` are names of columns by role."""
    roles = user_datasets()[kind].roles
    if not columns.keys() <= {role.name for role in roles}:
        return False
    try:
        return not missing_roles(roles, match_columns(names, roles, columns, kind, by_parts=by_parts))
    except InputError:  # a column of `columns` that the table does not have
        return False


def _sample(lines: Sequence[str], suffix: str, where: str) -> list[list[str]]:
    """Return the cells of some rows of a table, the first excepted."""
    if suffix in JSON_LINES:
        entries = (parse_json(line, where) for line in islice(filter(str.strip, lines), SAMPLED_ROWS))
        return [[v for v in entry.values() if isinstance(v, str)] for entry in entries if isinstance(entry, dict)]
    return [cells for _, cells in islice(filter(itemgetter(1), table_rows(lines, suffix, where)), 1, SAMPLED_ROWS)]


def _media_of(rows: Sequence[Sequence[str]]) -> str:
    """Return whether a cell of most rows is the name of an image or of a WAV file; "" otherwise."""
    for media, suffixes in (("image", SUFFIXES), ("audio", WAV)):
        named = sum(any(cell.strip().lower().endswith(suffixes) for cell in cells) for cells in rows)
        if rows and named > len(rows) / 2:
            return media
    return ""


def _pairs_or_labels(rows: Sequence[Sequence[str]]) -> str:
    """Return "labelled" if the last cells of rows have few distinct values that repeat, else "pairs".

    So do labels in the first of two columns, where the reader of labeled texts reports that the columns are swapped.
    """
    last = [cells[-1].strip() for cells in rows if len(cells) > 1]
    first = [cells[0].strip() for cells in rows if len(cells) == 2]
    return "labelled" if _are_labels(last) or _are_labels(first) else "pairs"


def _are_labels(cells: Sequence[str]) -> bool:
    return bool(cells) and len(set(cells)) <= min(MAX_PLAUSIBLE_LABELS, len(cells) / 2)
