"""Sentence polarity: positive or negative sentences from film reviews (Pang and Lee 2005)."""

from qkv.datasets.columns import ACCURACY
from qkv.datasets.dataset import LabeledTextDataset, TextDatasetConfig
from qkv.datasets.dataset_cache import data_files
from qkv.datasets.examples.pair import Pair
from qkv.datasets.formats.archive import unpack
from qkv.datasets.formats.text_files import decode_lines, digest, split_by_source
from qkv.registry import register

HELD_OUT = 0.1  # share of the sentences in each of valid and test
MEMBERS = {"positive": "sentence_polarity/rt-polarity.pos", "negative": "sentence_polarity/rt-polarity.neg"}


@register("dataset", "sentence_polarity")
class SentencePolarity(TextDatasetConfig):
    """Positive or negative sentences from film reviews."""

    summary = "10,662 sentences from film reviews, positive or negative"
    license = "CC BY 4.0, Bo Pang and Lillian Lee"
    origin = "it is the corpus sentence_polarity of NLTK's data (https://www.nltk.org/nltk_data)."
    files = data_files(
        "sentence_polarity",
        {"sentence_polarity.zip": (490256, "6e1ed4405b65c7eabf1d199a7f7c437091ac21da0ea7467b410a74062574566b")},
        "https://raw.githubusercontent.com/nltk/nltk_data/gh-pages/packages/corpora",
    )
    dataset_class = LabeledTextDataset
    columns = ACCURACY

    def read(self) -> LabeledTextDataset:
        """Read sentences and labels, ordered by hash so that any prefix has both labels."""
        (path,) = self.fetch()
        pairs = [
            Pair(line.strip(), label)
            for label, member in MEMBERS.items()
            for line in decode_lines(unpack(path, member), f"{path}: {member}")
        ]
        pairs.sort(key=lambda pair: digest(pair.source))
        held_out = round(HELD_OUT * len(pairs))
        return LabeledTextDataset(split_by_source(pairs, held_out, held_out))
