"""GPT-2 as Hugging Face's transformers writes it (model_type gpt2)."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from qkv.config import build, nearest
from qkv.errors import InputError
from qkv.interop.document import shown
from qkv.interop.weight_map import Family, Weight, WeightMap
from qkv.models.gpt2 import GPT2, Config

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
END_OF_TEXT = 50256  # the last of GPT-2's own tokens


@dataclass(frozen=True)
class Described:
    """What of config.json says how the model computes, with their defaults; what may be one value only says so."""

    vocab_size: int = 50257
    n_positions: int = 1024
    n_embd: int = 768
    n_layer: int = 12
    n_head: int = 12
    n_inner: int | None = None
    activation_function: str = "gelu_new"
    resid_pdrop: float = 0.1
    attn_pdrop: float = 0.1
    layer_norm_epsilon: float = 1e-5
    tie_word_embeddings: bool = True
    scale_attn_weights: Literal[True] = True
    scale_attn_by_inverse_layer_idx: Literal[False] = False
    add_cross_attention: Literal[False] = False


def read_config(data: Mapping[str, Any], names: Collection[str]) -> Config:
    """Our config; reorder_and_upcast_attn is left alone, for it says in which precision and not what is computed."""
    known = {field.name for field in fields(Described)}
    their = build(Described, {key: value for key, value in data.items() if key in known}, "gpt2")
    return Config(
        their.vocab_size,
        dim=their.n_embd,
        heads=their.n_head,
        layers=their.n_layer,
        feedforward=their.n_inner,
        max_length=their.n_positions,
        activation=our_activation(their.activation_function),
        dropout=their.resid_pdrop,
        attention_dropout=their.attn_pdrop,
        tie=their.tie_word_embeddings,
        eps=their.layer_norm_epsilon,
    )


def write_config(config: Config) -> dict[str, Any]:
    _require_theirs(config)
    end = END_OF_TEXT if config.vocabulary_size > END_OF_TEXT else None
    return {
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": config.vocabulary_size,
        "n_positions": config.max_length,
        "n_embd": config.dim,
        "n_layer": config.layers,
        "n_head": config.heads,
        "n_inner": config.feedforward,
        "activation_function": their_activation(config.activation),
        "resid_pdrop": config.dropout,
        "embd_pdrop": config.dropout,
        "attn_pdrop": config.attention_dropout,
        "layer_norm_epsilon": config.eps,
        "tie_word_embeddings": config.tie,
        "bos_token_id": end,
        "eos_token_id": end,
    }


def our_activation(name: str) -> str:
    """Our name of an activation."""
    if name not in ACTIVATIONS:
        raise InputError(f"the activation {shown(name)!r} is not known{nearest(shown(name), ACTIVATIONS)}")
    return ACTIVATIONS[name]


def their_activation(name: str) -> str:
    """Their name of an activation."""
    return next(their for their, ours in ACTIVATIONS.items() if ours == name)


def _require_theirs(config: Config) -> None:
    """Raise where this is a model that their library does not have."""
    if config.position != "learned" or config.score != "scaled_dot":
        raise InputError(
            "Hugging Face's gpt2 has learned positions and the scaled dot product, "
            f"but this model has position {config.position!r} and score {config.score!r}"
        )


def weights(config: Config) -> WeightMap:
    """Their linear layers have weights [in, out]."""
    _require_theirs(config)
    body = [
        Weight("embed.weight", ("transformer.wte.weight",)),
        Weight("positions.weight", ("transformer.wpe.weight",)),
    ]
    for number in range(config.layers):
        ours, theirs = f"blocks.{number}", f"transformer.h.{number}"
        body += _pair(f"{ours}.attention_norm", f"{theirs}.ln_1")
        body += _pair(f"{ours}.attention.project", f"{theirs}.attn.c_attn", transposed=True)
        body += _pair(f"{ours}.attention.output", f"{theirs}.attn.c_proj", transposed=True)
        body += _pair(f"{ours}.feedforward_norm", f"{theirs}.ln_2")
        body += _pair(f"{ours}.feedforward.widen", f"{theirs}.mlp.c_fc", transposed=True)
        body += _pair(f"{ours}.feedforward.narrow", f"{theirs}.mlp.c_proj", transposed=True)
    body += _pair("norm", "transformer.ln_f")
    return WeightMap(
        tuple(body) if config.tie else (*body, Weight("readout.weight", ("lm_head.weight",))),
        copies={"lm_head.weight": "transformer.wte.weight"} if config.tie else {},
        ignored=(r"(transformer\.)?h\.\d+\.attn\.(masked_)?bias",),  # the causal mask, which old files hold as a tensor
        prefix="transformer.",
    )


def _pair(ours: str, theirs: str, *, transposed: bool = False) -> list[Weight]:
    """A weight and a bias."""
    return [Weight(f"{ours}.weight", (f"{theirs}.weight",), transposed), Weight(f"{ours}.bias", (f"{theirs}.bias",))]


FAMILY = Family("gpt2", GPT2, read_config, write_config, weights)
