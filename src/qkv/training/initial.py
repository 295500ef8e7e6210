"""Training that begins with the weights of another model: fine-tuning."""

from dataclasses import fields
from typing import Any

import torch

from qkv.config import build
from qkv.data.vocabulary import TwoVocabularies, Vocabulary
from qkv.errors import InputError
from qkv.interop import load
from qkv.models import MODELS
from qkv.training.recipe import TASKS, Recipe


def start_of(recipe: Recipe) -> Any:
    """The model that a recipe begins with (`init`), with its tokenizer; None where it begins with nothing."""
    if recipe.init is None:
        return None
    model = load(recipe.init)
    network, _ = MODELS[recipe.model["name"]]
    if not isinstance(model, network):
        raise InputError(
            f"init: {recipe.init} holds a {type(model).__name__}, but model.name is {recipe.model['name']!r}"
        )
    if model.tokenizer is None and TASKS[recipe.task].learns_from != "pictures":
        raise InputError(f"init: {recipe.init} has no tokenizer, so its weights cannot be fed with text")
    released = not isinstance(model.tokenizer, Vocabulary | TwoVocabularies | None)
    if released and recipe.task in ("translate", "language_model"):
        raise InputError(
            f"init: {recipe.init} has a released tokenizer, from which {TASKS[recipe.task].title} cannot go on yet: "
            "classify and tag can"
        )
    return model


def continued_config(recipe: Recipe, start: Any, sizes: dict[str, Any]) -> Any:
    """The config of `start`, but for what the recipe's model table says, and for what the data decide."""
    name = recipe.model["name"]
    own = {key: value for key, value in recipe.model.items() if key not in ("name", "preset")}  # it has its sizes
    kept = {field.name: getattr(start.config, field.name) for field in fields(start.config)}
    decided = {key: value for key, value in sizes.items() if key != "vocabulary_size"}  # it has room for its tokenizer
    return build(MODELS[name][1], {**kept, **own, **decided}, f"init {recipe.init}", prefix="model.")


@torch.no_grad()
def take_over(model: torch.nn.Module, start: torch.nn.Module) -> list[str]:
    """Give a model the weights that the other has under the same names and in the same shapes; name the rest."""
    found = dict(start.named_parameters())
    fresh = []
    for name, parameter in model.named_parameters():
        if name in found and found[name].shape == parameter.shape:
            parameter.copy_(found[name])
        else:
            fresh.append(name)
    return fresh
