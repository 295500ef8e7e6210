"""Marian in the format of Hugging Face transformers (model_type marian): the OPUS-MT translation models.

They are post-norm Transformers (Vaswani et al. 2017) trained with Marian (Junczys-Dowmunt et al. 2018).
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, Literal

from qkv.config import require
from qkv.hub.families.config_json import HFConfig, require_supported
from qkv.hub.weight_map import Family, Weight, WeightMap, bart_ffn, pair
from qkv.models.transformer import Transformer, TransformerConfig


class ConfigKeys(HFConfig):
    """Keys of config.json."""

    vocab_size: Annotated[int, "source_vocab_size"] = 58101
    decoder_vocab_size: int | None = None
    max_position_embeddings: Annotated[int, "max_length"] = 1024
    d_model: Annotated[int, "dim"] = 1024
    encoder_layers: Annotated[int, "encoder_layers"] = 12
    encoder_ffn_dim: Annotated[int, "ffn_dim"] = 4096
    encoder_attention_heads: Annotated[int, "heads"] = 16
    decoder_layers: Annotated[int, "decoder_layers"] = 12
    decoder_ffn_dim: int = 4096
    decoder_attention_heads: int = 16
    activation_function: Annotated[str, "activation"] = "gelu"
    dropout: Annotated[float, "dropout"] = 0.1
    attention_dropout: Annotated[float, "attention_dropout"] = 0.0
    activation_dropout: Annotated[float, "activation_dropout"] = 0.0
    scale_embedding: Annotated[bool, "scale_embeddings"] = False
    decoder_start_token_id: Annotated[int, "begin_token"] = 58100
    pad_token_id: Annotated[int | None, "pad_token"] = 58100
    eos_token_id: Annotated[int | None, "end_token"] = 0
    share_encoder_decoder_embeddings: Annotated[bool, "tie_embeddings"] = True
    tie_word_embeddings: Annotated[bool, "tie_output"] = True
    is_encoder_decoder: Literal[True] = True
    is_decoder: Literal[False] = False
    normalize_before: Literal[False] = False
    normalize_embedding: Literal[False] = False
    add_final_layer_norm: Literal[False] = False
    static_position_embeddings: Literal[True] = True


def read_config(data: Mapping[str, Any], names: Collection[str]) -> TransformerConfig:
    """Return our config; the output bias is inferred from the tensor names."""
    their = ConfigKeys.parse(data, "marian")
    for part in ("ffn_dim", "attention_heads"):
        encoder, decoder = getattr(their, f"encoder_{part}"), getattr(their, f"decoder_{part}")
        require(encoder == decoder, f"marian: encoder_{part} {encoder} must equal decoder_{part} {decoder}")
    shared = their.share_encoder_decoder_embeddings
    require(
        not shared or their.tie_word_embeddings,
        "marian: share_encoder_decoder_embeddings without tie_word_embeddings is not supported: its meaning depends on "
        "the version of transformers",
    )
    target_size = their.decoder_vocab_size or their.vocab_size
    require(
        not shared or target_size == their.vocab_size,
        f"marian: shared embeddings require equal vocabulary sizes, not {their.vocab_size} and {target_size}",
    )
    return TransformerConfig(
        **their.to_ours(),
        target_vocab_size=target_size,
        norm="post",
        position="sinusoidal_halves",
        output_bias="final_logits_bias" in names,
    )


def write_config(config: TransformerConfig) -> dict[str, Any]:
    require(config.begin_token is not None, "transformers' marian requires decoder_start_token_id: set begin_token")
    return {
        "architectures": ["MarianMTModel"],
        "is_encoder_decoder": True,
        **ConfigKeys.from_ours(config),
        "decoder_vocab_size": config.target_vocab_size,
        "decoder_ffn_dim": config.ffn_dim,
        "decoder_attention_heads": config.heads,
        "attention_dropout": config.attention_dropout_p,
        "activation_dropout": config.activation_dropout_p,
        "tie_word_embeddings": config.tie_embeddings or config.tie_output,
        "forced_eos_token_id": config.end_token,
    }


def weights(config: TransformerConfig) -> WeightMap:
    require_supported(config, "marian", position="sinusoidal_halves", norm="post")
    return transformer_weights(config, "marian")


def transformer_weights(config: TransformerConfig, family: str, norms: Sequence[Weight] = ()) -> WeightMap:
    """Return the weight map of a family; W_Q, W_K and W_V are concatenated into one matrix here."""
    for key, supported in (("tree", "none"), ("copying", False), ("pointer", False)):
        value = getattr(config, key)
        require(
            value == supported, f"transformers' {family} requires {key} {supported!r}, but this model has {value!r}"
        )
    table, copies = _embeddings(config)
    for number in range(config.encoder_layers):
        ours, theirs = f"encoder.{number}", f"model.encoder.layers.{number}"
        table += _attention(f"{ours}.attention", f"{theirs}.self_attn")
        table += pair(f"{ours}.attention_norm", f"{theirs}.self_attn_layer_norm")
        table += bart_ffn(ours, theirs)
    for number in range(config.decoder_layers):
        ours, theirs = f"decoder.{number}", f"model.decoder.layers.{number}"
        table += _attention(f"{ours}.self_attention", f"{theirs}.self_attn")
        table += pair(f"{ours}.self_norm", f"{theirs}.self_attn_layer_norm")
        table += _attention(f"{ours}.cross_attention", f"{theirs}.encoder_attn")
        table += pair(f"{ours}.cross_norm", f"{theirs}.encoder_attn_layer_norm")
        table += bart_ffn(ours, theirs)
    table += norms
    table += [Weight("readout_bias", ("final_logits_bias",))] if config.output_bias else []
    tables = r"(model\.)?(encoder|decoder)\.embed_positions\.weight"  # sinusoidal, computed here
    return WeightMap(tuple(table), copies, ignored=(tables,), prefix="model.")


def _embeddings(config: TransformerConfig) -> tuple[list[Weight], dict[str, str]]:
    """Return the source, target and output embeddings after tying, and their aliases in a file."""
    source, target = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"
    shared, output = "model.shared.weight", "lm_head.weight"
    if config.tie_embeddings:
        return [Weight("source_embed.tokens.weight", (shared,))], {source: shared, target: shared, output: shared}
    two = [Weight("source_embed.tokens.weight", (source,)), Weight("target_embed.tokens.weight", (target,))]
    return (two, {output: target}) if config.tie_output else ([*two, Weight("readout.weight", (output,))], {})


def _attention(ours: str, theirs: str) -> list[Weight]:
    project = pair(f"{ours}.qkv_proj", *(f"{theirs}.{part}_proj" for part in ("q", "k", "v")))
    return project + pair(f"{ours}.out_proj", f"{theirs}.out_proj")


FAMILY = Family("marian", Transformer, read_config, write_config, weights, accepts=lambda config: config.norm != "pre")
