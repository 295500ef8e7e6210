"""Public and synthetic datasets, one file each."""

from qkv.datasets import user_files as user_files
from qkv.datasets.corpora import (
    bandits as bandits,
)
from qkv.datasets.corpora import (
    bit_sequences as bit_sequences,
)
from qkv.datasets.corpora import (
    cmudict as cmudict,
)
from qkv.datasets.corpora import (
    coco as coco,
)
from qkv.datasets.corpora import (
    dates as dates,
)
from qkv.datasets.corpora import (
    emoji as emoji,
)
from qkv.datasets.corpora import (
    fashion_mnist as fashion_mnist,
)
from qkv.datasets.corpora import (
    flickr8k as flickr8k,
)
from qkv.datasets.corpora import (
    imdb as imdb,
)
from qkv.datasets.corpora import (
    movie_reviews as movie_reviews,
)
from qkv.datasets.corpora import (
    multi30k as multi30k,
)
from qkv.datasets.corpora import (
    omniglot as omniglot,
)
from qkv.datasets.corpora import (
    sentence_polarity as sentence_polarity,
)
from qkv.datasets.corpora import (
    shapes as shapes,
)
from qkv.datasets.corpora import (
    tatoeba as tatoeba,
)
from qkv.datasets.corpora import (
    tinyshakespeare as tinyshakespeare,
)
from qkv.datasets.corpora import (
    ud_english_ewt as ud_english_ewt,
)
from qkv.datasets.corpora import (
    wnut17 as wnut17,
)
