"""Movie reviews: 2,000 positive or negative reviews, one sentence per line, in lower case (Pang and Lee 2004).

The ten folds of the paper's cross-validation are in the file names, cv000 to cv099 being the first. One fold is the
test split, the next the validation split, and the other eight are the training split.
"""

import re
from typing import Annotated

from pydantic import Field

from qkv.datasets.columns import ACCURACY
from qkv.datasets.dataset import LabeledTextDataset, TextDatasetConfig
from qkv.datasets.dataset_cache import data_files
from qkv.datasets.examples.pair import Pair
from qkv.datasets.formats.archive import unpack_members
from qkv.datasets.formats.text_files import decode_text, digest
from qkv.registry import register

FOLDS = 10
LABELS = {"neg": "negative", "pos": "positive"}
MEMBER = re.compile(r"movie_reviews/(neg|pos)/cv(\d)\d\d_\d+\.txt", re.ASCII)


@register("dataset", "movie_reviews")
class MovieReviews(TextDatasetConfig):
    """Positive or negative long film reviews."""

    summary = "2,000 long film reviews, positive or negative, in ten folds"
    license = "CC BY 4.0, Bo Pang and Lillian Lee"
    origin = "it is the corpus movie_reviews of NLTK's data (https://www.nltk.org/nltk_data)."
    files = data_files(
        "movie_reviews",
        {"movie_reviews.zip": (4004848, "a41211ae685019137410268134db6a1a14428c89b671eb83056151a878539008")},
        "https://raw.githubusercontent.com/nltk/nltk_data/gh-pages/packages/corpora",
    )
    dataset_class = LabeledTextDataset
    columns = ACCURACY

    fold: Annotated[int, Field(ge=0, le=FOLDS - 1)] = 0  # index of the test fold, of ten

    def read(self) -> LabeledTextDataset:
        """Read reviews and labels, ordered by hash so that any prefix has both labels."""
        (path,) = self.fetch()
        splits: dict[str, list[Pair]] = {"train": [], "valid": [], "test": []}
        split_of = {self.fold: "test", (self.fold + 1) % FOLDS: "valid"}
        for name, data in unpack_members(path, lambda name: MEMBER.fullmatch(name) is not None).items():
            text, member = decode_text(data, f"{path}: {name}"), MEMBER.fullmatch(name)
            assert member is not None
            splits[split_of.get(int(member[2]), "train")].append(Pair(text.strip(), LABELS[member[1]]))
        for pairs in splits.values():
            pairs.sort(key=lambda pair: digest(pair.source))
        return LabeledTextDataset(splits)
