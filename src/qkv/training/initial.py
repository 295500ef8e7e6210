"""Training that begins with the weights of another model: fine-tuning."""

from dataclasses import fields
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

import torch

from qkv.attention import Learned
from qkv.config import build
from qkv.data.registry import DataConfig
from qkv.errors import InputError
from qkv.interop import load
from qkv.models import MODELS
from qkv.models.vit import ViT
from qkv.nn.low_rank import LengthProjection
from qkv.training.recipe import TASKS, Recipe

ROOM = ("vocabulary_size", "source_size", "target_size")  # for the tokens, of which a model has its own already

FREE = ("max_length", "max_words", "reader_hidden", "own_words")  # sizes that a task may choose anew
INBORN = ("normalise_words",)  # what is no size, but without which the weights mean nothing
WORDLESS = {"pictures", "episodes", "bandits", "sequences"}  # kinds of data that no tokenizer reads
PLACES = {
    Learned: 0,
    LengthProjection: 2,
}  # modules that learn something for each place of a text, and the axis of the places
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
    if model.tokenizer is None and not WORDLESS.intersection(TASKS[recipe.task].kinds()):
        raise InputError(f"init: {recipe.init} has no tokenizer, so its weights cannot be fed with text")
    return model


def continued_config(recipe: Recipe, start: Any, sizes: dict[str, Any]) -> Any:
    """The config of `start`, but for what the recipe's model table says, and for what the data decide.

    Sizes, and what is inborn, are those of the weights, whatever the recipe says of them.
    """
    name = recipe.model["name"]
    own = {key: value for key, value in recipe.model.items() if key not in ("name", "preset", *_settled(recipe))}
    kept = {field.name: getattr(start.config, field.name) for field in fields(start.config)}
    decided = {key: value for key, value in sizes.items() if key not in ROOM}
    return build(MODELS[name][1], {**kept, **own, **decided}, f"init {recipe.init}", prefix="model.")


def set_aside(recipe: Recipe, start: Any) -> tuple[str, ...]:
    """What of a recipe has no say where it begins with a model, which brings its own sizes and tokenizer: notes."""
    if start is None:
        return ()
    table = recipe.model
    other = [f"model.{key}" for key in _settled(recipe) if _listed(table[key]) != _listed(getattr(start.config, key))]
    if "preset" in table:
        other.append(f"model.preset = {table['preset']!r}")
    notes = [f"{' and '.join(other)} set aside: the weights come with their own"] if other else []
    plain = DataConfig(name=recipe.data.name)
    keys = ("vocabulary", "target_vocabulary", "lowercase")
    named = [f"data.{key}" for key in keys if getattr(recipe.data, key) != getattr(plain, key)]
    notes += [f"{' and '.join(named)} set aside: init brings a tokenizer of its own"] if named else []
    return tuple(notes)


def _settled(recipe: Recipe) -> list[str]:
    """The keys of the model table that the weights have settled: how large they are, and what is inborn."""
    hints = get_type_hints(MODELS[recipe.model["name"]][1])
    sized = [key for key in recipe.model if key in hints and key not in FREE and _is_size(hints[key])]
    return sized + [key for key in recipe.model if key in INBORN]


def _is_size(hint: Any) -> bool:
    """Whether a field holds whole numbers, one or many."""
    parts = get_args(hint)
    if get_origin(hint) is tuple:
        return _is_size(parts[0])
    return hint is int or (int in parts and all(part in (int, NoneType) for part in parts))


def _listed(value: Any) -> Any:
    """Tuples as the lists that a recipe has."""
    return [_listed(one) for one in value] if isinstance(value, tuple | list) else value


@torch.no_grad()
def take_over(model: torch.nn.Module, start: torch.nn.Module) -> list[str]:
    """Give a model the weights that the other has under the same names and in the same shapes; name the rest.

    Of what is learned for each place of a text it keeps the places that both have; the positions of a ViT are
    interpolated to pictures of another size. What the head says is new where it says something else, such as a label in
    place of whether a sentence follows.
    """
    same = _said_by(model) == _said_by(start)
    found = {name: weight for name, weight in start.named_parameters() if same or not name.startswith(LABEL)}
    placed = {
        f"{name}.weight": PLACES[type(module)] for name, module in model.named_modules() if type(module) in PLACES
    }
    regridded = getattr(model.config, "grid", None) != getattr(start.config, "grid", None)
    fresh = []
    for name, parameter in model.named_parameters():
        old, axis = found.get(name), placed.get(name)
        if old is not None and regridded and name.endswith("positions"):
            if isinstance(model, ViT) and isinstance(start, ViT):
                parameter.copy_(start.interpolate_positions(old, model.config.grid))
            else:
                fresh.append(name)
        elif old is not None and old.shape == parameter.shape:
            parameter.copy_(old)
        elif old is not None and axis is not None and _but_for(axis, old) == _but_for(axis, parameter):
            both = min(old.shape[axis], parameter.shape[axis])
            parameter.narrow(axis, 0, both).copy_(old.narrow(axis, 0, both))
            if both < parameter.shape[axis]:
                fresh.append(f"{name} from place {both} on")
        else:
            fresh.append(name)
    if random := [name for name, weight in model.named_parameters() if name in fresh and not weight.requires_grad]:
        raise InputError(
            f"init has no weights for {', '.join(random)}, which model.frozen would leave as they are drawn: "
            "set model.frozen=false"
        )
    return fresh


def _but_for(axis: int, weight: torch.Tensor) -> tuple[int, ...]:
    """The other sizes of a tensor."""
    return (*weight.shape[:axis], *weight.shape[axis + 1 :])


def _said_by(model: torch.nn.Module) -> tuple[Any, ...]:
    """Which head a model has, and its labels."""
    return tuple(getattr(model.config, key, None) for key in ("head", "label_names"))
