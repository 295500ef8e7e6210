"""How good tags are: word by word, and entity by entity."""

from collections.abc import Sequence

Sentence = Sequence[str]  # the tags of its words
PREFIXES, GOING_ON, LAST = "BIELSU", ("I", "E", "L"), ("E", "L", "S", "U")
Entity = tuple[int, int, str]  # the first word, the word after the last, and the kind


def tag_accuracy(found: Sequence[Sentence], wanted: Sequence[Sentence]) -> float:
    """The share of the words that have the right tag."""
    words = [same for ours, truth in zip(found, wanted, strict=True) for same in map(str.__eq__, ours, truth)]
    return sum(words) / max(1, len(words))


def entity_f1(found: Sequence[Sentence], wanted: Sequence[Sentence]) -> float:
    """2 P R / (P + R) over whole entities: right where first word, last word and kind are (Tjong Kim Sang 2003)."""
    right = ours = truth = 0
    for said, gold in zip(found, wanted, strict=True):
        own, true = entities(said), entities(gold)
        right, ours, truth = right + len(own & true), ours + len(own), truth + len(true)
    return 2 * right / (ours + truth) if ours + truth else 1.0


def entities(tags: Sentence) -> set[Entity]:
    """The entities of tags B-kind (begins), I-kind (goes on) and O (none); an I- that goes on with nothing begins.

    An E- or L- is an I- after which another begins, an S- or U- a B- of one word (BIOES, BILOU).
    """
    found: set[Entity] = set()
    begin, kind = 0, ""
    for place, tag in enumerate([*tags, "O"]):
        prefix, _, name = tag.partition("-")
        if kind and (prefix not in GOING_ON or name != kind):
            found.add((begin, place, kind))
            kind = ""
        if prefix in PREFIXES and name and not kind:
            begin, kind = place, name
        if kind and prefix in LAST:
            found.add((begin, place + 1, kind))
            kind = ""
    return found


def names_entities(tags: Sequence[str]) -> bool:
    """Whether tags are of that form."""
    return all(tag == "O" or (tag[0] in PREFIXES and tag[1:2] == "-") for tag in tags)
