"""Statistics of the examples of a dataset, and warnings about examples that are probably mistakes."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import median
from typing import Any

from qkv.datasets.dataset import Dataset
from qkv.runtime.text import printable

MAX_ROWS = 1_000_000  # inspected in each split
LABELS = ("label", "tags")  # keys of previews that are no texts
NAMES = ("image", "recording", "length")  # keys of previews that are neither texts nor labels
# UTF-8 that was decoded as Latin-1 or Windows-1252, and characters that were lost in a conversion.
MOJIBAKE = re.compile("[ÃÂ][\u0080-\u00bf]|â€[\u0080-\uffff]|ï»¿|\ufffd")
CONTROL = re.compile("[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f]")
FEW_PER_LABEL = 5
CONTEXT = 20  # characters shown before and after a problem
DOMINANT = 0.95  # share of the most frequent label


@dataclass(frozen=True)
class Lengths:
    """Lengths of the texts or recordings of a column."""

    shortest: float
    median: float
    longest: float
    unit: str

    @classmethod
    def of(cls, lengths: Sequence[float], unit: str) -> "Lengths":
        return cls(min(lengths), median(lengths), max(lengths), unit)


@dataclass(frozen=True)
class Columns:
    """The examples of all splits by column: those of texts, and the label or tags."""

    texts: dict[str, list[str]]
    labels: dict[str, Counter[str]]  # by split
    rows: list[dict[str, Any]]  # as previewed

    @classmethod
    def read(cls, data: Dataset[Any]) -> "Columns":
        texts: dict[str, list[str]] = {}
        labels: dict[str, Counter[str]] = {}
        rows: list[dict[str, Any]] = []
        for split in data.splits:
            counts = labels.setdefault(split, Counter())
            for row in islice(data.preview(split), MAX_ROWS):
                rows.append(row)
                for key, value in row.items():
                    if key in LABELS:
                        counts.update([value] if isinstance(value, str) else value)
                    elif key not in NAMES:
                        texts.setdefault(key, []).append(value if isinstance(value, str) else " ".join(value))
        return cls(texts, labels if any(labels.values()) else {}, rows)

    @property
    def label_counts(self) -> Counter[str]:
        """Number of examples of each label in all splits, the most frequent first."""
        total = sum(self.labels.values(), Counter[str]())
        return Counter(dict(total.most_common()))


def find_problems(columns: Columns, keys: Sequence[str] = (), *, running_text: bool = False) -> Iterator[str]:
    """Yield warnings about the texts and labels of a dataset.

    Copies of examples have equal `keys`, or equal rows; the lines of running text may be equal.
    """
    yield from _encoding_problems(columns.texts)
    if not running_text:
        yield from _repetitions(columns.rows, keys)
    if columns.labels:
        yield from _label_problems(columns.labels, columns.label_counts)
    if columns.rows and "label" in columns.rows[0] and columns.texts:
        yield from _column_problems(columns)
    elif set(columns.texts) == {"source", "target"}:
        yield from _header_of_pairs(columns.texts)


def _encoding_problems(texts: Mapping[str, Sequence[str]]) -> Iterator[str]:
    for name, pattern, problem in (
        ("encoding", MOJIBAKE, "look wrongly decoded: convert the original file to UTF-8"),
        ("control", CONTROL, "have control characters"),
    ):
        for column, values in texts.items():
            found = [match for match in map(pattern.search, values) if match]
            if found:
                excerpt = found[0].string[max(0, found[0].start() - CONTEXT) : found[0].end() + CONTEXT]
                yield f"{name}: {len(found):,} of {len(values):,} in {column} {problem}: {_quote(excerpt)}"


def _repetitions(rows: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> Iterator[str]:
    seen = set[str]()
    repeated = []
    for number, row in enumerate(rows):
        key = keys[number] if keys else repr(row)
        if key in seen:
            repeated.append(" | ".join(value if isinstance(value, str) else " ".join(value) for value in row.values()))
        seen.add(key)
    if repeated:
        yield f"duplicates: {len(repeated):,} of {len(rows):,} examples repeat another one: {_quote(repeated[0])}"


def _label_problems(labels: Mapping[str, Counter[str]], counts: Counter[str]) -> Iterator[str]:
    train = labels.get("train", Counter())
    for split, of_split in labels.items():
        if missing := [label for label in of_split if label not in train]:
            yield f"labels: {_list(missing)} in {split} but not in train"
    if rare := [label for label, count in train.items() if count < FEW_PER_LABEL]:
        yield f"labels: fewer than {FEW_PER_LABEL} training examples of {_list(rare)}"
    spellings: dict[str, list[str]] = {}
    for label in counts:
        spellings.setdefault(" ".join(label.casefold().split()), []).append(label)
    for variants in spellings.values():
        if len(variants) > 1:
            yield f"labels: {_list(variants)} differ only in case or spaces"
    label, count = counts.most_common(1)[0]
    if len(counts) > 1 and count > DOMINANT * counts.total():
        yield f"labels: {count / counts.total():.0%} of the examples have the label {_quote(label)}"


def _column_problems(columns: Columns) -> Iterator[str]:
    """Yield warnings about labels that may be texts, or a header that was read as an example."""
    (texts, *_), labels = columns.texts.values(), [str(row["label"]) for row in columns.rows]
    counts = columns.label_counts
    if len(counts) > max(2, len(labels) / 2):
        yield (
            f"a label per text: {len(labels):,} texts have {len(counts):,} different labels, such as "
            f"{_quote(labels[0])}: are these pairs?"
        )
    if _mean_words(labels) > _mean_words(texts):
        yield (
            f"the columns are probably swapped: labels are longer than texts, e.g. label {_quote(labels[0])}, text "
            f"{_quote(texts[0])}; name the columns with --column text=NAME --column label=NAME"
        )
    label_texts: dict[str, set[str]] = {}
    for text, label in zip(texts, labels, strict=True):
        label_texts.setdefault(text, set()).add(label)
        if counts[label] == 1 and len(text.split()) == len(label.split()) == 1 < _mean_words(texts):
            yield (
                f"possible header: the text {_quote(text)} with the label {_quote(label)} was read as an example: "
                "remove the line, or name the columns with --column text=NAME --column label=NAME"
            )
    conflicts = [text for text, of_text in label_texts.items() if len(of_text) > 1]
    if conflicts:
        yield f"conflicts: {len(conflicts):,} text(s) have several labels, the first: {_quote(conflicts[0])}"


def _header_of_pairs(texts: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield a warning if the first pair may be a header: one word on each side, unlike most pairs."""
    first = [values[0].strip() for values in texts.values()]
    if all(text.isidentifier() for text in first) and all(_mean_words(values) > 3 for values in texts.values()):
        yield (
            f"possible header: the pair {_quote(' | '.join(first))} was read as an example: remove the line, or name "
            "the columns with --column source=NAME --column target=NAME"
        )


def _mean_words(texts: Sequence[str]) -> float:
    return sum(len(text.split()) for text in texts) / len(texts)


def _quote(text: str) -> str:
    return printable(repr(text), 60)


def _list(names: Sequence[str]) -> str:
    shown = ", ".join(printable(name, 30) for name in sorted(names)[:5])
    return f"{shown} and {len(names) - 5:,} more" if len(names) > 5 else shown
