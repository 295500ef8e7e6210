"""Figure data: BLEU by source length for several runs."""

import statistics
from collections.abc import Sequence

from qkv.errors import InputError
from qkv.experiments.results import Record
from qkv.experiments.run_labels import recipe_label, row_label, search_label
from qkv.experiments.table import UNFINISHED, newest
from qkv.metrics.text_metrics import Bucket
from qkv.visualize.length_chart import ByLength, Line


def by_length(records: Sequence[Record], split: str | None = None) -> ByLength:
    """Return the lines of all runs on one split (default: the first one that every recipe was scored on)."""
    scored = [record for record in newest(records) if record.by_length]
    if not scored:
        raise InputError("no run has BLEU by length: it is recorded for sentence pairs only")
    if len({(record.data, record.languages, record.data_hash) for record in scored}) > 1:
        names = ", ".join(sorted({f"{record.data} {record.data_hash[:12]}" for record in scored}))
        raise InputError(f"runs on different data cannot share a figure ({names}); select the runs of one data set")
    split = split or _shared_split(scored)
    selected = [record for record in scored if record.split == split]
    missing = {row_label(record) for record in scored} - {row_label(record) for record in selected}
    if missing:
        raise InputError(f"not scored on {split}: {', '.join(sorted(missing))}; run qkv evaluate --split {split}")
    spans = {tuple((bucket.least, bucket.most, bucket.pairs) for bucket in record.by_length) for record in selected}
    if len(spans) > 1:
        raise InputError(f"the runs were not scored on the same pairs of {split}: evaluate them again")
    buckets = selected[0].by_length
    searches = {search_label(record) for record in selected}
    lines = sorted(
        (_line(label, members) for label, members in _group_by_label(selected)), key=lambda line: -line.mean[-1]
    )
    title = f"{selected[0].data} {selected[0].languages}".strip() + f", {split}"
    title += f", {searches.pop()}" if len(searches) == 1 else ""
    return ByLength(title, tuple(map(_bucket_label, buckets)), tuple(bucket.pairs for bucket in buckets), tuple(lines))


def _shared_split(records: Sequence[Record]) -> str:
    labels = {row_label(record) for record in records}
    for split in sorted({record.split for record in records}):
        if {row_label(record) for record in records if record.split == split} == labels:
            return split
    raise InputError("no split was scored for all runs: run qkv evaluate --split all-tests")


def _group_by_label(records: Sequence[Record]) -> list[tuple[str, list[Record]]]:
    """Group records by row, with the shortest labels that distinguish the rows, and mark unfinished training."""
    rows: dict[str, list[Record]] = {}
    for record in records:
        rows.setdefault(row_label(record), []).append(record)
    firsts = [members[0] for members in rows.values()]
    same_search = len({search_label(first) for first in firsts}) == 1  # then it is part of the title
    recipes_differ = len({(first.recipe, search_label(first)) for first in firsts}) == len(firsts)
    groups = []
    for first, members in zip(firsts, rows.values(), strict=True):
        recipe = first.recipe if recipes_differ else recipe_label(first)
        label = recipe if same_search else f"{recipe}, {search_label(first)}"
        finished = all(record.finished for record in members)
        groups.append((label if finished else f"{label} ({UNFINISHED})", members))
    return groups


def _line(label: str, records: Sequence[Record]) -> Line:
    seeds = [[bucket.bleu for bucket in record.by_length] for record in records]
    buckets = list(zip(*seeds, strict=True))
    return Line(
        label,
        mean=tuple(map(statistics.fmean, buckets)),
        lowest=tuple(map(min, buckets)),
        highest=tuple(map(max, buckets)),
    )


def _bucket_label(bucket: Bucket) -> str:
    if bucket.most is None:
        return f"{bucket.least} or more"
    return f"{bucket.least}" if bucket.least == bucket.most else f"{bucket.least} to {bucket.most}"
