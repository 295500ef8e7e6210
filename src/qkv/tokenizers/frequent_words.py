"""Output vocabulary of a word-level language model: the most frequent words, and <unk>."""

from collections import Counter
from collections.abc import Mapping

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from qkv.errors import InputError
from qkv.tokenizers.kinds import LARGEST
from qkv.tokenizers.vocabulary import SPECIAL, UNKNOWN, Vocabulary


def frequent_words(counts: Mapping[str, int], kind: str, *, lowercase: bool = False) -> Vocabulary:
    """Build a vocabulary of whitespace-separated words: all ("word"), or the N most frequent ("word:N").

    Ties are broken alphabetically.
    """
    name, _, size = kind.partition(":")
    if name != "word":
        raise InputError(f"data.vocabulary = {kind!r}: this model predicts words: use word:N")
    tokenizer = Tokenizer(models.WordLevel({}, unk_token=SPECIAL[UNKNOWN]))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), *[normalizers.Lowercase()] * lowercase])
    totals: Counter[str] = Counter()
    for word, count in counts.items():
        totals[tokenizer.normalizer.normalize_str(word)] += count
    ranked = sorted(totals.items(), key=lambda item: (-item[1], item[0]))
    words = [word for word, _ in ranked if word not in SPECIAL][: int(size or LARGEST) - len(SPECIAL)]
    ids = {word: index for index, word in enumerate((*SPECIAL, *words))}
    tokenizer.model = models.WordLevel(ids, unk_token=SPECIAL[UNKNOWN])
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return Vocabulary(tokenizer)
