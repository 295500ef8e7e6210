"""Training that begins with the weights of another model: fine-tuning."""

from dataclasses import fields
from typing import Any

import torch

from qkv.attention import Learned
from qkv.config import build
from qkv.data.registry import DataConfig
from qkv.errors import InputError
from qkv.interop import load
from qkv.models import MODELS
from qkv.training.recipe import TASKS, Recipe

ROOM = ("vocabulary_size", "source_size", "target_size")  # for the tokens, of which a model has its own already

LABEL = "label."  # under which models have the weights that say a label


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
    if model.tokenizer is None and TASKS[recipe.task].kinds() != ("pictures",):
        raise InputError(f"init: {recipe.init} has no tokenizer, so its weights cannot be fed with text")
    return model


def continued_config(recipe: Recipe, start: Any, sizes: dict[str, Any]) -> Any:
    """The config of `start`, but for what the recipe's model table says, and for what the data decide."""
    name = recipe.model["name"]
    own = {key: value for key, value in recipe.model.items() if key not in ("name", "preset")}  # it has its sizes
    kept = {field.name: getattr(start.config, field.name) for field in fields(start.config)}
    decided = {key: value for key, value in sizes.items() if key not in ROOM}
    return build(MODELS[name][1], {**kept, **own, **decided}, f"init {recipe.init}", prefix="model.")


def set_aside(recipe: Recipe) -> tuple[str, ...]:
    """What of a recipe has no say where it begins with a model, which brings its own tokenizer: notes for the user."""
    if recipe.init is None:
        return ()
    plain = DataConfig(name=recipe.data.name)
    keys = ("vocabulary", "target_vocabulary", "lowercase")
    named = [f"data.{key}" for key in keys if getattr(recipe.data, key) != getattr(plain, key)]
    return (f"{' and '.join(named)} set aside: init brings a tokenizer of its own",) if named else ()


@torch.no_grad()
def take_over(model: torch.nn.Module, start: torch.nn.Module) -> list[str]:
    """Give a model the weights that the other has under the same names and in the same shapes; name the rest.

    Of learned positions it keeps those that both have, where one of the two reads longer texts. What the head says is
    new where it says something else, such as a label in place of whether a sentence follows.
    """
    same = _said_by(model) == _said_by(start)
    found = {name: weight for name, weight in start.named_parameters() if same or not name.startswith(LABEL)}
    learned = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, Learned)}
    fresh = []
    for name, parameter in model.named_parameters():
        old = found.get(name)
        if old is not None and old.shape == parameter.shape:
            parameter.copy_(old)
        elif old is not None and name in learned and old.shape[1:] == parameter.shape[1:]:
            both = min(len(old), len(parameter))
            parameter[:both] = old[:both]
            if both < len(parameter):
                fresh.append(f"{name} from place {both} on")
        else:
            fresh.append(name)
    if len(fresh) == len(list(model.parameters())):
        raise InputError("init: not one of its weights has the shape it needs: leave the sizes out of the model table")
    return fresh


def _said_by(model: torch.nn.Module) -> tuple[Any, ...]:
    """Which head a model has, and its labels."""
    return tuple(getattr(model.config, key, None) for key in ("head", "label_names"))
