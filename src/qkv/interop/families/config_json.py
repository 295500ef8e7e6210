"""What the config.json of several families says in the same words: keys, activations, labels."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeVar

from qkv.config import build, nearest, require, shown
from qkv.errors import InputError

T = TypeVar("T")

# Their names of activations. Of those that are one function under several names, the first is written.
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


def read_described(kind: type[T], data: Mapping[str, Any], family: str) -> T:
    """The keys of config.json that say how the model computes; of what else stands there, nothing is read."""
    known = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    return build(kind, {key: value for key, value in data.items() if key in known}, family)


def our_activation(name: str) -> str:
    """Our name of an activation."""
    if name not in ACTIVATIONS:
        raise InputError(f"the activation {shown(name)!r} is not known{nearest(shown(name), ACTIVATIONS)}")
    return ACTIVATIONS[name]


def their_activation(name: str) -> str:
    """Their name of an activation."""
    return next(their for their, ours in ACTIVATIONS.items() if ours == name)


def read_labels(id2label: Mapping[str, Any], family: str) -> tuple[str, ...]:
    """The names of the labels, in the order of their numbers."""
    names = [id2label.get(str(number)) for number in range(len(id2label))]
    named = bool(names) and all(isinstance(name, str) for name in names)
    require(named, f"{family}: id2label must give each label from 0 on a name")
    return tuple(map(str, names))


def write_labels(names: Sequence[str], count: int) -> dict[str, Any]:
    """The names of the labels as config.json has them, there and back; those without a name get transformers' own."""
    labels = names or [f"LABEL_{number}" for number in range(count)]
    return {
        "id2label": {str(number): name for number, name in enumerate(labels)},
        "label2id": {name: number for number, name in enumerate(labels)},
    }


def require_theirs(config: Any, family: str, scores: Sequence[str] = ("scaled_dot",)) -> None:
    """Raise where the attention is one that their library does not have."""
    require(
        config.position == "learned" and config.score in scores,
        f"Hugging Face's {family} has learned positions and score {' or '.join(map(repr, scores))}, "
        f"but this model has position {config.position!r} and score {config.score!r}",
    )
