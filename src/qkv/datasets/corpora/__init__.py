"""Public and synthetic datasets, one file each; importing a file registers its dataset."""

from qkv.datasets import user_media, user_texts  # noqa: F401  (imported to be registered)
from qkv.datasets.corpora.audio import spoken_digits  # noqa: F401
from qkv.datasets.corpora.images import coco, emoji, fashion_mnist, flickr8k, omniglot  # noqa: F401
from qkv.datasets.corpora.synthetic import bandits, bit_sequences, dates, shapes  # noqa: F401
from qkv.datasets.corpora.text import (  # noqa: F401
    babi,
    chitchat,
    cmudict,
    gum,
    imdb,
    movie_reviews,
    multi30k,
    nottingham,
    ptb_sample,
    python_stdlib,
    samsum,
    sentence_polarity,
    squadshifts,
    tatoeba,
    tinyshakespeare,
    ud_english_ewt,
    wnut17,
)
