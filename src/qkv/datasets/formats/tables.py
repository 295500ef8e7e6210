"""Tables with a column for each part of an example: tab-separated values, CSV (*.csv) and JSON Lines (*.jsonl)."""

import csv
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from qkv.datasets.formats.roles import (
    Role,
    check_roles,
    describe_columns,
    list_columns,
    match_columns,
    missing_roles,
)
from qkv.datasets.formats.sniff import is_header
from qkv.errors import InputError
from qkv.runtime.text import printable

Cell = str | list[str]  # lists are in JSON Lines only


class Row(NamedTuple):
    """The line number of a row, and its cells by role; "" for those that are missing."""

    number: int
    cells: Mapping[str, Cell]

    def text(self, role: str, where: str) -> str:
        """Return a cell that must be a text."""
        cell = self.cells[role]
        if isinstance(cell, str):
            return cell
        raise InputError(f"{where}: line {self.number}: {role} must be a text, not a list")


@dataclass(frozen=True)
class Table:
    """The rows of a table, and which of its columns were used ("" if that is obvious)."""

    rows: list[Row]
    header: int | None = None  # line number of the header that was skipped
    description: str = ""
    notes: tuple[str, ...] = ()  # on its values


def as_json_lines(lines: Sequence[str], suffix: str, where: str) -> tuple[Sequence[str], str]:
    """Return a JSON array of objects (*.json) as JSON Lines, with their suffix; other data are returned as they are."""
    if suffix.lower() != JSON or not is_json_array(next(filter(str.strip, lines), "")):
        return lines, suffix
    entries = parse_json_array("\n".join(lines), where)
    return [json.dumps(entry, ensure_ascii=False) for entry in entries], JSON_LINES[0]


def is_json_array(text: str) -> bool:
    """Return whether a text, if it is JSON, is an array; its beginning suffices."""
    return text.lstrip().startswith("[")


def parse_json_array(text: str, where: str) -> list[dict[str, Any]]:
    """Parse a JSON array of objects, at least one."""
    entries = parse_json(text, where)
    if not entries:
        raise InputError(f"{where}: the JSON array is empty; expected an array of objects")
    for number, entry in enumerate(entries, start=1):
        if not isinstance(entry, dict):
            shown = printable(repr(entry), 40)
            raise InputError(f"{where}: entry {number} of the JSON array is not an object, but {shown}")
    return list(entries)


def parse_table(
    lines: Sequence[str], suffix: str, where: str, roles: Sequence[Role], columns: Mapping[str, str] | None = None
) -> Table:
    """Parse a table in the format given by the file suffix; `columns` are the names of columns by role.

    The line number of an entry of a JSON array is its position in it.
    """
    columns = columns or {}
    lines, suffix = as_json_lines(lines, suffix, where)
    check_roles(roles, columns)
    if suffix.lower() in JSON_LINES:
        return _from_json(lines, where, roles, columns)
    separator = "comma" if suffix.lower() == CSV else "tab"
    return _from_cells(list(table_rows(lines, suffix, where)), where, roles, columns, separator)


def table_columns(lines: Sequence[str], suffix: str, where: str) -> list[str]:
    """Return the names of the columns of a table: the cells of its first row, or the keys of its first object."""
    lines = [line for line in lines if line.strip()][:1] if suffix.lower() in JSON_LINES else lines
    if suffix.lower() in JSON_LINES:
        entry = parse_json(lines[0], where) if lines else {}
        return list(_flat(entry)) if isinstance(entry, dict) else []
    return next((cells for _, cells in table_rows(lines, suffix, where) if cells), [])


def table_rows(lines: Sequence[str], suffix: str, where: str) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, cells) of a CSV file (*.csv) or of tab-separated values; blank lines have no cells."""
    if suffix.lower() == CSV:
        yield from _csv_rows(lines, where)
        return
    for number, line in enumerate(lines, start=1):
        yield number, line.split("\t") if line.strip() else []


def csv_rows(lines: Sequence[str], where: str, delimiter: str = ",") -> Iterator[tuple[int, list[str]]]:
    """Parse CSV into (number of the last line, cells); malformed CSV is an InputError."""
    reader = csv.reader((f"{line}\n" for line in lines), delimiter=delimiter)
    first = 0  # index of the first line of the row
    try:
        while (row := next(reader, None)) is not None:
            if _is_unclosed(lines[first : reader.line_num], delimiter, last=reader.line_num == len(lines)):
                raise InputError(f'{where}: line {first + 1}: not valid CSV: a quote (") is not closed')
            yield reader.line_num, row
            first = reader.line_num
    except csv.Error as error:
        hint = ""
        if "field limit" in str(error):
            hint = f'; is a quote (") of line {first + 1} not closed? Use JSON Lines for longer texts'
        raise InputError(f"{where}: line {reader.line_num}: not valid CSV: {error}{hint}") from None


def _is_unclosed(lines: Sequence[str], delimiter: str, *, last: bool) -> bool:
    """Return whether a row has a quote that is closed by one of a row below it, or not at all."""
    if len(lines) == 1 and not last:
        return False
    try:
        list(csv.reader((f"{line}\n" for line in lines), delimiter=delimiter, strict=True))
    except csv.Error as error:
        return len(lines) > 1 or "end of data" in str(error)
    return False


def parse_json(text: str, where: str) -> Any:
    """Parse JSON; malformed JSON or invalid Unicode is an InputError."""
    try:
        data = json.loads(text)
        if "\\u" in text:  # lone surrogates can only be written as escapes
            json.dumps(data, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: not valid JSON: {printable(str(error))}") from None
    return data


def _csv_rows(lines: Sequence[str], where: str) -> Iterator[tuple[int, list[str]]]:
    """Parse CSV; blank lines have no cells.

    The separator is that of a first line `sep=;`, as Excel writes it, or a semicolon if the first line has no comma.
    """
    index, first = next(((index, line) for index, line in enumerate(lines) if line.strip()), (0, ""))
    if declared := SEPARATOR_LINE.fullmatch(first):
        delimiter = declared[1]
        lines = [*lines[:index], "", *lines[index + 1 :]]
    else:
        delimiter = ";" if ";" in first and "," not in first else ","
    return (
        (number, cells if any(map(str.strip, cells)) else []) for number, cells in csv_rows(lines, where, delimiter)
    )


def _from_cells(
    rows: list[tuple[int, list[str]]], where: str, roles: Sequence[Role], columns: Mapping[str, str], separator: str
) -> Table:
    required = [role.name for role in roles if role.required]
    numbers = [index for index, (_, cells) in enumerate(rows) if cells]
    if not numbers:
        return Table([])
    first = rows[numbers[0]][1]
    names = [name.strip() for name in first]
    matched = match_columns(names, roles, columns, where) if columns or len(first) >= len(required) else {}
    below = [cells for _, cells in rows[numbers[0] + 1 :] if cells]
    named = bool(matched) and not missing_roles(roles, matched)
    header = bool(columns) or (
        named if len(names) > len(required) else is_header(names, (cells[-1] for cells in below), named=named)
    )
    if header and named:
        indices = {role: names.index(column) for role, column in matched.items()}
    elif len(first) == len(required):
        indices = {role: index for index, role in enumerate(required)}
        matched = {role: names[index] for role, index in indices.items()} if header else {}
    else:
        raise InputError(_wrong_width(where, rows[numbers[0]], required, separator, columns))
    found = []
    for number, cells in rows[numbers[0] + 1 if header else 0 :]:
        if cells and len(cells) != len(first):
            raise InputError(_wrong_width(where, (number, cells), names if header else required, separator, {}))
        values = {role: cells[index] if cells else "" for role, index in indices.items()}
        found.append(Row(number, {role.name: values.get(role.name, "") for role in roles}))
    description = describe_columns(roles, matched, names) if header else ""
    return Table(found, rows[numbers[0]][0] if header else None, description)


def _wrong_width(
    where: str, row: tuple[int, list[str]], expected: Sequence[str], separator: str, columns: Mapping[str, str]
) -> str:
    number, cells = row
    line = "".join(cells)
    hint = names = ""
    if columns:
        hint = f"; --column names {', '.join(columns)} only"
    elif len(cells) == 1 and line.lstrip().startswith("{"):
        hint = "; the name of a JSON Lines file must end in .jsonl"
    elif len(cells) == 1 and "," in line and separator == "tab":
        hint = "; the name of a CSV file must end in .csv"
    elif len(cells) > len(expected) and number == 1:
        shown = [printable(repr(cell.strip()), 30) for cell in cells[:MAX_SHOWN]]
        names = f" ({', '.join([*shown, '...'] if len(cells) > MAX_SHOWN else shown)})"
        hint = f"; if it is a header, name its columns: {' '.join(f'--column {name}=NAME' for name in expected)}"
    shown = [printable(name, 30) for name in expected]
    columns_expected = f", one {separator}, ".join(shown) if separator == "tab" else f", {separator}, ".join(shown)
    if len(expected) > 4:
        columns_expected = f"{len(expected)} columns"
    return f"{where}: line {number} has {len(cells)} column(s){names}; expected {columns_expected}{hint}"


def _from_json(lines: Sequence[str], where: str, roles: Sequence[Role], columns: Mapping[str, str]) -> Table:
    matched: dict[str, str] = {}
    names: list[str] = []
    rows = []
    kinds: dict[str, dict[str, tuple[int, Any]]] = {}  # by role and type of the values, the first line and value
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            rows.append(Row(number, {role.name: "" for role in roles}))
            continue
        location = f"{where}: line {number}"
        data = parse_json(line, location)
        if not isinstance(data, dict):
            raise InputError(f"{location} is not an object; expected {_example(roles)}")
        entry = _flat(data)
        if not matched:
            names = list(entry)
            matched = match_columns(names, roles, columns, where)
            matched = _two_texts(entry, roles) if missing_roles(roles, matched) and not columns else matched
        if missing_roles(roles, matched):
            missing = missing_roles(roles, matched)
            named = " ".join(f"--column {name}=NAME" for name in missing)
            raise InputError(
                f"{location} lacks {', '.join(missing)}; expected {_example(roles)}; its columns are "
                f"{list_columns(names)}: name them with {named}"
            )
        cells = {role.name: _cell(entry, matched, role, location) for role in roles}
        for role, column in matched.items():
            if (value := entry.get(column)) is not None:
                kinds.setdefault(role, {}).setdefault(_kind_of(value), (number, value))
        rows.append(Row(number, cells))
    obvious = all(role == column for role, column in matched.items())
    return Table(rows, None, "" if obvious else describe_columns(roles, matched, names), tuple(_mixed(kinds)))


def _kind_of(value: Any) -> str:
    """Return the JSON type of a value."""
    if isinstance(value, bool):
        return "boolean"
    return "number" if isinstance(value, int | float) else "list" if isinstance(value, list) else "string"


def _mixed(kinds: Mapping[str, Mapping[str, tuple[int, Any]]]) -> Iterator[str]:
    """Yield a note on each role whose values are strings and other types, which are read as strings, too."""
    for role, firsts in kinds.items():
        others = {kind: first for kind, first in firsts.items() if kind in ("boolean", "number")}
        if others and len(firsts) > 1:
            shown = ", ".join(f"a {kind} in line {line} ({json.dumps(x)})" for kind, (line, x) in others.items())
            yield f"{role} has values of several types: {shown}; all are read as strings"


def _two_texts(entry: Mapping[str, Any], roles: Sequence[Role]) -> dict[str, str]:
    """Return the only two columns with text values for two roles; none otherwise."""
    required = [role.name for role in roles if role.required]
    texts = [key for key, value in entry.items() if isinstance(value, str)]
    return dict(zip(required, texts, strict=True)) if len(required) == len(texts) == 2 else {}


def _cell(entry: Mapping[str, Any], matched: Mapping[str, str], role: Role, where: str) -> Cell:
    """Return a value as text: a string, a number, or a list of them; "" for null."""
    if role.name not in matched:
        return ""
    column = matched[role.name]
    if column not in entry:
        if not role.required:
            return ""
        raise InputError(f"{where} lacks {printable(repr(column), 40)}")
    value = entry[column]
    if value is None:
        return ""
    if isinstance(value, str | int | float):  # a label may be a number
        return str(value)
    if isinstance(value, list) and all(isinstance(item, str | int | float) for item in value):
        return [str(item) for item in value]
    raise InputError(f"{where}: {printable(repr(column), 40)} must be a text, a number or a list of them")


def _flat(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object whose nested objects are columns of their own: {"a": {"b": 1}} becomes {"a.b": 1}."""
    flat: dict[str, Any] = {}
    for key, value in data.items():
        flat |= {f"{key}.{inner}": item for inner, item in value.items()} if isinstance(value, dict) else {key: value}
    return flat


def _example(roles: Sequence[Role]) -> str:
    return "{" + ", ".join(f'"{role.name}": "..."' for role in roles if role.required) + "}"


SEPARATOR_LINE = re.compile(r'"?sep=([^\w"])"?\s*', re.IGNORECASE)  # of a CSV file of Excel
MAX_SHOWN = 6  # columns in a message
CSV = ".csv"
JSON = ".json"
JSON_LINES = (".jsonl", ".ndjson")
TABLES = (CSV, *JSON_LINES, ".tsv")  # suffixes of tables; files with other names are read as TSV
