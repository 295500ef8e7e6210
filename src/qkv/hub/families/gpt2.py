"""GPT-2 in the format of Hugging Face transformers (model_type gpt2)."""

from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal

from qkv.hub.families.config_json import HFConfig, require_supported
from qkv.hub.weight_map import Family, Weight, WeightMap, pair
from qkv.models.gpt2 import GPT2, GPT2Config

END_OF_TEXT = 50256  # <|endoftext|>, the last token of GPT-2's vocabulary


class ConfigKeys(HFConfig):
    """Keys of config.json."""

    vocab_size: Annotated[int, "vocab_size"] = 50257
    n_positions: Annotated[int, "max_length"] = 1024
    n_embd: Annotated[int, "dim"] = 768
    n_layer: Annotated[int, "layers"] = 12
    n_head: Annotated[int, "heads"] = 12
    n_inner: Annotated[int | None, "ffn_dim"] = None
    activation_function: Annotated[str, "activation"] = "gelu_new"
    resid_pdrop: Annotated[float, "dropout"] = 0.1
    attn_pdrop: Annotated[float, "attention_dropout"] = 0.1
    layer_norm_epsilon: Annotated[float, "layer_norm_eps"] = 1e-5
    tie_word_embeddings: Annotated[bool, "tie_embeddings"] = True
    scale_attn_weights: bool = True
    scale_attn_by_inverse_layer_idx: Annotated[bool, "inverse_layer_scale"] = False
    reorder_and_upcast_attn: Annotated[bool, "upcast_scores"] = False
    add_cross_attention: Literal[False] = False


def read_config(data: Mapping[str, Any], names: Collection[str]) -> GPT2Config:
    """Return our config for a GPT-2 config.json."""
    their = ConfigKeys.parse(data, "gpt2")
    score = "scaled_dot" if their.scale_attn_weights else "dot"
    return GPT2Config(**their.to_ours(), score=score, has_end_token=True)


def write_config(config: GPT2Config) -> dict[str, Any]:
    end = END_OF_TEXT if config.vocab_size > END_OF_TEXT else None
    return {
        "architectures": ["GPT2LMHeadModel"],
        **ConfigKeys.from_ours(config),
        "embd_pdrop": config.dropout,
        "scale_attn_weights": config.score.name == "scaled_dot",
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
