"""Tiny Shakespeare: a million characters of plays, as one text (Karpathy 2015)."""

from qkv.data.archive import unpack
from qkv.data.store import Corpus, DataFile, Store

TRAIN_SHARE = 0.9  # of the characters, the first ones: nanoGPT's split

FILE = DataFile(
    "tinyshakespeare/input.txt",
    "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
    1115394,
    ("https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",),
)
CORPUS = Corpus(
    name="tinyshakespeare",
    licence="the plays are in the public domain; the collection is MIT (karpathy/char-rnn)",
    origin="it is in data/tinyshakespeare of https://github.com/karpathy/char-rnn.",
    files=(FILE,),
)


def read(store: Store) -> dict[str, str]:
    """The text of each split."""
    (path,) = store.provide(CORPUS, [FILE])
    text = unpack(path).decode()
    cut = int(TRAIN_SHARE * len(text))
    return {"train": text[:cut], "valid": text[cut:]}
