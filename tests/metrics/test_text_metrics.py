"""Text metrics against other implementations, and on examples."""

import math
from collections import Counter
from functools import cache

import numpy as np
import pytest
import sacrebleu
from hypothesis import given
from hypothesis import strategies as st

from qkv.metrics.intervals import proportion_interval
from qkv.metrics.text_metrics import (
    bleu,
    caption_bleu,
    caption_scores,
    character_error_rate,
    chrf,
    confidence_intervals,
    edit_distance,
    exact_captions,
    exact_match,
    moses_tokens,
    phoneme_error_rate,
    pronunciation_error_rate,
    tokenised_bleu,
)

words = st.text("abcä", max_size=8)


@cache
def slow_distance(left: str, right: str) -> int:
    """Return the edit distance by its recursive definition."""
    if not left or not right:
        return len(left) + len(right)
    return min(
        slow_distance(left[:-1], right) + 1,
        slow_distance(left, right[:-1]) + 1,
        slow_distance(left[:-1], right[:-1]) + (left[-1] != right[-1]),
    )


@given(words, words)
def test_edit_distance_matches_its_definition(left: str, right: str) -> None:
    assert edit_distance(left, right) == slow_distance(left, right) == edit_distance(right, left)


def test_edit_distance_of_any_sequences() -> None:
    assert edit_distance("kitten", "sitting") == 3
    assert edit_distance([1, 2, 3], [2, 3, 4]) == 2
    assert edit_distance([], []) == 0


def test_exact_match_is_the_fraction_of_equal_texts() -> None:
    assert exact_match(["a", "b", "c", "d"], ["a", "B", "c", "d "]) == 0.5
    assert math.isnan(exact_match([], []))


def test_character_error_rate_counts_errors_over_all_reference_characters() -> None:
    # 2026-03-05 has two wrong characters of ten, the other text is missing two of six: (2 + 2) / 16
    assert character_error_rate(["2026-05-06", "abcd"], ["2026-03-05", "abcdef"]) == 4 / 16
    assert character_error_rate(["abcabc"], ["abc"]) == 1.0
    assert character_error_rate(["abc"], ["abc"]) == 0.0
    assert math.isnan(character_error_rate(["abc"], [""]))


@pytest.mark.parametrize("metric", [exact_match, character_error_rate])
def test_the_number_of_references_must_match(metric: object) -> None:
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        metric(["a", "b"], ["a"])


def test_bleu_and_chrf_match_sacrebleu() -> None:
    texts = ["Zwei Hunde spielen im Schnee .", "Ein Mann fährt Rad.", "Das ist ein Test."]
    references = ["Zwei Hunde spielen im Schnee.", "Ein Mann fährt Fahrrad.", "Dies ist nur ein Test."]
    scores = {"bleu": bleu(texts, references), "chrf": chrf(texts, references)}
    assert scores["bleu"].value == sacrebleu.corpus_bleu(texts, [references]).score
    assert scores["chrf"].value == sacrebleu.corpus_chrf(texts, [references]).score
    assert 0 < scores["bleu"].value < 100
    version = f"version:{sacrebleu.__version__}"
    assert scores["bleu"].signature == f"nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|{version}"
    assert scores["chrf"].signature == f"nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|{version}"


def test_perfect_texts_score_100_and_empty_ones_0() -> None:
    references = ["Two dogs play in the snow.", "A man rides a bicycle."]
    assert bleu(references, references).value == pytest.approx(100)
    assert chrf(references, references).value == pytest.approx(100)
    assert bleu(["", ""], references).value == 0


GERMAN = ["Zwei Hunde spielen im Schnee .", "Ein Mann fährt Rad.", "Die 20-jährige sagt: „Das ist ein Test.“"]
REFERENCES = [
    "zwei Hunde spielen im schnee.",
    "Ein Mann fährt Fahrrad.",
    "Die 20-jährige sagt: „Dies ist nur ein Test.“",
]


def test_lowercased_bleu_matches_sacrebleu() -> None:
    score = bleu(GERMAN, REFERENCES, lowercase=True)
    assert score.value == sacrebleu.corpus_bleu(GERMAN, [REFERENCES], lowercase=True).score
    assert score.value > bleu(GERMAN, REFERENCES).value
    assert score.signature == f"nrefs:1|case:lc|eff:no|tok:13a|smooth:exp|version:{sacrebleu.__version__}"


def reference_bleu(texts: list[list[str]], references: list[list[str]]) -> float:
    """Return BLEU as in Papineni et al. (2002): clipped n-gram precisions and brevity penalty."""

    def ngrams(words: list[str], n: int) -> Counter[tuple[str, ...]]:
        return Counter(tuple(words[start : start + n]) for start in range(len(words) - n + 1))

    total = 0.0
    for n in range(1, 5):
        hits = sum(
            (ngrams(text, n) & ngrams(reference, n)).total() for text, reference in zip(texts, references, strict=True)
        )
        total += math.log(hits / sum(ngrams(text, n).total() for text in texts)) / 4
    length, reference_length = (sum(map(len, side)) for side in (texts, references))
    return 100 * math.exp(total + min(0.0, 1 - reference_length / length))


def test_tokenised_bleu_is_bleu_of_moses_tokens() -> None:
    words = [[moses_tokens(text.lower(), "de") for text in side] for side in (GERMAN, REFERENCES)]
    score = tokenised_bleu(GERMAN, REFERENCES, "de")
    assert score.value == pytest.approx(reference_bleu(*words), abs=1e-9)
    assert score.value != pytest.approx(bleu(GERMAN, REFERENCES, lowercase=True).value)  # 13a splits 20-jährige
    version = f"version:{sacrebleu.__version__}"
    assert score.signature == f"nrefs:1|case:lc|eff:no|tok:none|smooth:exp|{version}|words:moses-de"


def test_tokenised_bleu_ignores_case_and_the_space_before_a_full_stop() -> None:
    assert tokenised_bleu(["Ein Mann fährt Rad ."], ["ein mann FÄHRT rad."], "de").value == pytest.approx(100)


CAPTIONS = [["a dog runs on the grass", "one dog running"], ["a red circle above a blue square"]]


def test_one_of_several_references_is_enough():
    assert exact_captions(["one dog running", "a red circle"], CAPTIONS) == 0.5
    assert math.isnan(exact_captions([], []))
    assert caption_bleu([captions[0] for captions in CAPTIONS], CAPTIONS).value == pytest.approx(100)
    assert 0 < caption_bleu(["a dog runs on the grass", "a red square above a blue circle"], CAPTIONS).value < 100


def test_more_references_do_not_lower_bleu():
    texts = ["one dog running on the grass", "a red circle above a square"]
    first = [captions[:1] for captions in CAPTIONS]
    assert caption_bleu(texts, CAPTIONS).value >= caption_bleu(texts, first).value


READ = ["R EH1 D", "R IY1 D"]
TOMATO = ["T AH0 M EY1 T OW2", "T AH0 M AA1 T OW2"]


def test_any_listed_pronunciation_is_correct() -> None:
    assert phoneme_error_rate(["R IY1 D", "T AH0 M EY1 T OW2"], [READ, TOMATO]) == 0
    assert pronunciation_error_rate(["R IY1 D", "T AH0 M EY1 T OW2"], [READ, TOMATO]) == 0


def test_errors_are_counted_against_the_closest_pronunciation() -> None:
    # "R IY1" has one error against "R IY1 D" and two against "R EH1 D"; tomato is correct: 1 of 3 + 6
    assert phoneme_error_rate(["R IY1", TOMATO[1]], [READ, TOMATO]) == 1 / 9
    assert pronunciation_error_rate(["R IY1", TOMATO[1]], [READ, TOMATO]) == 1 / 2


def test_rates_are_normalized_by_the_closest_pronunciation() -> None:
    assert phoneme_error_rate(["A B C X"], [["A B C D E F G H", "A B C D"]]) == 1 / 4
    assert phoneme_error_rate(["A"], [["A B", "A B C"]]) == 1 / 2


def test_an_empty_prediction_has_rate_one_and_rates_may_exceed_one() -> None:
    assert phoneme_error_rate([""], [READ]) == 1
    assert pronunciation_error_rate([""], [READ]) == 1
    assert phoneme_error_rate(["X Y Z X Y Z"], [["A"]]) == 6


def test_stress_matters_and_spaces_do_not() -> None:
    assert pronunciation_error_rate(["R EH0 D", " R  EH1 D "], [READ, READ]) == 1 / 2


def test_rates_without_words_are_nan() -> None:
    assert math.isnan(phoneme_error_rate([], []))
    assert math.isnan(pronunciation_error_rate([], []))
    with pytest.raises(ValueError, match="argument 2 is"):
        pronunciation_error_rate(["A"], [])


def test_caption_scores_of_n_grams_of_every_order():
    """Counted by hand: 5 of 6 words, 4 of 5 bigrams and 1 of 4 trigrams are in a reference; no length penalty."""
    references = [["a dog runs on the grass", "the dog is on green grass"]]
    scores = {name: score.value for name, score in caption_scores(["a dog is on the moon"], references).items()}
    assert scores["exact"] == 0
    assert scores["bleu_1"] == pytest.approx(100 * 5 / 6)
    assert scores["bleu_2"] == pytest.approx(100 * (5 / 6 * 4 / 5) ** (1 / 2))
    assert scores["bleu_3"] == pytest.approx(100 * (5 / 6 * 4 / 5 * 1 / 4) ** (1 / 3))


def test_confidence_intervals_have_the_width_of_those_of_sacrebleu_and_the_bounds_of_an_independent_bootstrap():
    generator = np.random.default_rng(0)
    words = ["the", "cat", "sat", "on", "a", "mat", "with", "two", "dogs", "."]
    references = [" ".join(generator.choice(words, 9)) for _ in range(60)]
    texts = [
        " ".join(word if generator.random() < 0.8 else "rain" for word in reference.split()) for reference in references
    ]
    intervals = confidence_intervals(texts, references)
    for name, metric in {"bleu": sacrebleu.BLEU(), "chrf": sacrebleu.CHRF()}.items():
        score = metric.corpus_score(texts, [references], n_bootstrap=1000)
        assert intervals[name].high - intervals[name].low == pytest.approx(2 * score._ci, rel=0.02)
        plain = type(metric)()
        samples = []
        for _ in range(200):
            rows = generator.integers(0, len(texts), len(texts))
            resampled = [references[row] for row in rows]
            samples.append(plain.corpus_score([texts[row] for row in rows], [resampled]).score)
        low, high = np.percentile(samples, [2.5, 97.5])
        width = high - low
        assert intervals[name].low == pytest.approx(low, abs=0.2 * width)
        assert intervals[name].high == pytest.approx(high, abs=0.2 * width)
        assert intervals[name].low < plain.corpus_score(texts, [references]).score < intervals[name].high


def test_confidence_intervals_of_good_translations_do_not_exceed_100():
    references = [f"the cat number {number} sat on the mat" for number in range(40)]
    texts = [*references[:-1], references[-1].replace("sat", "lay")]
    for name in ("bleu", "chrf"):
        low, high = confidence_intervals(texts, references)[name]
        assert low < 99.9
        assert high == pytest.approx(100)  # a third of the resamples have no error
        assert high < 100 + 1e-9


def test_the_interval_of_the_character_error_rate_is_that_of_an_independent_bootstrap():
    generator = np.random.default_rng(1)
    references = ["".join(generator.choice([*"abcd"], generator.integers(1, 30))) for _ in range(80)]
    texts = ["".join("x" if generator.random() < 0.1 else letter for letter in text) for text in references]
    low, high = confidence_intervals(texts, references)["cer"]
    assert low < character_error_rate(texts, references) < high
    samples = []
    for _ in range(500):
        rows = generator.integers(0, 80, 80)
        samples.append(character_error_rate([texts[row] for row in rows], [references[row] for row in rows]))
    expected = np.percentile(samples, [2.5, 97.5])
    assert [low, high] == pytest.approx(expected, abs=0.2 * (high - low))


def test_a_few_pairs_have_the_interval_of_exact_match_only():
    pairs = ["a b", "c", "d"]
    intervals = confidence_intervals(pairs, ["a b", "c", "e"])
    assert list(intervals) == ["exact"]
    assert intervals["exact"] == pytest.approx(proportion_interval(2, 3))
    assert confidence_intervals([], []) == {}
