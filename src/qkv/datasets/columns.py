"""Columns of result tables: which metrics of a dataset or task are reported, and in which format."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Column:
    """Title and format of a metric in a table."""

    metric: str
    title: str
    unit: float = 1.0  # factor: 100 for percent
    digits: int = 2
    higher_is_better: bool = True
    needs_case: bool = False  # not shown for models trained on lowercased text


BLEU = (Column("bleu_tokenised", "BLEU, lowercased, tokenized"), Column("bleu", "sacreBLEU, cased", needs_case=True))
ACCURACY = (Column("accuracy", "accuracy, %", 100),)
EXACT = Column("exact", "exact, %", 100)
PERPLEXITY = Column("perplexity", "perplexity", higher_is_better=False)
PAIRS = (Column("bleu", "sacreBLEU"), Column("chrf", "chrF"), EXACT)
BRACKETS = (Column("f1", "labeled bracket F1, %", 100), EXACT)
DIALOGUE = (PERPLEXITY, Column("distinct_1", "distinct-1, %", 100), Column("distinct_2", "distinct-2, %", 100))
ROUGE = tuple(Column(f"rouge_{kind.lower()}", f"ROUGE-{kind}, %", 100) for kind in ("1", "2", "L"))
CAPTIONS = (Column("bleu", "sacreBLEU"), EXACT)
BLEU_1_TO_4 = (*(Column(f"bleu_{order}", f"BLEU-{order}") for order in (1, 2, 3)), Column("bleu", "BLEU-4"))


def bleu_of_languages(*languages: str) -> tuple[Column, ...]:
    """Columns of BLEU in each of several target languages."""
    return tuple(Column(f"bleu_tokenised_{name}", f"BLEU, {name}, lowercased, tokenized") for name in languages)


def wrong_bits(*sizes: str) -> tuple[Column, ...]:
    """Columns of the number of wrong bits per sequence at these sizes."""
    return tuple(Column(f"bits_at_{size}", f"wrong bits at {size}", higher_is_better=False) for size in sizes)
