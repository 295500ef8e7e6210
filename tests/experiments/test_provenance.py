"""The closest built-in recipe of a run, and its changes."""

from dataclasses import replace

import pytest
from qkv.experiments.provenance import closest_recipe

from qkv.config import build
from qkv.training.recipe import Recipe, read_recipe, recipe_names, recipe_table

KNOWN = {name: build(Recipe, recipe_table(name), name).to_dict() for name in recipe_names()}


@pytest.mark.parametrize("name", recipe_names())
def test_a_built_in_recipe_is_found_without_changes(name: str) -> None:
    assert closest_recipe(KNOWN[name] | {"seed": 7}, KNOWN) == (name, ())


@pytest.mark.parametrize(
    "assignments",
    [
        ["model.score=dot"],
        ["train.lr=0.003", "model.score=location", "train.epochs=3"],
        ["data.vocabulary=bpe:400"],
        ["model.max_length=99"],  # a key that the recipe does not set
        ["data.size=20000", 'data.train=["a b.tsv"]', 'data.name="pairs"', "data.strict=true"],
        ["train.clip=inf"],
        ["data.folder=somewhere"],
    ],
)
def test_applying_the_changes_reproduces_the_recipe(assignments: list[str]) -> None:
    trained = read_recipe("dates-gru", [*assignments, "seed=3"])
    name, changes = closest_recipe(trained.to_dict(), KNOWN)
    assert len(changes) <= len(assignments)
    again = read_recipe(name, [*changes, "seed=3"])
    assert replace(again, data=replace(again.data, folder=trained.data.folder)) == trained


def test_the_data_folder_is_ignored() -> None:
    trained = read_recipe("dates-gru", ["data.folder=somewhere"])
    assert closest_recipe(trained.to_dict(), KNOWN) == ("dates-gru", ())


def test_ambiguous_words_are_quoted() -> None:
    known = {"base": {"a": {"b": "x", "c": 1}}}
    for word in ("true", "12", "inf", "1979-05-27", "two words", ""):
        assert closest_recipe({"a": {"b": word, "c": 1}}, known) == ("base", (f'a.b="{word}"',))
    assert closest_recipe({"a": {"b": "bpe:10", "c": 2}}, known) == ("base", ("a.b=bpe:10", "a.c=2"))


def test_a_recipe_without_a_key_of_every_known_recipe_has_no_closest_one() -> None:
    assert closest_recipe({"a": 1}, {"base": {"a": 1, "b": 2}}) == ("", ())
    assert closest_recipe({"a": 1}, {}) == ("", ())
