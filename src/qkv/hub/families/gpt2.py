"""GPT-2 in the format of Hugging Face transformers (model_type gpt2)."""

from collections.abc import Collection, Mapping
from typing import Any, Literal

from qkv.config import Config
from qkv.hub.families.config_json import from_hf_activation, parse_config, require_supported, to_hf_activation
from qkv.hub.weight_map import Family, Weight, WeightMap, pair
from qkv.models.gpt2 import GPT2, GPT2Config

END_OF_TEXT = 50256  # <|endoftext|>, the last token of GPT-2's vocabulary


class HFConfig(Config):
    """Keys of config.json that affect the computation, with their defaults; a Literal is the only supported value."""

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
    scale_attn_weights: bool = True
    scale_attn_by_inverse_layer_idx: bool = False
    reorder_and_upcast_attn: bool = False
    add_cross_attention: Literal[False] = False


def read_config(data: Mapping[str, Any], names: Collection[str]) -> GPT2Config:
    """Return our config for a GPT-2 config.json."""
    their = parse_config(HFConfig, data, "gpt2")
    return GPT2Config(
        vocab_size=their.vocab_size,
        dim=their.n_embd,
        heads=their.n_head,
        layers=their.n_layer,
        ffn_dim=their.n_inner,
        max_length=their.n_positions,
        score="scaled_dot" if their.scale_attn_weights else "dot",
        inverse_layer_scale=their.scale_attn_by_inverse_layer_idx,
        upcast_scores=their.reorder_and_upcast_attn,
        activation=from_hf_activation(their.activation_function),
        dropout=their.resid_pdrop,
        attention_dropout=their.attn_pdrop,
        tie_embeddings=their.tie_word_embeddings,
        layer_norm_eps=their.layer_norm_epsilon,
        has_end_token=True,
    )


def write_config(config: GPT2Config) -> dict[str, Any]:
    require_supported(config, "gpt2", scores=("scaled_dot", "dot"))
    end = END_OF_TEXT if config.vocab_size > END_OF_TEXT else None
    return {
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": config.vocab_size,
        "n_positions": config.max_length,
        "n_embd": config.dim,
        "n_layer": config.layers,
        "n_head": config.heads,
        "n_inner": config.ffn_dim,
        "activation_function": to_hf_activation(config.activation),
        "resid_pdrop": config.dropout,
        "embd_pdrop": config.dropout,
        "attn_pdrop": config.attention_dropout,
        "layer_norm_epsilon": config.layer_norm_eps,
        "tie_word_embeddings": config.tie_embeddings,
        "scale_attn_weights": config.score.name == "scaled_dot",
        "scale_attn_by_inverse_layer_idx": config.inverse_layer_scale,
        "reorder_and_upcast_attn": config.upcast_scores,
        "bos_token_id": end,
        "eos_token_id": end,
    }


def weights(config: GPT2Config) -> WeightMap:
    """Return the weight map; GPT-2's Conv1D layers store weights as [in, out]."""
    require_supported(config, "gpt2", scores=("scaled_dot", "dot"))
    body = [
        Weight("embed.weight", ("transformer.wte.weight",)),
        Weight("positions.weight", ("transformer.wpe.weight",)),
    ]
    for number in range(config.layers):
        ours, theirs = f"blocks.{number}", f"transformer.h.{number}"
        body += pair(f"{ours}.attention_norm", f"{theirs}.ln_1")
        body += pair(f"{ours}.attention.qkv_proj", f"{theirs}.attn.c_attn", transposed=True)
        body += pair(f"{ours}.attention.out_proj", f"{theirs}.attn.c_proj", transposed=True)
        body += pair(f"{ours}.ffn_norm", f"{theirs}.ln_2")
        body += pair(f"{ours}.ffn.up_proj", f"{theirs}.mlp.c_fc", transposed=True)
        body += pair(f"{ours}.ffn.down_proj", f"{theirs}.mlp.c_proj", transposed=True)
    body += pair("norm", "transformer.ln_f")
    return WeightMap(
        tuple(body) if config.tie_embeddings else (*body, Weight("readout.weight", ("lm_head.weight",))),
        copies={"lm_head.weight": "transformer.wte.weight"} if config.tie_embeddings else {},
        ignored=(r"(transformer\.)?h\.\d+\.attn\.(masked_)?bias",),  # the causal mask, stored in old files
        prefix="transformer.",
    )


FAMILY = Family("gpt2", GPT2, read_config, write_config, weights)
