"""Noise in the training texts of a translator, so that it can translate what people type."""

import re

from qkv.config import Config, Rate
from qkv.datasets.counter_rng import CounterRNG
from qkv.datasets.examples.pair import Pair, target_language
from qkv.datasets.word_alignment import WordAlignment
from qkv.errors import InputError

FINAL_PUNCTUATION = re.compile(r"[\s.!?…]+$")
CAPITALIZED, PUNCTUATED = 0.5, 0.3  # probabilities that a phrase begins and ends like a sentence


class TextNoise(Config):
    """Phrases, several sentences in a row, no final punctuation and lower case, drawn again in each epoch."""

    lowercase: Rate = 0.0  # probability of a source in lower case; its target keeps its case
    unpunctuated: Rate = 0.0  # probability of a pair without the final punctuation of both texts
    phrases: Rate = 0.0  # probability of a word or phrase of the pair and its translation, by word alignment
    concatenated: Rate = 0.0  # probability of a pair followed by another training pair (not after a phrase)

    def align(self, pairs: list[Pair]) -> WordAlignment | None:
        """Align the words of the training pairs if `phrases` needs it."""
        for name in ("phrases", "concatenated"):
            if getattr(self, name) and any(target_language(pair.source) for pair in pairs):
                raise InputError(f"task.text_noise.{name} needs a single target language: remove it")
        return WordAlignment(pairs) if self.phrases else None

    def apply(self, pairs: list[Pair], seed: int, epoch: int, alignment: WordAlignment | None = None) -> list[Pair]:
        """Return the pairs of an epoch; those without noise are the same objects. Gold alignments are dropped."""
        rng = CounterRNG(seed, range(epoch * len(pairs), (epoch + 1) * len(pairs)))
        draws = rng.uniform(8)
        phrase_draw, other_draw = draws[:, 6], draws[:, 7]
        rates = (self.lowercase, self.unpunctuated, self.phrases, self.concatenated, CAPITALIZED, PUNCTUATED)
        result = list(pairs)
        for row, (lowercase, unpunctuated, phrase, concatenated, *sentence) in enumerate(
            (draws[:, :6] < rates).tolist()
        ):
            if phrase and alignment is not None and (phrases := alignment.phrases(row)):
                result[row] = _like_sentence(phrases[int(phrase_draw[row] * len(phrases))], *sentence)
            elif concatenated:
                other = pairs[int(other_draw[row] * len(pairs))]
                result[row] = Pair(f"{pairs[row].source} {other.source}", f"{pairs[row].target} {other.target}")
            result[row] = _noisy(result[row], lowercase, unpunctuated)
        return result


def _like_sentence(pair: Pair, capitalized: bool, punctuated: bool) -> Pair:
    source, target = pair.source, pair.target
    if capitalized:
        source, target = source[0].upper() + source[1:], target[0].upper() + target[1:]
    return Pair(f"{source}.", f"{target}.") if punctuated else Pair(source, target)


def _noisy(pair: Pair, lowercase: bool, unpunctuated: bool) -> Pair:
    source, target = pair.source, pair.target
    if unpunctuated:
        bare = FINAL_PUNCTUATION.sub("", source), FINAL_PUNCTUATION.sub("", target)
        source, target = bare if all(bare) else (source, target)  # not a pair of punctuation alone
    if lowercase:
        source = source.lower()
    return pair if (source, target) == (pair.source, pair.target) else Pair(source, target)
