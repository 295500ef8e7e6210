"""Sentences that are inserted into reviews: strong opinions, and statements without one."""

import random
from collections.abc import Callable, Mapping
from statistics import fmean

from qkv.datasets.examples.pair import Pair
from qkv.interpret.document_probe import DocumentProbe, WeightedDocument
from qkv.training.run import Run

REVIEWS, LINES = 100, 12  # reviews of the validation split, and sentences of each

PLANTED: dict[str, tuple[str, ...]] = {
    "positive": (
        "this is a wonderful and brilliant film , one of the best of the year .",
        "a perfect movie with excellent performances , simply a masterpiece .",
        "i loved it , and it is an outstanding and memorable film .",
    ),
    "negative": (
        "this is a terrible and boring film , one of the worst of the year .",
        "an awful movie with bad performances , simply a waste of time .",
        "i hated it , and it is a stupid and ridiculous mess .",
    ),
    "neutral": (
        "he goes to the house of his brother , who is the son of a doctor .",
        "the story is set in new york , and it is told by a man in a car .",
        "they meet at night in a small room , and then she takes the train .",
    ),
}


def measure_ranks(run: Run, device: str) -> Mapping[str, float]:
    """Return the mean rank of each kind of inserted sentence in reviews of the validation split, in percent.

    Reviews in which the sentence is joined to the one before it are left out, for both kinds.
    """
    probe, reviews = DocumentProbe(run.folder, device=device), run.data().splits["valid"][:REVIEWS]
    pairs = [
        [rank(probe, *plant(review, number, opinion=opinion)) for opinion in (True, False)]
        for number, review in enumerate(reviews)
    ]
    opinion, no_opinion = zip(*(pair for pair in pairs if None not in pair), strict=True)
    return {"opinion": 100 * fmean(opinion), "no opinion": 100 * fmean(no_opinion)}


def plant(review: Pair, seed: int, *, opinion: bool) -> tuple[str, str]:
    """Insert a sentence at a random position of a review, the same for all kinds; return the text and the sentence."""
    lines, rng = review.source.splitlines()[:LINES], random.Random(seed)
    position, choice = rng.randint(0, len(lines)), rng.random()
    sentences = PLANTED[review.target if opinion else "neutral"]
    sentence = sentences[int(choice * len(sentences))]
    return "\n".join([*lines[:position], sentence, *lines[position:]]), sentence


def rank(probe: Callable[[str], WeightedDocument], text: str, sentence: str) -> float | None:
    """Return the share of the other sentences of a text whose weight is lower; None if it is not one of them."""
    sentences = probe(text).sentences
    weights = [each.weight for each in sentences if each.text == sentence]
    return sum(each.weight < weights[0] for each in sentences) / (len(sentences) - 1) if weights else None
