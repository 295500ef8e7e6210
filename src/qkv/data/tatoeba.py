"""Tatoeba: short sentences with their translations by volunteers, English and German (manythings.org's selection)."""

from qkv.data.archive import unpack
from qkv.data.files import decode_lines, split_by_source
from qkv.data.pair import Pair
from qkv.data.store import Corpus, DataFile, Store
from qkv.errors import InputError

LANGUAGES = ("en", "de")  # the columns of the file
HELD_OUT = 2000  # sources in each of valid and test

# No address: manythings.org replaces the file as sentences come in, so that today's has other bytes.
FILE = DataFile(
    "tatoeba_deu_eng/deu-eng.zip", "b7688f84f99fa33c17397c14d8bd9cef1fdeb2ee0bf50074767023aee8926e28", 4012023
)
CORPUS = Corpus(
    name="tatoeba",
    licence="CC BY 2.0; attribution: www.manythings.org/anki and tatoeba.org",
    origin=(
        "it is the file of 2018-05-13 from https://www.manythings.org/anki, where a newer one has taken its place; the "
        "newer one can be used as your own pairs (its first two columns as a TSV file, with --data)."
    ),
    files=(FILE,),
)


def read(store: Store, source: str, target: str) -> dict[str, list[Pair]]:
    """All translations of a sentence are in one split, which the sentence alone decides."""
    if {source, target} != set(LANGUAGES):
        raise InputError(f"tatoeba: {source} to {target} is not there: en to de, or de to en")
    (path,) = store.provide(CORPUS, [FILE])
    rows = [line.split("\t") for line in decode_lines(unpack(path, "deu.txt"), str(path))]
    columns = LANGUAGES.index(source), LANGUAGES.index(target)
    return split_by_source([Pair(row[columns[0]], row[columns[1]]) for row in rows], HELD_OUT, HELD_OUT)
