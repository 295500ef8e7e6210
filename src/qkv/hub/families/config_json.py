"""Parts of config.json shared by several families: keys, activations, labels."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

from qkv.config import Config, Term, build, require
from qkv.errors import InputError
from qkv.registry import nearest
from qkv.runtime.text import printable

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


class HFConfig(Config):
    """Base class of the keys of config.json that affect the computation, with their defaults.

    `Annotated[type, name]` gives our name of a key with the same meaning. A Literal is the only supported value.
    """

    @classmethod
    def parse(cls, data: Mapping[str, Any], family: str) -> Self:
        """Read the keys of this class from config.json, ignoring all others."""
        return build(cls, {key: value for key, value in data.items() if key in cls.model_fields}, family)

    @classmethod
    def our_names(cls) -> dict[str, str]:
        """Return our names by those in config.json."""
        return {
            theirs: ours
            for theirs, field in cls.model_fields.items()
            for ours in field.metadata
            if isinstance(ours, str)
        }

    def to_ours(self) -> dict[str, Any]:
        """Return the values of the keys that have our names."""
        values = {ours: getattr(self, theirs) for theirs, ours in self.our_names().items()}
        if (name := values["activation"]) not in ACTIVATIONS:
            raise InputError(f"unknown activation {printable(name)!r}{nearest(printable(name), ACTIVATIONS)}")
        return values | {"activation": ACTIVATIONS[name]}

    @classmethod
    def from_ours(cls, config: Any) -> dict[str, Any]:
        """Return the keys of config.json for one of our configs."""
        values = {theirs: getattr(config, ours) for theirs, ours in cls.our_names().items()}
        for theirs, ours in cls.our_names().items():
            if ours == "activation":
                values[theirs] = next(name for name, ours in ACTIVATIONS.items() if ours == config.activation)
        return values


def read_labels(id2label: Mapping[str, Any] | None, family: str) -> tuple[str, ...]:
    """Return the label names in index order; none if there is no id2label."""
    if id2label is None:
        return ()
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


def _as_written(value: Any) -> Any:
    """Return the value of a key as it is written in a recipe, without the options of initial values."""
    if not isinstance(value, Term):
        return value
    options = {name: option for name, option in value.options.items() if name not in value.cls.initial_options}
    return replace(value, options=options).to_data()


def require_supported(
    config: Any,
    family: str,
    position: str | dict[str, Any] = "learned",
    scores: Sequence[str] = ("scaled_dot",),
    norm: str | None = None,
) -> None:
    """Raise if transformers has no counterpart for the attention and the blocks of this config.

    `norm` is that of the family, by default the one of the model.
    """
    fields = type(config).model_fields
    supported: dict[str, Sequence[Any]] = {"position": (position,), "score": scores, "align": ("softmax", "soft")}
    default_only = ("norm", "residual", "ffn", "causal", "pool", "attention_position")
    supported |= {key: (_as_written(fields[key].default),) for key in default_only if key in fields}
    if norm is not None:
        supported["norm"] = (norm,)
    for key, values in supported.items():
        value = _as_written(getattr(config, key))
        require(
            value in values,
            f"transformers' {family} requires {key} {' or '.join(map(repr, values))}, but this model has {value!r}",
        )
