"""Fine-tuning: initialize a model from pretrained weights."""

from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

import torch

from qkv.config import Config
from qkv.datasets.dataset import TextDatasetConfig
from qkv.datasets.user_media import UserImageFiles
from qkv.errors import InputError
from qkv.hub import load
from qkv.hub.model_folder import ModelFolder, locate
from qkv.models.vit import ViT
from qkv.pipelines.inputs.image_preprocessing import Scale, read_scale
from qkv.training.recipe import Recipe

VOCAB_SIZES = ("vocab_size", "source_vocab_size", "target_vocab_size")  # a pretrained model keeps its own

# Sizes that a recipe may still change.
FREE_SIZES = ("max_length", "max_words", "task_hidden_dim", "task_embedding_dim")
# Not sizes, but the weights are only valid with the values they had.
ARCHITECTURE_KEYS = ("bidirectional", "encoder", "normalize_words")
LABEL_PREFIXES = ("label.", "task.label.", "head.")  # parameter names of label heads


def load_pretrained(recipe: Recipe) -> Any:
    """Load the model in the recipe's `init`, with its tokenizer; None if `init` is not set."""
    if recipe.init is None:
        return None
    model = load(recipe.init, dequantize=True)
    if not isinstance(model, recipe.model_class):
        name = recipe.model.registered_name
        raise InputError(f"init: {recipe.init} holds a {type(model).__name__}, but model.name is {name!r}")
    if isinstance(model, ViT):
        fold_scale(model, read_scale(locate(recipe.init), model.config.channels))
    needs_tokenizer = getattr(model.config, "max_characters", None) is None  # models of characters need none
    if model.tokenizer is None and needs_tokenizer and isinstance(recipe.data, TextDatasetConfig):
        raise InputError(f"init: {recipe.init} has no tokenizer, which {recipe.task_class.title} requires")
    return model


def with_image_size(recipe: Recipe) -> Recipe:
    """Return the recipe with the image size and channels of its `init`, unless it sets the size of user images."""
    if recipe.init is None or not isinstance(recipe.data, UserImageFiles) or recipe.data.side is not None:
        return recipe
    config = ModelFolder(locate(recipe.init)).config
    if not isinstance(config, type(recipe.model)):
        return recipe  # `load_pretrained` reports it
    return recipe.replace(data=recipe.data.replace(**recipe.task_class.reader_options(config)))


@torch.no_grad()
def fold_scale(model: ViT, scale: Scale) -> None:
    """Change the patch embedding so that the model takes pixels scaled from -1 to 1, instead of its own scale.

    With x the pixels from 0 to 1, y = 2x - 1 and (x - mean) / std = y / (2 std) + (1/2 - mean) / std.
    """
    if model.stem or scale == Scale():
        return
    mean, std = (torch.tensor(values)[:, None, None] for values in (scale.mean, scale.std))
    embed = model.patch_embed
    embed.bias.add_((embed.weight * ((0.5 - mean) / std)).sum(dim=(1, 2, 3)))
    embed.weight.div_(2 * std)


def pretrained_config(recipe: Recipe, pretrained: Any, sizes: dict[str, Any]) -> Any:
    """Return the config of `pretrained`, updated with the recipe's model table and the sizes of the data.

    Sizes and ARCHITECTURE_KEYS are those of the weights, whatever the recipe sets.
    """
    fixed = _fixed(recipe.model)
    overrides = {key: getattr(recipe.model, key) for key in recipe.model.model_fields_set if key not in fixed}
    from_data = {key: value for key, value in sizes.items() if key not in VOCAB_SIZES}
    try:
        return pretrained.config.replace(**overrides, **from_data)
    except InputError as error:
        raise InputError(f"init {recipe.init}: model.{error}") from None


def ignored_keys(recipe: Recipe, pretrained: Any) -> tuple[str, ...]:
    """Return notes on recipe keys that have no effect, because `init` fixes the sizes and the tokenizer."""
    if pretrained is None:
        return ()
    keys = [
        f"model.{key}"
        for key in sorted(_fixed(recipe.model))
        if getattr(recipe.model, key) != getattr(pretrained.config, key)
    ]
    notes = [f"{' and '.join(keys)} ignored: fixed by the checkpoint"] if keys else []
    names = ("tokenizer", "target_tokenizer", "lowercase", "lowercase_source")
    tokenizer_keys = [f"data.{key}" for key in names if key in recipe.data.model_fields_set]
    notes += [f"{' and '.join(tokenizer_keys)} ignored: init provides the tokenizer"] if tokenizer_keys else []
    return tuple(notes)


def _fixed(config: Config) -> set[str]:
    """Return the keys set in a model table that the weights determine: their sizes, and ARCHITECTURE_KEYS."""
    hints = get_type_hints(type(config))
    sizes = {key for key in config.model_fields_set if key not in FREE_SIZES and _is_size(hints[key])}
    return sizes | (config.model_fields_set & set(ARCHITECTURE_KEYS))


def _is_size(hint: Any) -> bool:
    """Return whether a field is an integer or a tuple of integers."""
    parts = get_args(hint)
    if get_origin(hint) is tuple:
        return _is_size(parts[0])
    return hint is int or (int in parts and all(part in (int, NoneType) for part in parts))


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
        f"{name}.weight": axis
        for name, module in model.named_modules()
        if isinstance(axis := getattr(module, "position_axis", None), int)
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
