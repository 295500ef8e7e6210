"""Tatoeba: short English sentences with German translations (selection of manythings.org)."""

from typing import Literal

from qkv.datasets.columns import BLEU
from qkv.datasets.dataset import PairConfig, PairDataset
from qkv.datasets.dataset_cache import data_files
from qkv.datasets.examples.pair import Pair
from qkv.datasets.formats.archive import unpack
from qkv.datasets.formats.text_files import decode_lines, split_by_source
from qkv.errors import InputError
from qkv.registry import register

LANGUAGES = ("en", "de")  # the columns of the file
HELD_OUT = 2000  # sources in each of valid and test


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
    columns = BLEU

    source: Literal["en", "de"] = "en"  # source language
    target: Literal["en", "de"] = "de"  # target language

    def read(self) -> PairDataset:
        """Read the splits; the split of a translation depends only on its source."""
        if self.source == self.target:
            raise InputError(f"tatoeba: {self.source} to {self.target} is not available: use en to de, or de to en")
        (path,) = self.fetch()
        rows = [line.split("\t") for line in decode_lines(unpack(path, "deu.txt"), str(path))]
        source, target = LANGUAGES.index(self.source), LANGUAGES.index(self.target)
        pairs = [Pair(row[source], row[target]) for row in rows]
        return PairDataset(split_by_source(pairs, HELD_OUT, HELD_OUT), target_language=self.target)
