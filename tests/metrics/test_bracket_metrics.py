"""Bracket scores against a straightforward implementation, counts of EVALB, and hand-computed examples."""

import random

import pytest

from qkv.datasets.examples.trees import Tree
from qkv.metrics.bracket_metrics import bracket_scores, brackets

# The trees of EVALB's own sample, and the brackets that it counts: matched, in the reference and in the prediction.
SAMPLE = "(S (A (P this)) (B (Q is) (A (R a) (T test))))"
EVALB_SAMPLE = [
    (SAMPLE, 4, 4, 4),
    ("(S (A (P this)) (B (Q is) (C (R a) (T test))))", 3, 4, 4),
    ("(S (A (P this)) (B (Q is) (A (R a) (U test))))", 4, 4, 4),
    ("(S (C (P this)) (B (Q is) (A (R a) (U test))))", 3, 4, 4),
    ("(S (A (P this)) (B (Q is) (R a) (A (T test))))", 3, 4, 4),
    ("(S (A (P this) (Q is)) (A (R a) (T test)))", 2, 4, 3),
    ("(S (P this) (Q is) (R a) (T test))", 1, 4, 1),
    ("(S (A (P this)) (B (Q is) (A (A (R a) (T test)))))", 4, 4, 5),
    ("(S (A (P this)) (B (Q is) (A (A (A (A (A (R a) (T test))))))))", 4, 4, 8),
    ("(TOP (S (A (P this)) (B (Q is) (A (R a) (T test)))))", 4, 4, 4),
]
# Counted by EVALB with COLLINS.prm: punctuation, brackets of nothing else, ADVP = PRT, function tags, a bare word.
EVALB_COLLINS = [
    (
        "(TOP (S (NP (NN a)) (PRN (: -) (. .)) (VP (VB b)) (. .)))",
        "(TOP (S (NP (NN a)) (PRN (: -)) (PRN (. .)) (VP (VB b)) (. .)))",
        (3, 3, 3),
    ),
    (
        "(TOP (S (NP (NN a)) (PRT (RP up)) (X-1 (VB b)) (WHNP=2 (. .))))",
        "(TOP (S (NP (NN a)) (ADVP (RP up)) (X (VB b)) (WHNP (. .))))",
        (4, 4, 4),
    ),
    ("(TOP (NN a))", "(TOP (NP (NN a)))", (0, 0, 1)),
]


def counts(reference, prediction):
    wanted, found = Tree.parse(reference, "reference"), Tree.parse(prediction, "prediction")
    gold, test = brackets(wanted.constituents, wanted.tags), brackets(found.constituents, wanted.tags)
    return (gold & test).total(), gold.total(), test.total()


@pytest.mark.parametrize(("prediction", "matched", "gold", "test"), EVALB_SAMPLE)
def test_sample_of_evalb(prediction, matched, gold, test):
    assert counts(SAMPLE, prediction) == (matched, gold, test)


@pytest.mark.parametrize(("reference", "prediction", "expected"), EVALB_COLLINS)
def test_rules_of_collins(reference, prediction, expected):
    assert counts(reference, prediction) == expected


def test_scores_are_those_of_all_brackets_together():
    references = [Tree.parse(SAMPLE, "x")] * 3
    predictions = [Tree.parse(EVALB_SAMPLE[row][0], "x") for row in (0, 5, 7)]
    scores = bracket_scores(predictions, references)  # matched 4 + 2 + 4, in the references 12, predicted 4 + 3 + 5
    assert (scores.recall, scores.precision) == (10 / 12, 10 / 12)
    assert scores.f1 == pytest.approx(10 / 12)
    assert scores.exact == 1 / 3


def test_no_brackets_at_all_score_zero():
    bare = Tree.parse("(TOP (NN a))", "x")
    assert bracket_scores([bare], [bare]).f1 == 0.0


def naive_counts(reference, prediction):
    """Match brackets one by one over the words that are left after deleting punctuation, read from the printed tree."""

    def listed(text, punctuation):
        found, opened, words, tokens = [], [], 0, text.replace("(", " ( ").replace(")", " ) ").split()
        kept = 0
        for index, token in enumerate(tokens):
            if token == "(" and tokens[index + 3] == ")" and tokens[index + 2] not in "()":
                opened.append(None)
                kept += words not in punctuation
                words += 1
            elif token == "(":
                opened.append((tokens[index + 1], kept))
            elif token == ")" and (top := opened.pop()) is not None and top[0] != "TOP" and top[1] < kept:
                found.append(("ADVP" if top[0] == "PRT" else top[0], top[1], kept))
        return found

    punctuation = {
        index for index, tag in enumerate(Tree.parse(reference, "x").tags) if tag in (",", ".", ":", "``", "''")
    }
    gold, test = listed(reference, punctuation), listed(prediction, punctuation)
    remaining, matched = list(gold), 0
    for bracket in test:
        if bracket in remaining:
            remaining.remove(bracket)
            matched += 1
    return matched, len(gold), len(test)


def test_random_trees_equal_a_straightforward_count():
    generator = random.Random(0)

    def subtree(words, depth=0):
        if len(words) == 1 and (depth or generator.random() < 0.5):
            return words[0]
        label = generator.choice(["NP", "VP", "ADVP", "PRT"])
        cut = generator.randint(1, max(1, len(words) - 1))
        parts = [part for part in (words[:cut], words[cut:]) if part]
        return f"({label} {' '.join(subtree(part, depth + 1) for part in parts)})"

    for _ in range(100):
        words = [f"({generator.choice(['NN', 'VB', ',', '.'])} w)" for _ in range(generator.randint(1, 8))]
        reference, prediction = f"(TOP {subtree(words)})", f"(TOP {subtree(words)})"
        assert counts(reference, prediction) == naive_counts(reference, prediction)
