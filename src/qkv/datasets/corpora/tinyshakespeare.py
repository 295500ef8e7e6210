"""Tiny Shakespeare: a million characters of plays (Karpathy 2015)."""

from qkv.datasets.archive import unpack
from qkv.datasets.cache import DataFile, DatasetCache, DatasetInfo

TRAIN_SHARE = 0.9  # first characters, as in nanoGPT

FILE = DataFile(
    "tinyshakespeare/input.txt",
    "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
    1115394,
    ("https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",),
)
INFO = DatasetInfo(
    name="tinyshakespeare",
    licence="the plays are in the public domain; the collection is MIT (karpathy/char-rnn)",
    origin="it is in data/tinyshakespeare of https://github.com/karpathy/char-rnn.",
    files=(FILE,),
)


def read(cache: DatasetCache) -> dict[str, str]:
    """Read the text of each split."""
    (path,) = cache.fetch(INFO, [FILE])
    text = unpack(path).decode()
    cut = int(TRAIN_SHARE * len(text))
    return {"train": text[:cut], "valid": text[cut:]}
