"""BLEU by the length of the source, for several runs: what a figure draws."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from qkv.errors import InputError
from qkv.evaluation.labels import recipe_label, row_label, search_label
from qkv.evaluation.record import Bucket, Record
from qkv.evaluation.table import UNFINISHED, newest


@dataclass(frozen=True)
class Line:
    """One recipe: the mean of its seeds in each bucket, the lowest and the highest."""

    label: str
    mean: tuple[float, ...]
    lowest: tuple[float, ...]
    highest: tuple[float, ...]


@dataclass(frozen=True)
class ByLength:
    """The lines of a figure, in the order of their last points, over buckets that hold so many pairs."""

    title: str
    buckets: tuple[str, ...]
    counts: tuple[int, ...]
    lines: tuple[Line, ...]


def by_length(records: Sequence[Record], split: str | None = None) -> ByLength:
    """The lines of all runs on one split (the first that every recipe was scored on, unless named)."""
    scored = [record for record in newest(records) if record.by_length]
    if not scored:
        raise InputError("no run has BLEU by length: it is recorded for pairs of sentences, not for words or text")
    if len({(record.data, record.languages, record.data_hash) for record in scored}) > 1:
        names = ", ".join(sorted({f"{record.data} {record.data_hash[:12]}" for record in scored}))
        raise InputError(f"runs on different data cannot share a figure ({names}): give those of one data set")
    chosen = split or _shared_split(scored)
    drawn = [record for record in scored if record.split == chosen]
    missing = {row_label(record) for record in scored} - {row_label(record) for record in drawn}
    if missing:
        raise InputError(f"not scored on {chosen}: {', '.join(sorted(missing))}; run qkv evaluate --split {chosen}")
    spans = {tuple((one.least, one.most, one.pairs) for one in record.by_length) for record in drawn}
    if len(spans) > 1:
        raise InputError(f"the runs were not scored on the same pairs of {chosen}: evaluate them again")
    first = drawn[0].by_length
    searches = {search_label(record) for record in drawn}
    lines = sorted((_line(label, members) for label, members in _named(drawn)), key=lambda line: -line.mean[-1])
    title = f"{drawn[0].data} {drawn[0].languages}".strip() + f", {chosen}"
    title += f", {searches.pop()}" if len(searches) == 1 else ""
    return ByLength(title, tuple(map(_span, first)), tuple(one.pairs for one in first), tuple(lines))


def _shared_split(records: Sequence[Record]) -> str:
    labels = {row_label(record) for record in records}
    for split in sorted({record.split for record in records}):
        if {row_label(record) for record in records if record.split == split} == labels:
            return split
    raise InputError("there is no split that all of the runs were scored on: run qkv evaluate --split all-tests")


def _named(records: Sequence[Record]) -> list[tuple[str, list[Record]]]:
    """The records of each line, by a name that says no more than tells the lines apart, and if training has ended."""
    rows: dict[str, list[Record]] = {}
    for record in records:
        rows.setdefault(row_label(record), []).append(record)
    firsts = [members[0] for members in rows.values()]
    one_search = len({search_label(first) for first in firsts}) == 1  # then it is said once, above the lines
    recipes_differ = len({(first.recipe, search_label(first)) for first in firsts}) == len(firsts)
    named = []
    for first, members in zip(firsts, rows.values(), strict=True):
        recipe = first.recipe if recipes_differ else recipe_label(first)
        label = recipe if one_search else f"{recipe}, {search_label(first)}"
        finished = all(record.finished for record in members)
        named.append((label if finished else f"{label} ({UNFINISHED})", members))
    return named


def _line(label: str, records: Sequence[Record]) -> Line:
    seeds = [[one.bleu for one in record.by_length] for record in records]
    buckets = list(zip(*seeds, strict=True))
    return Line(
        label,
        mean=tuple(map(statistics.fmean, buckets)),
        lowest=tuple(map(min, buckets)),
        highest=tuple(map(max, buckets)),
    )


def _span(bucket: Bucket) -> str:
    if bucket.most is None:
        return f"{bucket.least} or more"
    return f"{bucket.least}" if bucket.least == bucket.most else f"{bucket.least} to {bucket.most}"
