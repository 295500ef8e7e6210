"""Tatoeba: short English sentences with German translations (selection of manythings.org).

The sentences are alike: "Go on." and "Go on!", "I'm cold." and "I am cold." with one translation. The splits compare
sentences by their words, without case and punctuation. Valid and test have one pair for each of their sources, and
train has no pair with a source or a target of theirs.
"""

import re
from typing import ClassVar, Literal
from unicodedata import normalize

from qkv.datasets.columns import PAIRS
from qkv.datasets.dataset import PairConfig, PairDataset
from qkv.datasets.dataset_cache import data_files
from qkv.datasets.examples.pair import Pair
from qkv.datasets.formats.archive import unpack
from qkv.datasets.formats.text_files import decode_lines, split_by_source
from qkv.errors import InputError
from qkv.registry import register

LANGUAGES = ("en", "de")  # the columns of the file
VALID, TEST = 1000, 2000  # held-out sources
WORD = re.compile(r"\w+")


@register("dataset", "tatoeba")
class Tatoeba(PairConfig):
    """Short English sentences with German translations."""

    summary = "short sentences in en and de: 169,813 pairs"
    license = "CC BY 2.0; attribution: www.manythings.org/anki and tatoeba.org"
    origin = (
        "it is the version of 2018-05-13 from https://www.manythings.org/anki, which has since been replaced; the "
        "newer file can be used as your own pairs (its first two columns as a TSV file, with --data)."
    )
    files = data_files(  # no URL: manythings.org updates the file, so its bytes change
        "tatoeba_deu_eng",
        {"deu-eng.zip": (4012023, "b7688f84f99fa33c17397c14d8bd9cef1fdeb2ee0bf50074767023aee8926e28")},
    )
    columns = PAIRS
    remarks: ClassVar = {
        "en-de": "`tatoeba-transformer-phrases` started from the weights of the row `tatoeba-transformer`, which were "
        "packaged as `tatoeba-en-de` at that time. This name now is the fine-tuned model itself, so the command does "
        "not reproduce the row; instead, pass a run of `tatoeba-transformer`, stopped at 48 % of its steps, as `init`."
    }

    source: Literal["en", "de"] = "en"  # source language
    target: Literal["en", "de"] = "de"  # target language

    def read(self) -> PairDataset:
        """Read the splits, which share no sentence."""
        if self.source == self.target:
            raise InputError(f"tatoeba: {self.source} to {self.target} is not available: use en to de, or de to en")
        (path,) = self.fetch()
        rows = [line.split("\t") for line in decode_lines(unpack(path, "deu.txt"), str(path))]
        source, target = LANGUAGES.index(self.source), LANGUAGES.index(self.target)
        pairs = [Pair(row[source], row[target]) for row in rows]
        splits = split_by_source(pairs, VALID, TEST, words_of)
        splits |= {split: _first_of_each_source(splits[split]) for split in ("valid", "test")}
        targets = {words_of(pair.target) for split in ("valid", "test") for pair in splits[split]}
        splits["train"] = [pair for pair in splits["train"] if words_of(pair.target) not in targets]
        left_out = len(pairs) - sum(map(len, splits.values()))
        note = f"tatoeba: {left_out:,} pairs that share a sentence with the validation or test pairs are left out"
        return PairDataset(splits, (note,), target_language=self.target)


def words_of(sentence: str) -> str:
    """Return the words of a sentence without case and punctuation."""
    return " ".join(WORD.findall(normalize("NFKC", sentence).casefold()))


def _first_of_each_source(pairs: list[Pair]) -> list[Pair]:
    """Return the first translation of each source."""
    return list({words_of(pair.source): pair for pair in reversed(pairs)}.values())[::-1]
