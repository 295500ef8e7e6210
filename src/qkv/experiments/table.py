"""Markdown tables of results: one row per recipe, with its seeds and folds."""

import hashlib
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from urllib.parse import quote

from qkv.experiments.markdown import code, plain
from qkv.experiments.reproduction import HASH_DIGITS, reproduction_steps
from qkv.experiments.results import Record
from qkv.experiments.run_labels import fold_of, row_label

UNFINISHED = "training not finished"
TableKey = tuple[str, str, str, str]  # data, languages, task, data hash


@dataclass(frozen=True)
class Column:
    """Title and format of a metric in a table."""

    metric: str
    title: str
    unit: float = 1.0  # factor: 100 for percent
    digits: int = 2
    higher_is_better: bool = True
    needs_case: bool = False  # not shown for models trained on lowercased text


_BLEU = (Column("bleu_tokenised", "BLEU, lowercased, tokenised"), Column("bleu", "sacreBLEU, cased", needs_case=True))
_ACCURACY = (Column("accuracy", "accuracy, %", 100),)
_ANY_PAIRS = (Column("bleu", "sacreBLEU"), Column("chrf", "chrF"), Column("exact", "exact, %", 100))
_ROUGE = tuple(Column(f"rouge_{kind.lower()}", f"ROUGE-{kind}, %", 100) for kind in ("1", "2", "L"))


def _wrong_bits(*sizes: str) -> tuple[Column, ...]:
    return tuple(Column(f"bits_at_{size}", f"wrong bits at {size}", higher_is_better=False) for size in sizes)


COLUMNS = {
    "pairs": (*_ANY_PAIRS, *_ROUGE),
    "multi30k": _BLEU,
    "tatoeba": _BLEU,
    "cmudict": (
        Column("per", "phoneme error rate, %", 100, higher_is_better=False),
        Column("wer", "word error rate, %", 100, higher_is_better=False),
    ),
    "tinyshakespeare": (Column("nats", "nats per character", digits=4, higher_is_better=False),),
    "labelled": _ACCURACY,
    "sentence_polarity": _ACCURACY,
    "imdb": _ACCURACY,
    "movie_reviews": _ACCURACY,
    "questions": (Column("exact", "exact, %", 100), Column("f1", "F1 of words, %", 100)),
    "text": (Column("nats", "nats per token", digits=4, higher_is_better=False),),
    "tagged": (*_ACCURACY, Column("f1", "F1, %", 100)),
    "ud_english_ewt": _ACCURACY,
    "wnut17": (Column("f1", "F1 of entities, %", 100),),
    "fashion_mnist": _ACCURACY,
    "shapes": (Column("exact", "exact, %", 100), Column("pointing", "attention in the named object, %", 100)),
    **dict.fromkeys(("emoji", "flickr8k", "coco"), (Column("bleu", "sacreBLEU"), Column("exact", "exact, %", 100))),
    "omniglot": (*_ACCURACY, Column("margin", "±, %", 100, higher_is_better=False)),
    "bandits": (
        Column("reward", "reward a game", digits=3),
        Column("margin", "±", digits=3, higher_is_better=False),
        Column("gittins", "Gittins", digits=3),
        Column("ucb", "UCB1", digits=3),
        Column("thompson", "Thompson", digits=3),
        Column("random", "at random", digits=3),
    ),
    "copy": _wrong_bits("20", "40", "80", "120"),
    "repeat_copy": _wrong_bits("10x10", "20x10", "10x20", "20x20"),
    "recall": _wrong_bits("6", "10", "15", "20"),
    "dates": (
        Column("exact", "exact, %", 100),
        Column("cer", "character error rate, %", 100, higher_is_better=False),
        Column("alignment", "alignment accuracy, %", 100),
    ),
}
PERPLEXITY = Column("perplexity", "perplexity", higher_is_better=False)
PRETRAINING = {  # pretraining tasks, which have their own tables
    "masked_words": (
        PERPLEXITY,
        Column("accuracy", "masked words, %", 100),
        Column("next_sentence", "next sentence, %", 100),
    ),
    "two_way_language_model": (PERPLEXITY,),
    "document_language_model": (PERPLEXITY,),
}
# Published results, and explanations of columns and rows.
REMARKS = {
    ("multi30k", "en-de"): (
        "Published: Transformer-Tiny, 41.02 lowercased tokenised BLEU on test_2016_flickr (Wu et al. 2021; text only, "
        "beam 5, ten checkpoints averaged)."
    ),
    ("tinyshakespeare", ""): "Published: nanoGPT's Transformer of 6 layers and width 384, 1.4697 (its README).",
    ("ud_english_ewt", ""): (
        "A model of trees is given those of the treebank, also when it is tested: they inform the label, and most of "
        "all what a word is to its head (deprel)."
    ),
    ("omniglot", ""): (
        "Published: SNAIL 99.07 % of five classes and 97.64 % of twenty (Mishra et al. 2018). ± holds the true mean in "
        "95 of 100 cases, over the episodes of one seed."
    ),
    ("emoji", ""): (
        "Trained on Google's drawings. test: Twitter's drawings of names that training never saw; test_google: "
        "Google's drawings of these; test_twitter: Twitter's drawings of names that were seen."
    ),
    ("bandits", ""): "All play the same games. Gittins: the arm with the greatest index for the pulls that are left.",
}


@dataclass(frozen=True)
class Row:
    """The newest record of each seed, fold and split of one recipe."""

    label: str
    records: tuple[Record, ...]

    @property
    def seeds(self) -> list[int]:
        return sorted({record.seed for record in self.records})

    @property
    def folds(self) -> list[int]:
        return sorted({fold for record in self.records if (fold := fold_of(record)) is not None})

    def on_split(self, split: str) -> list[Record]:
        return [record for record in self.records if record.split == split]

    def values(self, split: str, column: Column) -> list[float]:
        """Return the value of a column for each seed and fold."""
        if column.needs_case and any(record.lowercase for record in self.records):
            return []
        metrics = [record.score(column.metric) for record in self.on_split(split)]
        return [metric.value * column.unit for metric in metrics if metric is not None and metric.value is not None]


@dataclass(frozen=True)
class Table:
    """Rows that can be compared: they have the same data, hash and folds."""

    data: str
    languages: str
    task: str  # a key of PRETRAINING, else ""
    data_hash: str
    splits: tuple[str, ...]
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]

    @property
    def title(self) -> str:
        source, _, target = self.languages.partition("-")
        name = f"{self.data} {source} to {target}" if target else self.data
        return f"{name}, {self.task.replace('_', ' ')}" if self.task else name


def tables(records: Iterable[Record]) -> list[Table]:
    """Group records into tables, with the best row of each first."""
    kept = newest(records)
    over_folds = _over_folds(kept)

    def key(record: Record) -> TableKey:
        return over_folds.get(_row_key(record)) or _table_key(record)

    return [_table(table_key, list(members)) for table_key, members in groupby(sorted(kept, key=key), key=key)]


def newest(records: Iterable[Record]) -> list[Record]:
    """Keep the newest record for each recipe, seed, search, data and split."""
    ordered = sorted(records, key=lambda record: record.date)
    return list(
        {(_table_key(record), row_label(record), record.seed, record.split): record for record in ordered}.values()
    )


def markdown(tables: Sequence[Table], command: str, figure: str | None = None) -> str:
    """Return the tables as a Markdown page, with the commands that reproduce each row."""
    parts = [
        "# Results",
        f"Written by {code(command)} from the records of the runs: do not edit it, run that again.",
        "Where there are several seeds or folds, a cell gives their mean, and in brackets the lowest and the highest.",
    ]
    titles = [table.title for table in tables]
    for table in tables:
        parts += _section(table, same_title=titles.count(table.title) > 1)
    if figure is not None:
        parts += ["## BLEU by the length of the source", f"![BLEU by the length of the source]({quote(figure)})"]
    return "\n\n".join(parts) + "\n"


def _table_key(record: Record) -> TableKey:
    return record.data, record.languages, record.task if record.task in PRETRAINING else "", record.data_hash


def _row_key(record: Record) -> tuple[TableKey, str]:
    """Return what the records of a row have in common, whatever their folds."""
    data, languages, task, _ = _table_key(record)
    return (data, languages, task, ""), row_label(record)


def _over_folds(records: Iterable[Record]) -> dict[tuple[TableKey, str], TableKey]:
    """Return the table keys of rows with several folds; rows with the same folds of the same data share a table.

    The data hash of such a table is the hash of the fold hashes. Rows are left out if a fold has records on different
    data, or if the seeds have different folds.
    """
    folds: dict[tuple[TableKey, str], dict[int, set[tuple[int, str]]]] = {}
    for record in records:
        if (fold := fold_of(record)) is not None:
            folds.setdefault(_row_key(record), {}).setdefault(record.seed, set()).add((fold, record.data_hash))
    keys = {}
    for row, by_seed in folds.items():
        first, *others = by_seed.values()
        if 1 < len(first) == len({fold for fold, _ in first}) and all(
            folds_of_seed == first for folds_of_seed in others
        ):
            keys[row] = (*row[0][:3], hashlib.sha256(repr(sorted(first)).encode()).hexdigest())
    return keys


def _table(key: TableKey, records: list[Record]) -> Table:
    data, languages, task, data_hash = key
    columns = PRETRAINING.get(task) or COLUMNS.get(data, _ANY_PAIRS)
    splits = tuple(sorted({record.split for record in records}))
    labels = sorted({row_label(record) for record in records})
    rows = [Row(label, tuple(record for record in records if row_label(record) == label)) for label in labels]

    def rank(row: Row) -> tuple[bool, float]:
        values = next((row.values(split, columns[0]) for split in splits if row.values(split, columns[0])), [])
        mean = statistics.fmean(values) if values else 0.0
        return not values, -mean if columns[0].higher_is_better else mean

    shown = tuple(column for column in columns if any(row.values(split, column) for row in rows for split in splits))
    return Table(data, languages, task, data_hash, splits, shown, tuple(sorted(rows, key=rank)))


def _section(table: Table, *, same_title: bool) -> list[str]:
    title = plain(table.title)
    parts = [f"## {title}"]
    if same_title:
        parts.append(
            f"There is more than one table of {title}, for the runs had different data. These had the data with "
            f"the hash {plain(table.data_hash[:HASH_DIGITS])}: compare rows inside a table only."
        )
    parts.append(_grid(table))
    if (table.data, table.languages) in REMARKS:
        parts.append(REMARKS[table.data, table.languages])
    folds = table.rows[0].folds
    data = f"SHA-256 of the hashes of {len(folds)} folds" if len(folds) > 1 else "SHA-256"
    tested = [f"- tested on fold {', '.join(map(str, folds))}"] if folds else []
    parts.append("\n".join([f"- data: {data} {plain(table.data_hash)}", *tested, *_signatures(table)]))
    reproduction = [
        line
        for row in table.rows
        for line in (f"- {plain(row.label)}", *(f"  - {step}" for step in reproduction_steps(row.records)))
    ]
    parts.append("How each row was made:\n\n" + "\n".join(reproduction))
    return parts


def _grid(table: Table) -> str:
    headers = [f"{split}: {column.title}" for split in table.splits for column in table.columns]
    lines = [["recipe", "parameters", "seeds", *headers, "minutes of training"]]
    lines.append(["---", *["---:"] * (len(lines[0]) - 1)])
    for row in table.rows:
        cells = [spread(row.values(split, column), column.digits) for split in table.splits for column in table.columns]
        minutes = spread(list({(record.seed, fold_of(record)): record.minutes for record in row.records}.values()), 1)
        runs = f"{len(row.seeds)} x {len(row.folds)} folds" if len(row.folds) > 1 else str(len(row.seeds))
        parameters = " / ".join(sorted({f"{record.parameters / 1e6:.2f} M" for record in row.records}))
        lines.append([f"{row.label}{_caveats(row)}", parameters, runs, *cells, minutes])
    return "\n".join(f"| {' | '.join(map(plain, line))} |" for line in lines)


def _caveats(row: Row) -> str:
    """Return notes on unfinished training and skipped pairs."""
    notes = []
    if not all(record.finished for record in row.records):
        notes.append(UNFINISHED)
    if left_out := max(record.left_out for record in row.records):
        notes.append(f"{left_out} too long and left out")
    return f" ({', '.join(notes)})" if notes else ""


def spread(values: Sequence[float], digits: int) -> str:
    """Format the mean, and the range of several values."""
    if not values:
        return ""
    mean = f"{statistics.fmean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def _signatures(table: Table) -> list[str]:
    lines = []
    for column in table.columns:
        measured = (record.score(column.metric) for row in table.rows for record in row.records)
        signatures = {metric.signature for metric in measured if metric is not None and metric.signature}
        lines += [f"- {column.title}: {code(signature)}" for signature in sorted(signatures)]
    return lines
