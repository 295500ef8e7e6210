"""Public and synthetic datasets, one file each; importing a file registers its dataset."""

from qkv.datasets import user_files  # noqa: F401  (imported to be registered)
from qkv.datasets.corpora import (  # noqa: F401
    bandits,
    bit_sequences,
    cmudict,
    coco,
    dates,
    emoji,
    fashion_mnist,
    flickr8k,
    imdb,
    movie_reviews,
    multi30k,
    omniglot,
    sentence_polarity,
    shapes,
    tatoeba,
    tinyshakespeare,
    ud_english_ewt,
    wnut17,
)
