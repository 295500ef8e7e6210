"""The words that a language model of words predicts: the most frequent ones, and one token for all others."""

from collections import Counter
from collections.abc import Mapping

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from qkv.data.kinds import LARGEST
from qkv.data.vocabulary import SPECIAL, UNKNOWN, Vocabulary
from qkv.errors import InputError


def frequent_words(counts: Mapping[str, int], kind: str, *, lowercase: bool = False) -> Vocabulary:
    """A vocabulary of words that stand between spaces: all of them ("word"), or N in all, the most frequent ("word:N").

    Of words that are equally frequent the first in the alphabet are taken.
    """
    name, _, size = kind.partition(":")
    if name != "word":
        raise InputError(f"data.vocabulary = {kind!r}: what is predicted here are words: set it to word:N")
    tokenizer = Tokenizer(models.WordLevel({}, unk_token=SPECIAL[UNKNOWN]))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), *[normalizers.Lowercase()] * lowercase])
    alike: Counter[str] = Counter()
    for word, count in counts.items():
        alike[tokenizer.normalizer.normalize_str(word)] += count
    ranked = sorted(alike.items(), key=lambda one: (-one[1], one[0]))
    taken = [word for word, _ in ranked if word not in SPECIAL][: int(size or LARGEST) - len(SPECIAL)]
    numbers = {word: number for number, word in enumerate((*SPECIAL, *taken))}
    tokenizer.model = models.WordLevel(numbers, unk_token=SPECIAL[UNKNOWN])
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return Vocabulary(tokenizer)
