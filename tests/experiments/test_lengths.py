"""Figure data: BLEU by source length."""

import pytest

from qkv.errors import InputError
from qkv.experiments.lengths import by_length
from qkv.metrics.text_metrics import Bucket

from .records import record


def buckets(short: float, long: float, pairs: int = 400) -> tuple[Bucket, ...]:
    return (Bucket(1, 7, 600, float(short)), Bucket(8, 8, 5, 1.0), Bucket(9, None, pairs, float(long)))


def test_a_line_has_the_mean_minimum_and_maximum_of_its_seeds() -> None:
    figure = by_length(
        [record(by_length=buckets(40, 30)), record(seed=1, by_length=buckets(42, 28)),
         record(recipe="plain", by_length=buckets(35, 31))]
    )  # fmt: skip
    assert figure.title == "multi30k en-de, test_2016_flickr, beam 5"
    assert figure.buckets == ("1 to 7", "8", "9 or more")
    assert figure.counts == (600, 5, 400)
    plain, attention = figure.lines  # sorted by their last points
    assert (plain.label, plain.mean, plain.lowest) == ("plain", (35, 1, 31), (35, 1, 31))
    assert (attention.label, attention.mean) == ("multi30k-gru", (41, 1, 29))
    assert (attention.lowest, attention.highest) == ((40, 1, 28), (42, 1, 30))


def test_lines_of_different_searches_are_labelled() -> None:
    figure = by_length([record(), record(beam=1)])
    assert figure.title == "multi30k en-de, test_2016_flickr"
    assert {line.label for line in figure.lines} == {"multi30k-gru, beam 5", "multi30k-gru, greedy"}


def test_a_line_is_labelled_with_its_recipe_if_that_is_unique() -> None:
    first, second = ("train.lr=0.1", "model.hidden=99"), ("model.score=dot",)
    figure = by_length([record(changes=first), record(recipe="plain", changes=second)])
    assert {line.label for line in figure.lines} == {"multi30k-gru", "plain"}
    figure = by_length([record(changes=first), record(changes=second), record(recipe="plain", changes=second)])
    assert {line.label for line in figure.lines} == {
        "multi30k-gru train.lr=0.1 model.hidden=99", "multi30k-gru model.score=dot", "plain model.score=dot"
    }  # fmt: skip
    figure = by_length([record(changes=first), record(recipe="plain", beam=1, changes=second)])
    assert {line.label for line in figure.lines} == {"multi30k-gru, beam 5", "plain, greedy"}
    figure = by_length([record(changes=first), record(beam=1, changes=first)])
    assert {line.label for line in figure.lines} == {"multi30k-gru, beam 5", "multi30k-gru, greedy"}


def test_a_line_of_unfinished_training_is_labelled() -> None:
    figure = by_length([record(), record(seed=1, finished=False), record(recipe="plain")])
    assert {line.label for line in figure.lines} == {"multi30k-gru (training not finished)", "plain"}


def test_the_default_split_was_scored_for_all_runs() -> None:
    both = [record(split="test_2016_flickr"), record(split="test_2017_flickr")]
    other = record(recipe="plain", split="test_2017_flickr")
    assert by_length([*both, other]).title.endswith("test_2017_flickr, beam 5")
    with pytest.raises(InputError, match=r"test_2016_flickr.*plain"):
        by_length([*both, other], "test_2016_flickr")
    with pytest.raises(InputError, match="split"):
        by_length([both[0], other])


def test_runs_that_cannot_be_compared_are_rejected() -> None:
    with pytest.raises(InputError, match="data"):
        by_length([record(), record(recipe="plain", data_hash="ef" * 32)])
    with pytest.raises(InputError, match="pairs"):
        by_length([record(by_length=buckets(1, 1)), record(recipe="plain", by_length=buckets(1, 1, pairs=399))])
    with pytest.raises(InputError, match="length"):
        by_length([record(by_length=())])
