"""Fine-tuning: initialize a model from pretrained weights."""

from dataclasses import fields
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

import torch

from qkv.attention import Learned
from qkv.config import Config, build
from qkv.datasets.registry import DataConfig
from qkv.errors import InputError
from qkv.hub import load
from qkv.models.linformer import LengthProjection
from qkv.models.vit import ViT
from qkv.registry import lookup
from qkv.training.recipe import TASKS, Recipe

VOCAB_SIZES = ("vocab_size", "source_vocab_size", "target_vocab_size")  # a pretrained model keeps its own

FREE_SIZES = ("max_length", "max_words", "reader_hidden", "own_words")  # sizes that a recipe may still change
ARCHITECTURE_KEYS = ("normalise_words", "encoder")  # not sizes, but the weights are only valid with the values they had
NO_TOKENIZER = {"pictures", "episodes", "bandits", "sequences"}  # kinds of data without text
POSITION_AXES = {
    Learned: 0,
    LengthProjection: 2,
}  # modules with one parameter slice per position, and the axis of the positions
LABEL_PREFIXES = ("label.", "task.label.", "head.")  # parameter names of label heads


def load_pretrained(recipe: Recipe) -> Any:
    """Load the model in the recipe's `init`, with its tokenizer; None if `init` is not set."""
    if recipe.init is None:
        return None
    model = load(recipe.init)
    network = lookup("model", recipe.model["name"])
    if not isinstance(model, network):
        raise InputError(
            f"init: {recipe.init} holds a {type(model).__name__}, but model.name is {recipe.model['name']!r}"
        )
    if model.tokenizer is None and not NO_TOKENIZER.intersection(TASKS[recipe.task].kinds()):
        raise InputError(f"init: {recipe.init} has no tokenizer, which {TASKS[recipe.task].title} requires")
    return model


def pretrained_config(recipe: Recipe, pretrained: Any, sizes: dict[str, Any]) -> Any:
    """Return the config of `pretrained`, updated with the recipe's model table and the sizes of the data.

    Sizes and ARCHITECTURE_KEYS are those of the weights, whatever the recipe sets.
    """
    name = recipe.model["name"]
    overrides = {key: value for key, value in recipe.model.items() if key not in ("name", "preset", *_fixed(recipe))}
    kept = _to_dict(pretrained.config)
    from_data = {key: value for key, value in sizes.items() if key not in VOCAB_SIZES}
    return build(
        lookup("model", name).config_class, {**kept, **overrides, **from_data}, f"init {recipe.init}", prefix="model."
    )


def ignored_keys(recipe: Recipe, pretrained: Any) -> tuple[str, ...]:
    """Return notes on recipe keys that have no effect, because `init` fixes the sizes and the tokenizer."""
    if pretrained is None:
        return ()
    table, config = recipe.model, _to_dict(pretrained.config)
    keys = [f"model.{key}" for key in _fixed(recipe) if _as_lists(table[key]) != _as_lists(config[key])]
    if "preset" in table:
        keys.append(f"model.preset = {table['preset']!r}")
    notes = [f"{' and '.join(keys)} ignored: fixed by the checkpoint"] if keys else []
    default = DataConfig(name=recipe.data.name)
    tokenizer_keys = [
        f"data.{key}"
        for key in ("vocabulary", "target_vocabulary", "lowercase")
        if getattr(recipe.data, key) != getattr(default, key)
    ]
    notes += [f"{' and '.join(tokenizer_keys)} ignored: init provides the tokenizer"] if tokenizer_keys else []
    return tuple(notes)


def _fixed(recipe: Recipe) -> list[str]:
    """Return the keys of the model table that the weights determine: their sizes, and ARCHITECTURE_KEYS."""
    hints = get_type_hints(lookup("model", recipe.model["name"]).config_class)
    sizes = [key for key in recipe.model if key in hints and key not in FREE_SIZES and _is_size(hints[key])]
    return sizes + [key for key in recipe.model if key in ARCHITECTURE_KEYS]


def _to_dict(config: Any) -> dict[str, Any]:
    if isinstance(config, Config):
        return config.to_dict()
    return {field.name: getattr(config, field.name) for field in fields(config)}


def _is_size(hint: Any) -> bool:
    """Return whether a field is an integer or a tuple of integers."""
    parts = get_args(hint)
    if get_origin(hint) is tuple:
        return _is_size(parts[0])
    return hint is int or (int in parts and all(part in (int, NoneType) for part in parts))


def _as_lists(value: Any) -> Any:
    """Convert tuples to lists, as in a recipe."""
    return [_as_lists(item) for item in value] if isinstance(value, tuple | list) else value


@torch.no_grad()
def copy_matching_weights(model: torch.nn.Module, pretrained: torch.nn.Module) -> list[str]:
    """Copy the weights that have the same name and shape in both models; return the names of those left random.

    Learned positions are copied as far as both models have them; those of a ViT are interpolated to another image
    size. The head is not copied if it predicts something else, such as a label instead of next sentence.
    """
    same_head = _head(model) == _head(pretrained)
    weights = {
        name: weight
        for name, weight in pretrained.named_parameters()
        if same_head or not name.startswith(LABEL_PREFIXES)
    }
    position_axes = {
        f"{name}.weight": POSITION_AXES[type(module)]
        for name, module in model.named_modules()
        if type(module) in POSITION_AXES
    }
    grid_differs = getattr(model.config, "grid", None) != getattr(pretrained.config, "grid", None)
    fresh = []
    for name, parameter in model.named_parameters():
        weight, axis = weights.get(name), position_axes.get(name)
        if weight is not None and grid_differs and name.endswith(("positions", "positions.weight")):
            if isinstance(model, ViT) and isinstance(pretrained, ViT):
                parameter.copy_(pretrained.interpolate_positions(weight, model.config.grid))
            else:
                fresh.append(name)
        elif weight is not None and weight.shape == parameter.shape:
            parameter.copy_(weight)
        elif (
            weight is not None and axis is not None and _shape_without(axis, weight) == _shape_without(axis, parameter)
        ):
            shared = min(weight.shape[axis], parameter.shape[axis])
            parameter.narrow(axis, 0, shared).copy_(weight.narrow(axis, 0, shared))
            if shared < parameter.shape[axis]:
                fresh.append(f"{name} from position {shared} on")
        else:
            fresh.append(name)
    if frozen := [name for name, weight in model.named_parameters() if name in fresh and not weight.requires_grad]:
        raise InputError(
            f"init has no weights for {', '.join(frozen)}, which model.frozen would leave at their random "
            "initialization: set model.frozen=false"
        )
    return fresh


def _shape_without(axis: int, weight: torch.Tensor) -> tuple[int, ...]:
    return (*weight.shape[:axis], *weight.shape[axis + 1 :])


def _head(model: torch.nn.Module) -> tuple[Any, ...]:
    """Return the head of a model and its labels."""
    return tuple(getattr(model.config, key, None) for key in ("head", "label_names"))
