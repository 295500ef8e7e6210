"""Tag accuracy, and entity F1."""

from collections import Counter
from collections.abc import Sequence

from qkv.metrics.class_metrics import ClassScore, ClassTable

Sentence = Sequence[str]  # the tags of its words
PREFIXES, CONTINUING, LAST = "BIELSU", ("I", "E", "L"), ("E", "L", "S", "U")
Entity = tuple[int, int, str]  # [start, end) in words, and type


def tag_accuracy(predictions: Sequence[Sentence], gold: Sequence[Sentence]) -> float:
    """Return the fraction of words with the correct tag."""
    correct = [
        same for tags, gold_tags in zip(predictions, gold, strict=True) for same in map(str.__eq__, tags, gold_tags)
    ]
    return sum(correct) / max(1, len(correct))


def entity_f1(predictions: Sequence[Sentence], gold: Sequence[Sentence]) -> float:
    """Return 2 P R / (P + R) over entities; span and type must match (Tjong Kim Sang 2003)."""
    correct = total = 0
    for tags, gold_tags in zip(predictions, gold, strict=True):
        predicted, expected = entities(tags), entities(gold_tags)
        correct += len(predicted & expected)
        total += len(predicted) + len(expected)
    return 2 * correct / total if total else 1.0


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
