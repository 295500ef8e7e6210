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
    gum,
    imdb,
    movie_reviews,
    multi30k,
    nottingham,
    omniglot,
    ptb_sample,
    python_stdlib,
    sentence_polarity,
    shapes,
    spoken_digits,
    tatoeba,
    tinyshakespeare,
    ud_english_ewt,
    wnut17,
)
