"""UD English EWT: web text with parts of speech and dependency heads (Silveira et al. 2014)."""

from qkv.data.archive import unpack
from qkv.data.files import decode_lines
from qkv.data.store import Corpus, DataFile, Store
from qkv.data.tagged import Tagged, parse_conllu

# No address: the treebank is corrected twice a year, and its source serves it unpacked.
FILES = {
    "train": DataFile(
        "ud_english_ewt/en_ewt-ud-train.conllu.gz",
        "bd47e08c9e18ec12d319e84df2ccdb272ff6de1d0dba5761117d3caf8b358f7b",
        2605912,
    ),
    "valid": DataFile(
        "ud_english_ewt/en_ewt-ud-dev.conllu.gz",
        "41086e3afc9ae572f899c9123f874d6d04a52e374a3d2ac7a6667ce48e3bf3e3",
        333837,
    ),
    "test": DataFile(
        "ud_english_ewt/en_ewt-ud-test.conllu.gz",
        "29c151eee8846d3f3ef7806c126ecac9932af2317c008c6d6b076c5e14950dbe",
        330912,
    ),
}
CORPUS = Corpus(
    name="ud_english_ewt",
    licence="CC BY-SA 4.0",
    origin="it is the treebank UD_English-EWT of https://universaldependencies.org, its three files packed by gzip.",
    files=tuple(FILES.values()),
)


def read(store: Store) -> dict[str, list[Tagged]]:
    """The sentences of each split."""
    paths = dict(zip(FILES, store.provide(CORPUS, CORPUS.files), strict=True))
    return {split: parse_conllu(decode_lines(unpack(path), str(path)), str(path)) for split, path in paths.items()}
