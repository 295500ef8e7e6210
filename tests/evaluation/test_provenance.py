"""The recipe a run came from, told from its content: what is said can be trained again."""

from dataclasses import replace

import pytest

from qkv.config import build
from qkv.evaluation.provenance import closest_recipe
from qkv.training.recipe import Recipe, read_recipe, recipe_names, recipe_table

KNOWN = {name: build(Recipe, recipe_table(name), name).to_dict() for name in recipe_names()}


@pytest.mark.parametrize("name", recipe_names())
def test_a_recipe_that_comes_with_qkv_is_found_without_changes(name: str) -> None:
    assert closest_recipe(KNOWN[name] | {"seed": 7}, KNOWN) == (name, ())


@pytest.mark.parametrize(
    "assignments",
    [
        ["model.score=dot"],
        ["train.lr=0.003", "model.score=location", "train.epochs=3"],
        ["data.vocabulary=bpe:400"],
        ["model.max_length=99"],  # a key that the recipe itself does not have
        ["data.size=20000", 'data.train=["a b.tsv"]', 'data.name="pairs"', "data.strict=true"],
        ["train.clip=inf"],
        ["data.folder=somewhere"],
    ],
)
def test_the_changes_that_are_said_give_the_same_recipe_again(assignments: list[str]) -> None:
    trained = read_recipe("dates-gru", [*assignments, "seed=3"])
    name, changes = closest_recipe(trained.to_dict(), KNOWN)
    assert len(changes) <= len(assignments)
    again = read_recipe(name, [*changes, "seed=3"])
    assert replace(again, data=replace(again.data, folder=trained.data.folder)) == trained


def test_where_the_data_lie_is_no_change() -> None:
    trained = read_recipe("dates-gru", ["data.folder=somewhere"])
    assert closest_recipe(trained.to_dict(), KNOWN) == ("dates-gru", ())


def test_a_word_that_toml_would_take_for_something_else_is_quoted() -> None:
    known = {"one": {"a": {"b": "x", "c": 1}}}
    for word in ("true", "12", "inf", "1979-05-27", "two words", ""):
        assert closest_recipe({"a": {"b": word, "c": 1}}, known) == ("one", (f'a.b="{word}"',))
    assert closest_recipe({"a": {"b": "bpe:10", "c": 2}}, known) == ("one", ("a.b=bpe:10", "a.c=2"))


def test_what_lacks_a_key_of_every_known_recipe_comes_from_none() -> None:
    assert closest_recipe({"a": 1}, {"one": {"a": 1, "b": 2}}) == ("", ())
    assert closest_recipe({"a": 1}, {}) == ("", ())
