"""Noise in the training texts of a translator, so that it can translate what people type."""

import re

from qkv.config import Config, Rate
from qkv.datasets.counter_rng import CounterRNG
from qkv.datasets.examples.pair import Pair

FINAL_PUNCTUATION = re.compile(r"[\s.!?…]+$")


class TextNoise(Config):
    """Pairs without final punctuation and sources in lower case, drawn again in each epoch."""

    lowercase: Rate = 0.0  # probability of a source in lower case; its target keeps its case
    unpunctuated: Rate = 0.0  # probability of a pair without the final punctuation of both texts

    def apply(self, pairs: list[Pair], seed: int, epoch: int) -> list[Pair]:
        """Return the pairs of an epoch; those without noise are the same objects. Gold alignments are dropped."""
        rng = CounterRNG(seed, range(epoch * len(pairs), (epoch + 1) * len(pairs)))
        draws = rng.uniform(2) < (self.lowercase, self.unpunctuated)
        return [_noisy(pair, *row) for pair, row in zip(pairs, draws.tolist(), strict=True)]


def _noisy(pair: Pair, lowercase: bool, unpunctuated: bool) -> Pair:
    source, target = pair.source, pair.target
    if unpunctuated:
        bare = FINAL_PUNCTUATION.sub("", source), FINAL_PUNCTUATION.sub("", target)
        source, target = bare if all(bare) else (source, target)  # not a pair of punctuation alone
    if lowercase:
        source = source.lower()
    return pair if (source, target) == (pair.source, pair.target) else Pair(source, target)
