"""Whisper in the format of Hugging Face transformers (model_type whisper)."""

from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal

from qkv.config import require
from qkv.hub.families.config_json import HFConfig
from qkv.hub.weight_map import Family, Weight, WeightMap, bart_ffn, pair
from qkv.models.whisper import Whisper, WhisperConfig


class ConfigKeys(HFConfig):
    """Keys of config.json."""

    vocab_size: Annotated[int, "vocab_size"] = 51865
    num_mel_bins: Annotated[int, "mels"] = 80
    d_model: Annotated[int, "dim"] = 384
    encoder_layers: Annotated[int, "encoder_layers"] = 4
    encoder_ffn_dim: Annotated[int, "ffn_dim"] = 1536
    encoder_attention_heads: Annotated[int, "heads"] = 6
    decoder_layers: Annotated[int, "decoder_layers"] = 4
    decoder_ffn_dim: int = 1536
    decoder_attention_heads: int = 6
    max_source_positions: Annotated[int, "positions"] = 1500
    max_target_positions: Annotated[int, "max_length"] = 448
    activation_function: Annotated[str, "activation"] = "gelu"
    dropout: Annotated[float, "dropout"] = 0.0
    attention_dropout: Annotated[float, "attention_dropout"] = 0.0
    activation_dropout: Annotated[float, "activation_dropout"] = 0.0
    decoder_start_token_id: Annotated[int | None, "begin_token"] = 50257
    eos_token_id: Annotated[int | None, "end_token"] = 50256
    pad_token_id: Annotated[int | None, "pad_token"] = 50256
    suppress_tokens: list[int] | None = None
    begin_suppress_tokens: list[int] | None = None
    forced_decoder_ids: list[list[int | None]] | None = None  # [position, token] of the prompt; null: the language
    scale_embedding: Literal[False] = False
    is_encoder_decoder: Literal[True] = True
    tie_word_embeddings: Literal[True] = True


def read_config(data: Mapping[str, Any], names: Collection[str]) -> WhisperConfig:
    """Return our config; a multilingual model is prompted for English unless the config has a language."""
    their = ConfigKeys.parse(data, "whisper")
    for part in ("ffn_dim", "attention_heads"):
        encoder, decoder = getattr(their, f"encoder_{part}"), getattr(their, f"decoder_{part}")
        require(encoder == decoder, f"whisper: encoder_{part} {encoder} must equal decoder_{part} {decoder}")
    forced = their.forced_decoder_ids or []
    require(all(len(entry) == 2 for entry in forced), "whisper: forced_decoder_ids must be pairs of position and token")
    english = None if their.decoder_start_token_id is None else their.decoder_start_token_id + 1
    return WhisperConfig(
        **their.to_ours(),
        prompt_tokens=tuple(english if token is None else token for _, token in forced),
        suppress_tokens=tuple(their.suppress_tokens or ()),
        begin_suppress_tokens=tuple(their.begin_suppress_tokens or ()),
    )


def write_config(config: WhisperConfig) -> dict[str, Any]:
    return {
        "architectures": ["WhisperForConditionalGeneration"],
        "is_encoder_decoder": True,
        **ConfigKeys.from_ours(config),
        "decoder_ffn_dim": config.ffn_dim,
        "decoder_attention_heads": config.heads,
        "suppress_tokens": list(config.suppress_tokens),
        "begin_suppress_tokens": list(config.begin_suppress_tokens),
        "forced_decoder_ids": [list(entry) for entry in enumerate(config.prompt_tokens, start=1)],
        "tie_word_embeddings": True,
    }


def weights(config: WhisperConfig) -> WeightMap:
    """Return the weight map; W_Q, W_K and W_V are concatenated into one matrix here, and keys have no bias there."""
    encoder, decoder = "model.encoder", "model.decoder"
    table = [Weight("embed.weight", (f"{decoder}.embed_tokens.weight",))]
    table += [Weight("positions.weight", (f"{decoder}.embed_positions.weight",))]
    table += pair("conv1", f"{encoder}.conv1") + pair("conv2", f"{encoder}.conv2")
    table += pair("encoder_norm", f"{encoder}.layer_norm") + pair("decoder_norm", f"{decoder}.layer_norm")
    for number in range(config.encoder_layers):
        ours, theirs = f"encoder.{number}", f"{encoder}.layers.{number}"
        table += _attention(f"{ours}.attention", f"{theirs}.self_attn")
        table += pair(f"{ours}.attention_norm", f"{theirs}.self_attn_layer_norm") + bart_ffn(ours, theirs)
    for number in range(config.decoder_layers):
        ours, theirs = f"decoder.{number}", f"{decoder}.layers.{number}"
        table += _attention(f"{ours}.self_attention", f"{theirs}.self_attn")
        table += pair(f"{ours}.self_norm", f"{theirs}.self_attn_layer_norm")
        table += _attention(f"{ours}.cross_attention", f"{theirs}.encoder_attn")
        table += pair(f"{ours}.cross_norm", f"{theirs}.encoder_attn_layer_norm") + bart_ffn(ours, theirs)
    positions = r"(model\.)?encoder\.embed_positions\.weight"  # sinusoidal, computed here
    copies = {"proj_out.weight": f"{decoder}.embed_tokens.weight"}
    return WeightMap(tuple(table), copies, ignored=(positions,), prefix="model.")


def _attention(ours: str, theirs: str) -> list[Weight]:
    return [
        Weight(f"{ours}.qkv_proj.weight", tuple(f"{theirs}.{part}_proj.weight" for part in ("q", "k", "v"))),
        Weight(f"{ours}.qkv_proj.bias", (f"{theirs}.q_proj.bias", None, f"{theirs}.v_proj.bias")),
        *pair(f"{ours}.out_proj", f"{theirs}.out_proj"),
    ]


FAMILY = Family("whisper", Whisper, read_config, write_config, weights)
