"""Pronunciations are scored per word, in any order of dictionary entries."""

from qkv.experiments.pronunciation import group_by_word, score_answers

from qkv.datasets.pair import Pair
from qkv.pipelines.output import Answer

ENTRIES = [Pair("read", "R EH1 D"), Pair("cat", "K AE1 T"), Pair("read", "R IY1 D"), Pair("a", "AH0"), Pair("a", "EY1")]


def answers(*texts: str) -> list[Answer]:
    return [Answer(word, text, 0.0) for word, text in zip(group_by_word(ENTRIES), texts, strict=True)]


def test_entries_are_grouped_by_word() -> None:
    assert group_by_word(ENTRIES) == {"read": ["R EH1 D", "R IY1 D"], "cat": ["K AE1 T"], "a": ["AH0", "EY1"]}


def test_a_report_counts_words_and_entries() -> None:
    report = score_answers(answers("R IY1 D", "K AE1", "EY1"), ENTRIES, beam=3)
    assert (report.pairs, report.words, report.beam) == (5, 3, 3)
    assert report.wer == 1 / 3
    assert report.per == 1 / 7  # one of 3 + 3 + 1 phonemes is missing
    assert report.mistakes == (("cat", "K AE1", "K AE1 T"),)
    assert {name: score.value for name, score in report.scores().items()} == {"per": 1 / 7, "wer": 1 / 3}


def test_a_mistake_lists_all_pronunciations_of_the_word() -> None:
    report = score_answers(answers("R EH1 T", "K AE1 T", "AH0"), ENTRIES)
    assert report.mistakes == (("read", "R EH1 T", "R EH1 D | R IY1 D"),)
