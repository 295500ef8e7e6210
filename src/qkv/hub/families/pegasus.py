"""Pegasus in the format of Hugging Face transformers (model_type pegasus; Zhang et al. 2020).

It is the pre-norm Transformer of qkv with sines and cosines in halves, so that models trained here can be loaded there.
"""

from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal

from qkv.config import require
from qkv.hub.families.config_json import HFConfig, require_supported
from qkv.hub.families.marian import transformer_weights
from qkv.hub.weight_map import Family, WeightMap, pair
from qkv.models.transformer import Transformer, TransformerConfig
from qkv.types import Tensor


class ConfigKeys(HFConfig):
    """Keys of config.json."""

    vocab_size: Annotated[int, "source_vocab_size"] = 50265
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
    decoder_start_token_id: Annotated[int, "begin_token"] = 0
    pad_token_id: Annotated[int | None, "pad_token"] = 0
    eos_token_id: Annotated[int | None, "end_token"] = 1
    is_encoder_decoder: Literal[True] = True
    is_decoder: Literal[False] = False
    tie_word_embeddings: Literal[True] = True


def read_config(data: Mapping[str, Any], names: Collection[str]) -> TransformerConfig:
    """Return our config; the output bias is inferred from the tensor names."""
    their = ConfigKeys.parse(data, "pegasus")
    for part in ("ffn_dim", "attention_heads"):
        encoder, decoder = getattr(their, f"encoder_{part}"), getattr(their, f"decoder_{part}")
        require(encoder == decoder, f"pegasus: encoder_{part} {encoder} must equal decoder_{part} {decoder}")
    return TransformerConfig(
        **their.to_ours(),
        target_vocab_size=their.vocab_size,
        norm="pre",
        position="sinusoidal_halves",
        output_bias="final_logits_bias" in names,
    )


def write_config(config: TransformerConfig) -> dict[str, Any]:
    require(config.begin_token is not None, "transformers' pegasus requires decoder_start_token_id: set begin_token")
    return {
        "architectures": ["PegasusForConditionalGeneration"],
        "is_encoder_decoder": True,
        **ConfigKeys.from_ours(config),
        "decoder_ffn_dim": config.ffn_dim,
        "decoder_attention_heads": config.heads,
        "attention_dropout": config.attention_dropout_p,
        "activation_dropout": config.activation_dropout_p,
        "forced_eos_token_id": config.end_token,
    }


def weights(config: TransformerConfig) -> WeightMap:
    """Return the weight map: that of Marian, with a normalization after the encoder and the decoder."""
    require_supported(config, "pegasus", position="sinusoidal_halves", norm="pre")
    require(config.tie_embeddings, "transformers' pegasus requires tie_embeddings")
    norms = pair("encoder_norm", "model.encoder.layer_norm") + pair("decoder_norm", "model.decoder.layer_norm")
    return transformer_weights(config, "pegasus", norms)


def position_tables(model: Transformer) -> dict[str, Tensor]:
    """Return the sines and cosines, which transformers reports as missing if they are not in the file."""
    dtype, length = model.readout.weight.dtype, model.config.max_length
    tables = {"encoder": model.source_embed.positions, "decoder": model.target_embed.positions}
    return {
        f"model.{side}.embed_positions.weight": table(length).to(dtype)
        for side, table in tables.items()
        if table is not None
    }


FAMILY = Family(
    "pegasus", Transformer, read_config, write_config, weights,
    constants=position_tables, accepts=lambda config: config.norm == "pre",
)  # fmt: skip
