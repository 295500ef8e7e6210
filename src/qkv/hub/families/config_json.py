"""Parts of config.json shared by several families: keys, activations, labels."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from qkv.config import Config, build, require
from qkv.errors import InputError
from qkv.registry import nearest
from qkv.runtime.text import printable

C = TypeVar("C", bound=Config)

# Activation names of transformers -> ours; the first name of each function is the one written.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}


def parse_config(cls: type[C], data: Mapping[str, Any], family: str) -> C:
    """Read the keys of `cls` from config.json, ignoring all others."""
    return build(cls, {key: value for key, value in data.items() if key in cls.model_fields}, family)


def from_hf_activation(name: str) -> str:
    """Translate an activation name of transformers to ours."""
    if name not in ACTIVATIONS:
        raise InputError(f"unknown activation {printable(name)!r}{nearest(printable(name), ACTIVATIONS)}")
    return ACTIVATIONS[name]


def to_hf_activation(name: str) -> str:
    """Translate our activation name to that of transformers."""
    return next(hf_name for hf_name, our_name in ACTIVATIONS.items() if our_name == name)


def read_labels(id2label: Mapping[str, Any], family: str) -> tuple[str, ...]:
    """Return the label names in index order."""
    names = [id2label.get(str(number)) for number in range(len(id2label))]
    named = bool(names) and all(isinstance(name, str) for name in names)
    require(named, f"{family}: id2label must map 0, 1, ... to names")
    return tuple(map(str, names))


def write_labels(names: Sequence[str], count: int) -> dict[str, Any]:
    """Return id2label and label2id for config.json; unnamed labels become LABEL_0, LABEL_1, ..."""
    labels = names or [f"LABEL_{number}" for number in range(count)]
    return {
        "id2label": {str(number): name for number, name in enumerate(labels)},
        "label2id": {name: number for number, name in enumerate(labels)},
    }


def require_supported(
    config: Any, family: str, position: str = "learned", scores: Sequence[str] = ("scaled_dot",)
) -> None:
    """Raise if transformers has no counterpart for the attention of this config."""
    supported = {"position": (position,), "score": scores, "align": ("softmax", "soft")}
    for key, values in supported.items():
        value = getattr(config, key).to_data()
        require(
            value in values,
            f"transformers' {family} requires {key} {' or '.join(map(repr, values))}, but this model has {value!r}",
        )
