"""Noise in the training texts of a translator, so that it can translate what people type."""

import re
from random import Random

from qkv.config import Config, Rate
from qkv.datasets.counter_rng import CounterRNG
from qkv.datasets.examples.pair import Pair, target_language
from qkv.datasets.word_alignment import WordAlignment
from qkv.errors import InputError

FINAL_PUNCTUATION = re.compile(r"[\s.!?…]+$")
NUMBER = re.compile(r"\d{1,18}")
FIXED_NUMBERS = ("0", "1")  # other numbers can change the words around them: 1 day, 2 days
CAPITALIZED, PUNCTUATED = 0.5, 0.3  # probabilities that a phrase begins and ends like a sentence


class TextNoise(Config):
    """Phrases, several sentences in a row, other numbers, letter case and punctuation, drawn again in each epoch."""

    lowercase: Rate = 0.0  # probability of a source in lower case; its target keeps its case
    uppercase: Rate = 0.0  # probability of a source in upper case; its target keeps its case
    unpunctuated: Rate = 0.0  # probability of a pair without the final punctuation of both texts
    phrases: Rate = 0.0  # probability of a word or phrase of the pair and its translation, by word alignment
    concatenated: Rate = 0.0  # probability of a pair followed by another training pair (not after a phrase)
    numbers: Rate = 0.0  # probability of random numbers with as many digits, if both texts have the same numbers

    def align(self, pairs: list[Pair]) -> WordAlignment | None:
        """Align the words of the training pairs if `phrases` needs it."""
        for name in ("phrases", "concatenated"):
            if getattr(self, name) and any(target_language(pair.source) for pair in pairs):
                raise InputError(f"task.text_noise.{name} needs a single target language: remove it")
        return WordAlignment(pairs) if self.phrases else None

    def apply(self, pairs: list[Pair], seed: int, epoch: int, alignment: WordAlignment | None = None) -> list[Pair]:
        """Return the pairs of an epoch; those without noise are the same objects. Gold alignments are dropped."""
        rng = CounterRNG(seed, range(epoch * len(pairs), (epoch + 1) * len(pairs)))
        draws = rng.uniform(11)
        phrase_draw, other_draw, number_draw = draws[:, 6], draws[:, 7], draws[:, 10]
        uppercase, numbers = ((draws[:, 8:10] < (self.uppercase, self.numbers)).T).tolist()
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
            if numbers[row]:
                result[row] = _renumbered(result[row], Random(int(number_draw[row] * 2**53)))
            result[row] = _noisy(result[row], lowercase, uppercase[row], unpunctuated)
        return result


def _like_sentence(pair: Pair, capitalized: bool, punctuated: bool) -> Pair:
    source, target = pair.source, pair.target
    if capitalized:
        source, target = source[0].upper() + source[1:], target[0].upper() + target[1:]
    return Pair(f"{source}.", f"{target}.") if punctuated else Pair(source, target)


def _renumbered(pair: Pair, rng: Random) -> Pair:
    """Replace the numbers of a pair by others with as many digits, if both texts have the same numbers."""
    numbers = sorted(NUMBER.findall(pair.source))
    if not numbers or numbers != sorted(NUMBER.findall(pair.target)):
        return pair
    others = {number: str(rng.randint(max(2, 10 ** (len(number) - 1)), 10 ** len(number) - 1)) for number in numbers}
    others |= {number: number for number in FIXED_NUMBERS}
    source, target = (NUMBER.sub(lambda match: others[match[0]], text) for text in (pair.source, pair.target))
    return Pair(source, target)


def _noisy(pair: Pair, lowercase: bool, uppercase: bool, unpunctuated: bool) -> Pair:
    source, target = pair.source, pair.target
    if unpunctuated:
        bare = FINAL_PUNCTUATION.sub("", source), FINAL_PUNCTUATION.sub("", target)
        source, target = bare if all(bare) else (source, target)  # not a pair of punctuation alone
    if uppercase:
        source = source.upper()
    elif lowercase:
        source = source.lower()
    return pair if (source, target) == (pair.source, pair.target) else Pair(source, target)
