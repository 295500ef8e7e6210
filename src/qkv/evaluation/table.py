"""Tables of results in Markdown, from the records of many runs: one row a recipe, its seeds and folds together."""

import hashlib
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from urllib.parse import quote

from qkv.evaluation.labels import fold_of, row_label
from qkv.evaluation.markdown import code, plain
from qkv.evaluation.record import Record
from qkv.evaluation.reproduction import SHOWN_OF_A_HASH, reproduction_steps

UNFINISHED = "training not finished"
Place = tuple[str, str, str, str]  # data, languages, task and hash: what a table is of


@dataclass(frozen=True)
class Column:
    """One metric as a table shows it."""

    metric: str
    title: str
    unit: float = 1.0  # what the value is multiplied with: 100 for percent
    digits: int = 2
    higher_is_better: bool = True
    needs_case: bool = False  # says nothing of a model that was trained on lowercased text


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
PRE_TRAINING = {  # tasks that are learned from data sets made for another: a table of their own
    "masked_words": (
        PERPLEXITY,
        Column("accuracy", "masked words, %", 100),
        Column("next_sentence", "next sentence, %", 100),
    ),
    "two_way_language_model": (PERPLEXITY,),
    "document_language_model": (PERPLEXITY,),
}
# What others report, and where; what a column or a row is.
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
    """All that was measured of one recipe: the newest record of each seed, fold and split."""

    label: str
    records: tuple[Record, ...]

    @property
    def seeds(self) -> list[int]:
        return sorted({record.seed for record in self.records})

    @property
    def folds(self) -> list[int]:
        return sorted({fold for record in self.records if (fold := fold_of(record)) is not None})

    def of(self, split: str) -> list[Record]:
        return [record for record in self.records if record.split == split]

    def values(self, split: str, column: Column) -> list[float]:
        """The column's value for each seed, and each fold."""
        if column.needs_case and any(record.lowercase for record in self.records):
            return []
        found = [record.score(column.metric) for record in self.of(split)]
        return [one.value * column.unit for one in found if one is not None and one.value is not None]


@dataclass(frozen=True)
class Table:
    """The rows that may be compared: the same data, hash for hash, and fold for fold."""

    data: str
    languages: str
    task: str  # of those in PRE_TRAINING, else ""
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
    """Sort records into tables, the best row of each first."""
    kept = newest(records)
    over_folds = _over_folds(kept)

    def place(record: Record) -> Place:
        return over_folds.get(_row_of(record)) or _table_of(record)

    return [_table(where, list(members)) for where, members in groupby(sorted(kept, key=place), key=place)]


def newest(records: Iterable[Record]) -> list[Record]:
    """What was measured again replaces what was measured before, of the same recipe, seed, search, data and split."""
    ordered = sorted(records, key=lambda record: record.date)
    return list({(_table_of(one), row_label(one), one.seed, one.split): one for one in ordered}.values())


def markdown(found: Sequence[Table], command: str, figure: str | None = None) -> str:
    """The tables as a page, with all that is needed to make each row again."""
    parts = [
        "# Results",
        f"Written by {code(command)} from the records of the runs: do not edit it, run that again.",
        "Where there are several seeds or folds, a cell gives their mean, and in brackets the lowest and the highest.",
    ]
    titles = [table.title for table in found]
    for table in found:
        parts += _section(table, others=titles.count(table.title) > 1)
    if figure is not None:
        parts += ["## BLEU by the length of the source", f"![BLEU by the length of the source]({quote(figure)})"]
    return "\n\n".join(parts) + "\n"


def _table_of(record: Record) -> Place:
    return record.data, record.languages, record.task if record.task in PRE_TRAINING else "", record.data_hash


def _row_of(record: Record) -> tuple[Place, str]:
    """What the records of a row have in common, whatever their folds."""
    data, languages, task, _ = _table_of(record)
    return (data, languages, task, ""), row_label(record)


def _over_folds(records: Iterable[Record]) -> dict[tuple[Place, str], Place]:
    """The tables of rows with several folds: those belong together that have the same folds of the same data.

    The hash of such data is that of the hashes of the folds. No mean is taken where one fold had different data, or one
    seed has not all folds of the others.
    """
    folds: dict[tuple[Place, str], dict[int, set[tuple[int, str]]]] = {}
    for record in records:
        if (fold := fold_of(record)) is not None:
            folds.setdefault(_row_of(record), {}).setdefault(record.seed, set()).add((fold, record.data_hash))
    places = {}
    for row, by_seed in folds.items():
        first, *others = by_seed.values()
        if 1 < len(first) == len({fold for fold, _ in first}) and all(one == first for one in others):
            places[row] = (*row[0][:3], hashlib.sha256(repr(sorted(first)).encode()).hexdigest())
    return places


def _table(where: Place, records: list[Record]) -> Table:
    data, languages, task, data_hash = where
    columns = PRE_TRAINING.get(task) or COLUMNS.get(data, _ANY_PAIRS)
    splits = tuple(sorted({record.split for record in records}))
    labels = sorted({row_label(record) for record in records})
    rows = [Row(label, tuple(record for record in records if row_label(record) == label)) for label in labels]

    def merit(row: Row) -> tuple[bool, float]:
        values = next((row.values(split, columns[0]) for split in splits if row.values(split, columns[0])), [])
        worth = statistics.fmean(values) if values else 0.0
        return not values, -worth if columns[0].higher_is_better else worth

    shown = tuple(column for column in columns if any(row.values(split, column) for row in rows for split in splits))
    return Table(data, languages, task, data_hash, splits, shown, tuple(sorted(rows, key=merit)))


def _section(table: Table, *, others: bool) -> list[str]:
    title = plain(table.title)
    parts = [f"## {title}"]
    if others:
        parts.append(
            f"There is more than one table of {title}, for the runs had different data. These had the data with "
            f"the hash {plain(table.data_hash[:SHOWN_OF_A_HASH])}: compare rows inside a table only."
        )
    parts.append(_grid(table))
    if (table.data, table.languages) in REMARKS:
        parts.append(REMARKS[table.data, table.languages])
    folds = table.rows[0].folds
    data = f"SHA-256 of the hashes of {len(folds)} folds" if len(folds) > 1 else "SHA-256"
    tested = [f"- tested on fold {', '.join(map(str, folds))}"] if folds else []
    parts.append("\n".join([f"- data: {data} {plain(table.data_hash)}", *tested, *_signatures(table)]))
    made = [
        line
        for row in table.rows
        for line in (f"- {plain(row.label)}", *(f"  - {how}" for how in reproduction_steps(row.records)))
    ]
    parts.append("How each row was made:\n\n" + "\n".join(made))
    return parts


def _grid(table: Table) -> str:
    heads = [f"{split}: {column.title}" for split in table.splits for column in table.columns]
    lines = [["recipe", "parameters", "seeds", *heads, "minutes of training"]]
    lines.append(["---", *["---:"] * (len(lines[0]) - 1)])
    for row in table.rows:
        cells = [spread(row.values(split, column), column.digits) for split in table.splits for column in table.columns]
        minutes = spread(list({(record.seed, fold_of(record)): record.minutes for record in row.records}.values()), 1)
        runs = f"{len(row.seeds)} x {len(row.folds)} folds" if len(row.folds) > 1 else str(len(row.seeds))
        parameters = " / ".join(sorted({f"{record.parameters / 1e6:.2f} M" for record in row.records}))
        lines.append([f"{row.label}{_reservations(row)}", parameters, runs, *cells, minutes])
    return "\n".join(f"| {' | '.join(map(plain, line))} |" for line in lines)


def _reservations(row: Row) -> str:
    """What a reader has to know before trusting the row."""
    words = []
    if not all(record.finished for record in row.records):
        words.append(UNFINISHED)
    if left_out := max(record.left_out for record in row.records):
        words.append(f"{left_out} too long and left out")
    return f" ({', '.join(words)})" if words else ""


def spread(values: Sequence[float], digits: int) -> str:
    """The mean, and the lowest and highest of several."""
    if not values:
        return ""
    mean = f"{statistics.fmean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def _signatures(table: Table) -> list[str]:
    lines = []
    for column in table.columns:
        measured = (record.score(column.metric) for row in table.rows for record in row.records)
        signatures = {one.signature for one in measured if one is not None and one.signature}
        lines += [f"- {column.title}: {code(signature)}" for signature in sorted(signatures)]
    return lines
