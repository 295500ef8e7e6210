"""The lines of the figure: BLEU by the length of the source, of runs that can be compared."""

import pytest

from qkv.errors import InputError
from qkv.evaluation.lengths import by_length
from qkv.evaluation.record import Bucket

from .records import record


def buckets(short: float, long: float, pairs: int = 400) -> tuple[Bucket, ...]:
    return (Bucket(1, 7, 600, short), Bucket(8, 8, 5, 1.0), Bucket(9, None, pairs, long))


def test_a_line_is_the_mean_of_its_seeds_between_the_lowest_and_the_highest() -> None:
    found = by_length(
        [record(by_length=buckets(40, 30)), record(seed=1, by_length=buckets(42, 28)),
         record(recipe="plain", by_length=buckets(35, 31))]
    )  # fmt: skip
    assert found.title == "multi30k en-de, test_2016_flickr, beam 5"
    assert found.buckets == ("1 to 7", "8", "9 or more")
    assert found.counts == (600, 5, 400)
    plain, attending = found.lines  # in the order of their last points
    assert (plain.label, plain.mean, plain.lowest) == ("plain", (35, 1, 31), (35, 1, 31))
    assert (attending.label, attending.mean) == ("multi30k-gru", (41, 1, 29))
    assert (attending.lowest, attending.highest) == ((40, 1, 28), (42, 1, 30))


def test_lines_of_different_searches_say_so() -> None:
    found = by_length([record(), record(beam=1)])
    assert found.title == "multi30k en-de, test_2016_flickr"
    assert {line.label for line in found.lines} == {"multi30k-gru, beam 5", "multi30k-gru, greedy"}


def test_a_line_is_named_by_its_recipe_where_that_tells_it_from_the_others() -> None:
    one, other = ("train.lr=0.1", "model.hidden=99"), ("model.score=dot",)
    found = by_length([record(changes=one), record(recipe="plain", changes=other)])
    assert {line.label for line in found.lines} == {"multi30k-gru", "plain"}
    found = by_length([record(changes=one), record(changes=other), record(recipe="plain", changes=other)])
    assert {line.label for line in found.lines} == {
        "multi30k-gru train.lr=0.1 model.hidden=99", "multi30k-gru model.score=dot", "plain model.score=dot"
    }  # fmt: skip
    found = by_length([record(changes=one), record(recipe="plain", beam=1, changes=other)])
    assert {line.label for line in found.lines} == {"multi30k-gru, beam 5", "plain, greedy"}
    found = by_length([record(changes=one), record(beam=1, changes=one)])
    assert {line.label for line in found.lines} == {"multi30k-gru, beam 5", "multi30k-gru, greedy"}


def test_a_line_says_that_training_has_not_finished() -> None:
    found = by_length([record(), record(seed=1, finished=False), record(recipe="plain")])
    assert {line.label for line in found.lines} == {"multi30k-gru (training not finished)", "plain"}


def test_the_split_is_one_that_all_were_scored_on() -> None:
    both = [record(split="test_2016_flickr"), record(split="test_2017_flickr")]
    other = record(recipe="plain", split="test_2017_flickr")
    assert by_length([*both, other]).title.endswith("test_2017_flickr, beam 5")
    with pytest.raises(InputError, match="not scored on test_2016_flickr: plain, beam 5; run qkv evaluate"):
        by_length([*both, other], "test_2016_flickr")
    with pytest.raises(InputError, match="no split that all of the runs were scored on"):
        by_length([both[0], other])


def test_what_cannot_be_compared_is_not_drawn() -> None:
    with pytest.raises(InputError, match="runs on different data cannot share a figure"):
        by_length([record(), record(recipe="plain", data_hash="ef" * 32)])
    with pytest.raises(InputError, match="were not scored on the same pairs"):
        by_length([record(by_length=buckets(1, 1)), record(recipe="plain", by_length=buckets(1, 1, pairs=399))])
    with pytest.raises(InputError, match="no run has BLEU by length"):
        by_length([record(by_length=())])
