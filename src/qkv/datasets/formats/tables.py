"""Two-column tables: tab-separated values, CSV (*.csv) and JSON Lines (*.jsonl)."""

import csv
import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from qkv.errors import InputError
from qkv.runtime.text import printable


class Row(NamedTuple):
    """The line number and the two cells of a row."""

    number: int
    source: str
    target: str


def parse_rows(lines: Sequence[str], suffix: str, where: str, keys: tuple[str, str]) -> Iterator[Row]:
    """Parse the rows of a table in the format given by the file suffix; `keys` name the two columns."""
    return TABLES.get(suffix.lower(), _from_tsv)(lines, where, keys)


def csv_rows(lines: Sequence[str], where: str) -> Iterator[tuple[int, list[str]]]:
    """Parse CSV into (number of the last line, cells); malformed CSV is an InputError."""
    reader = csv.reader(f"{line}\n" for line in lines)
    try:
        for row in reader:
            yield reader.line_num, row
    except csv.Error as error:
        raise InputError(f"{where}: line {reader.line_num}: not valid CSV: {error}") from None


def parse_json(text: str, where: str) -> Any:
    """Parse JSON; malformed JSON or invalid Unicode is an InputError."""
    try:
        data = json.loads(text)
        if "\\u" in text:  # lone surrogates can only be written as escapes
            json.dumps(data, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: not valid JSON: {printable(str(error))}") from None
    return data


def _from_tsv(lines: Sequence[str], where: str, keys: tuple[str, str]) -> Iterator[Row]:
    for number, line in enumerate(lines, start=1):
        cells = line.split("\t") if line.strip() else ["", ""]
        if len(cells) != 2:
            hint = ""
            if len(cells) == 1 and line.lstrip().startswith("{"):
                hint = "; the name of a JSON Lines file must end in .jsonl"
            elif len(cells) == 1 and "," in line:
                hint = "; the name of a CSV file must end in .csv"
            raise InputError(
                f"{where}: line {number} has {len(cells)} column(s); expected {keys[0]}, one tab, {keys[1]}{hint}"
            )
        yield Row(number, *cells)


def _from_csv(lines: Sequence[str], where: str, keys: tuple[str, str]) -> Iterator[Row]:
    for number, cells in csv_rows(lines, where):
        if len(cells) not in (0, 2):
            raise InputError(f"{where}: line {number} has {len(cells)} column(s); expected {keys[0]}, comma, {keys[1]}")
        yield Row(number, *(cells or ("", "")))


def _from_json(lines: Sequence[str], where: str, keys: tuple[str, str]) -> Iterator[Row]:
    names: tuple[str, str] | None = None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            yield Row(number, "", "")
            continue
        location = f"{where}: line {number}"
        entry = parse_json(line, location)
        if not isinstance(entry, dict):
            raise InputError(f"{location} is not an object; expected {_example(keys)}")
        names = names or _names(entry, keys)
        if names is None or not all(
            isinstance(entry.get(name), str | int) for name in names
        ):  # a label may be a number
            raise InputError(f"{location} lacks keys with text values; expected {_example(names or keys)}")
        yield Row(number, *(str(entry[name]) for name in names))


def _names(entry: dict[str, Any], keys: tuple[str, str]) -> tuple[str, str] | None:
    """Return the keys of the two columns: the default ones, else the only two with text values."""
    if all(key in entry for key in keys):
        return keys
    texts = [key for key, value in entry.items() if isinstance(value, str)]
    return (texts[0], texts[1]) if len(texts) == 2 else None


def _example(keys: tuple[str, str]) -> str:
    return f'{{"{printable(keys[0], 40)}": "...", "{printable(keys[1], 40)}": "..."}}'


TABLES = {".csv": _from_csv, ".jsonl": _from_json}  # by file suffix; all others are TSV
