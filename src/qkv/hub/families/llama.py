"""Llama in the format of Hugging Face transformers (model_type llama)."""

from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal

from qkv.config import Config, Term, build, require
from qkv.hub.families.config_json import HFConfig, require_supported
from qkv.hub.weight_map import Family, Weight, WeightMap
from qkv.models.llama import Llama, LlamaConfig


class ConfigKeys(HFConfig):
    """Keys of config.json."""

    vocab_size: Annotated[int, "vocab_size"] = 32000
    max_position_embeddings: Annotated[int, "max_length"] = 2048
    hidden_size: Annotated[int, "dim"] = 4096
    intermediate_size: Annotated[int | None, "ffn_dim"] = 11008
    num_hidden_layers: Annotated[int, "layers"] = 32
    num_attention_heads: Annotated[int, "heads"] = 32
    num_key_value_heads: Annotated[int | None, "kv_heads"] = None
    head_dim: int | None = None
    hidden_act: Annotated[str, "activation"] = "silu"
    attention_dropout: Annotated[float, "attention_dropout"] = 0.0
    rms_norm_eps: Annotated[float, "norm_eps"] = 1e-6
    tie_word_embeddings: Annotated[bool, "tie_embeddings"] = False
    rope_theta: float = 10000.0  # before transformers 5
    rope_scaling: None = None
    rope_parameters: dict[str, Any] | None = None  # since transformers 5
    attention_bias: Literal[False] = False
    mlp_bias: Literal[False] = False


class RopeParameters(Config):
    """Rotary positions in config.json."""

    rope_theta: float = 10000.0
    rope_type: Literal["default"] = "default"


def read_config(data: Mapping[str, Any], names: Collection[str]) -> LlamaConfig:
    """Return our config for a Llama config.json."""
    their = ConfigKeys.parse(data, "llama")
    rope = build(RopeParameters, their.rope_parameters or {"rope_theta": their.rope_theta}, "llama: rope_parameters")
    config = LlamaConfig(
        **their.to_ours(), position=Term("position", "rotary", {"base": rope.rope_theta}), has_end_token=True
    )
    head_dim = config.sizes.query
    require(
        their.head_dim in (None, head_dim), f"head_dim must be {head_dim} (hidden_size / heads), not {their.head_dim}"
    )
    return config


def write_config(config: LlamaConfig) -> dict[str, Any]:
    theta = config.position.options.get("base", 10000.0)
    return {
        "architectures": ["LlamaForCausalLM"],
        **ConfigKeys.from_ours(config),
        "intermediate_size": config.ffn_width,
        "num_key_value_heads": config.kv_heads or config.heads,
        "rope_theta": theta,
        "rope_parameters": {"rope_theta": theta, "rope_type": "default"},
    }


def weights(config: LlamaConfig) -> WeightMap:
    """Return the weight map."""
    require_supported(config, "llama", position=Term("position", "rotary", config.position.options).to_data())
    dims = (config.dim, *[(config.kv_heads or config.heads) * config.sizes.key] * 2)
    body = [Weight("embed.weight", ("model.embed_tokens.weight",))]
    for number in range(config.layers):
        ours, theirs = f"blocks.{number}", f"model.layers.{number}"
        qkv = tuple(f"{theirs}.self_attn.{part}_proj.weight" for part in "qkv")
        body += [
            Weight(f"{ours}.attention_norm.weight", (f"{theirs}.input_layernorm.weight",)),
            Weight(f"{ours}.attention.qkv_proj.weight", qkv, rows=dims),
            Weight(f"{ours}.attention.out_proj.weight", (f"{theirs}.self_attn.o_proj.weight",)),
            Weight(f"{ours}.ffn_norm.weight", (f"{theirs}.post_attention_layernorm.weight",)),
            Weight(f"{ours}.ffn.up_proj.weight", (f"{theirs}.mlp.gate_proj.weight", f"{theirs}.mlp.up_proj.weight")),
            Weight(f"{ours}.ffn.down_proj.weight", (f"{theirs}.mlp.down_proj.weight",)),
        ]
    body.append(Weight("norm.weight", ("model.norm.weight",)))
    tied = config.tie_embeddings
    return WeightMap(
        tuple(body) if tied else (*body, Weight("readout.weight", ("lm_head.weight",))),
        copies={"lm_head.weight": "model.embed_tokens.weight"} if tied else {},
        ignored=(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq",),  # in old files
    )


FAMILY = Family("llama", Llama, read_config, write_config, weights)
