"""Movie reviews: 2,000 reviews that praise or blame a film, a sentence a line, in lower case (Pang and Lee 2004).

The number in a file's name is its place in ten folds, cv000 to cv099 the first: those of the paper, which takes each in
turn to test on. One is tested on here, the one after it validates, and eight are left to train on.
"""

import re

from qkv.data.archive import unpack_members
from qkv.data.files import decode_text, digest
from qkv.data.pair import Pair
from qkv.data.store import Corpus, DataFile, Store

FOLDS = 10
LABELS = {"neg": "negative", "pos": "positive"}
MEMBER = re.compile(r"movie_reviews/(neg|pos)/cv(\d)\d\d_\d+\.txt", re.ASCII)

FILE = DataFile(
    "movie_reviews/movie_reviews.zip",
    "a41211ae685019137410268134db6a1a14428c89b671eb83056151a878539008",
    4004848,
    ("https://raw.githubusercontent.com/nltk/nltk_data/gh-pages/packages/corpora/movie_reviews.zip",),
)
CORPUS = Corpus(
    name="movie_reviews",
    licence="CC BY 4.0, Bo Pang and Lillian Lee",
    origin="it is the corpus movie_reviews of NLTK's data (https://www.nltk.org/nltk_data).",
    files=(FILE,),
)


def read(store: Store, fold: int) -> dict[str, list[Pair]]:
    """Reviews and their labels, in the order of their hashes: the first hundred have both labels too."""
    (path,) = store.provide(CORPUS, [FILE])
    splits: dict[str, list[Pair]] = {"train": [], "valid": [], "test": []}
    split_of = {fold: "test", (fold + 1) % FOLDS: "valid"}
    for name, data in unpack_members(path, lambda name: MEMBER.fullmatch(name) is not None).items():
        text, member = decode_text(data, f"{path}: {name}"), MEMBER.fullmatch(name)
        assert member is not None
        splits[split_of.get(int(member[2]), "train")].append(Pair(text.strip(), LABELS[member[1]]))
    return {split: sorted(pairs, key=lambda pair: digest(pair.source)) for split, pairs in splits.items()}
