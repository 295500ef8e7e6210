"""Tag accuracy, and entity F1."""

from collections import Counter
from collections.abc import Sequence
from itertools import chain

from qkv.metrics.class_metrics import ClassScore, ClassTable
from qkv.metrics.intervals import Interval, ratio_interval

Sentence = Sequence[str]  # the tags of its words
PREFIXES, CONTINUING, LAST = "BIELSU", ("I", "E", "L"), ("E", "L", "S", "U")
Entity = tuple[int, int, str]  # [start, end) in words, and type


def tag_accuracy(predictions: Sequence[Sentence], gold: Sequence[Sentence]) -> float:
    """Return the fraction of words with the correct tag."""
    correct, words = _tag_counts(predictions, gold)
    return sum(correct) / max(1, sum(words))


def entity_f1(predictions: Sequence[Sentence], gold: Sequence[Sentence]) -> float:
    """Return 2 P R / (P + R) over entities; span and type must match (Tjong Kim Sang 2003)."""
    correct, total = _entity_counts(predictions, gold)
    return sum(correct) / sum(total) if any(total) else 1.0


def tag_intervals(predictions: Sequence[Sentence], gold: Sequence[Sentence]) -> dict[str, Interval]:
    """Return the 95 % confidence intervals of the accuracy and of F1, from bootstrap resampling of the sentences.

    For tags that do not mark entities, F1 is the accuracy.
    """
    tags = _tag_counts(predictions, gold)
    marked = _entity_counts(predictions, gold) if are_entity_tags([*chain.from_iterable(gold)]) else tags
    intervals = {"accuracy": ratio_interval(*tags), "f1": ratio_interval(*marked)}
    return {name: interval for name, interval in intervals.items() if interval is not None}


def _tag_counts(predictions: Sequence[Sentence], gold: Sequence[Sentence]) -> tuple[list[int], list[int]]:
    """Return the number of correct tags, and of tags, of each sentence."""
    correct = [sum(map(str.__eq__, tags, gold_tags)) for tags, gold_tags in zip(predictions, gold, strict=True)]
    return correct, [min(map(len, pair)) for pair in zip(predictions, gold, strict=True)]


def _entity_counts(predictions: Sequence[Sentence], gold: Sequence[Sentence]) -> tuple[list[int], list[int]]:
    """Return the numerator and the denominator of F1 of each sentence: 2 correct, and predicted + gold entities."""
    pairs = [(entities(tags), entities(gold_tags)) for tags, gold_tags in zip(predictions, gold, strict=True)]
    return [2 * len(found & expected) for found, expected in pairs], [len(x) + len(y) for x, y in pairs]


def entity_table(predictions: Sequence[Sentence], gold: Sequence[Sentence]) -> ClassTable:
    """Return the scores of each type of entity; the F1 of the micro average is that of `entity_f1`."""
    correct, predicted, support = Counter[str](), Counter[str](), Counter[str]()
    for tags, gold_tags in zip(predictions, gold, strict=True):
        found, expected = entities(tags), entities(gold_tags)
        correct.update(kind for _, _, kind in found & expected)
        predicted.update(kind for _, _, kind in found)
        support.update(kind for _, _, kind in expected)
    names = sorted({*predicted, *support})
    rows = tuple(ClassScore(name, correct[name], predicted[name], support[name]) for name in names)
    return ClassTable("entities", rows)


def entities(tags: Sentence) -> set[Entity]:
    """Return the entities of BIO tags; an I- without a preceding B- or I- of its type starts an entity.

    BIOES and BILOU are accepted too: E- and L- are an I- that ends the entity, S- and U- a B- of one word.
    """
    spans: set[Entity] = set()
    begin, kind = 0, ""
    for index, tag in enumerate([*tags, "O"]):
        prefix, _, name = tag.partition("-")
        if kind and (prefix not in CONTINUING or name != kind):
            spans.add((begin, index, kind))
            kind = ""
        if prefix in PREFIXES and name and not kind:
            begin, kind = index, name
        if kind and prefix in LAST:
            spans.add((begin, index + 1, kind))
            kind = ""
    return spans


def are_entity_tags(tags: Sequence[str]) -> bool:
    """Return whether all tags are BIO, BIOES or BILOU tags."""
    return all(tag == "O" or (tag[0] in PREFIXES and tag[1:2] == "-") for tag in tags)
