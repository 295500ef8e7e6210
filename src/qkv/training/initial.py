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
from qkv.models.vit import ViT
from qkv.training.recipe import TASKS, Recipe

ROOM = ("vocabulary_size", "source_size", "target_size")  # for the tokens, of which a model has its own already

FREE = ("max_length", "reader_hidden", "own_words")  # sizes that a task may choose anew
LABEL = ("label.", "task.label.", "head.")  # under which models have the weights that say a label


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
    """The config of `start`, but for what the recipe's model table says, and for what the data decide.

    Sizes are those of the weights, whatever the recipe says of them.
    """
    name = recipe.model["name"]
    own = {key: value for key, value in recipe.model.items() if key not in ("name", "preset", *_sizes(recipe))}
    kept = {field.name: getattr(start.config, field.name) for field in fields(start.config)}
    decided = {key: value for key, value in sizes.items() if key not in ROOM}
    return build(MODELS[name][1], {**kept, **own, **decided}, f"init {recipe.init}", prefix="model.")


def set_aside(recipe: Recipe, start: Any) -> tuple[str, ...]:
    """What of a recipe has no say where it begins with a model, which brings its own sizes and tokenizer: notes."""
    if start is None:
        return ()
    table = recipe.model
    other = [f"model.{key}" for key in _sizes(recipe) if _listed(table[key]) != _listed(getattr(start.config, key))]
    notes = [f"{' and '.join(other)} set aside: the weights have sizes of their own"] if other else []
    plain = DataConfig(name=recipe.data.name)
    keys = ("vocabulary", "target_vocabulary", "lowercase")
    named = [f"data.{key}" for key in keys if getattr(recipe.data, key) != getattr(plain, key)]
    notes += [f"{' and '.join(named)} set aside: init brings a tokenizer of its own"] if named else []
    return tuple(notes)


def _sizes(recipe: Recipe) -> list[str]:
    """The keys of the model table that say how large something is, and are not for a task to choose."""
    return [key for key, value in recipe.model.items() if type(value) in (int, list, tuple) and key not in FREE]


def _listed(value: Any) -> Any:
    """Tuples as the lists that a recipe has."""
    return [_listed(one) for one in value] if isinstance(value, tuple | list) else value


@torch.no_grad()
def take_over(model: torch.nn.Module, start: torch.nn.Module) -> list[str]:
    """Give a model the weights that the other has under the same names and in the same shapes; name the rest.

    Of learned positions it keeps those that both have, where one of the two reads longer texts; those of a ViT are
    interpolated to pictures of another size. What the head says is new where it says something else, such as a label in
    place of whether a sentence follows.
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
        elif old is not None and isinstance(model, ViT) and isinstance(start, ViT) and parameter is model.positions:
            parameter.copy_(start.places(old, model.config.grid))
        else:
            fresh.append(name)
    if random := [name for name, weight in model.named_parameters() if name in fresh and not weight.requires_grad]:
        raise InputError(
            f"init has no weights for {', '.join(random)}, which model.frozen would leave as they are drawn: "
            "set model.frozen=false"
        )
    return fresh


def _said_by(model: torch.nn.Module) -> tuple[Any, ...]:
    """Which head a model has, and its labels."""
    return tuple(getattr(model.config, key, None) for key in ("head", "label_names"))
