"""BERT in the format of Hugging Face transformers (model_type bert), with any of its heads."""

import re
from collections.abc import Collection, Mapping
from typing import Any, Literal

from qkv.config import Config, StringList, require
from qkv.errors import InputError
from qkv.hub.families.config_json import (
    from_hf_activation,
    parse_config,
    read_labels,
    require_supported,
    to_hf_activation,
    write_labels,
)
from qkv.hub.weight_map import Family, Weight, WeightMap, pair
from qkv.models.bert import LABEL_HEADS, MLM_HEADS, Bert, BertConfig, Head

ARCHITECTURES = {
    None: "BertModel",
    "masked_lm": "BertForMaskedLM",
    "next_sentence": "BertForNextSentencePrediction",
    "pretraining": "BertForPreTraining",
    "classifier": "BertForSequenceClassification",
    "tagger": "BertForTokenClassification",
    "span": "BertForQuestionAnswering",
}
LABEL_LAYERS = {
    "next_sentence": "cls.seq_relationship",
    "pretraining": "cls.seq_relationship",
    "classifier": "classifier",
    "tagger": "classifier",
    "span": "qa_outputs",
}


class HFConfig(Config):
    """Keys of config.json that affect the computation, with their defaults; a Literal is the only supported value."""

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12
    tie_word_embeddings: bool = True
    architectures: StringList | None = None
    num_labels: int = 2
    id2label: dict[str, Any] | None = None
    position_embedding_type: Literal["absolute"] = "absolute"
    is_decoder: Literal[False] = False
    add_cross_attention: Literal[False] = False


def read_config(data: Mapping[str, Any], names: Collection[str]) -> BertConfig:
    """Return our config; the head and the pooler are inferred from the tensor names."""
    their = parse_config(HFConfig, data, "bert")
    pooler = any(name.removeprefix("bert.").startswith("pooler.") for name in names)
    head = _head(names, pooler, their.architectures or ())
    label_names = read_labels(their.id2label, "bert") if head in LABEL_HEADS and their.id2label is not None else ()
    return BertConfig(
        vocab_size=their.vocab_size,
        head=head,
        labels=len(label_names) or their.num_labels,
        label_names=label_names,
        dim=their.hidden_size,
        heads=their.num_attention_heads,
        layers=their.num_hidden_layers,
        ffn_dim=their.intermediate_size,
        segments=their.type_vocab_size,
        max_length=their.max_position_embeddings,
        activation=from_hf_activation(their.hidden_act),
        dropout=their.hidden_dropout_prob,
        attention_dropout=their.attention_probs_dropout_prob,
        pooler=pooler,
        tie_embeddings=their.tie_word_embeddings,
        layer_norm_eps=their.layer_norm_eps,
    )


def _head(names: Collection[str], pooler: bool, architectures: tuple[str, ...]) -> Head | None:
    """Infer the head from the tensor names; `architectures` distinguishes a classifier from a tagger."""
    layers = {name.rpartition(".")[0] for name in names}
    has_mlm_head = any(layer.startswith("cls.predictions") for layer in layers)
    if "cls.seq_relationship" in layers:
        return "pretraining" if has_mlm_head else "next_sentence"
    if has_mlm_head:
        return "masked_lm"
    if "qa_outputs" in layers:
        return "span"
    if "classifier" not in layers:
        return None
    if "BertForMultipleChoice" in architectures:
        raise InputError("bert: BertForMultipleChoice is not supported")
    return "classifier" if pooler and ARCHITECTURES["tagger"] not in architectures else "tagger"


def write_config(config: BertConfig) -> dict[str, Any]:
    require_supported(config, "bert")
    return {
        "architectures": [ARCHITECTURES[config.head]],
        "vocab_size": config.vocab_size,
        "hidden_size": config.dim,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "intermediate_size": config.ffn_dim or 4 * config.dim,
        "hidden_act": to_hf_activation(config.activation),
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
        "max_position_embeddings": config.max_length,
        "type_vocab_size": config.segments,
        "layer_norm_eps": config.layer_norm_eps,
        "tie_word_embeddings": config.tie_embeddings,
        **(write_labels(config.label_names, config.labels) if config.head in LABEL_HEADS else {}),
    }


def weights(config: BertConfig) -> WeightMap:
    """Return the weight map; W_Q, W_K and W_V are concatenated into one matrix here."""
    require_supported(config, "bert")
    require(config.tree == "none", f"transformers' bert has no tree positions, but this model has tree {config.tree!r}")
    embeddings = "bert.embeddings"
    table = [
        Weight("embed.tokens.weight", (f"{embeddings}.word_embeddings.weight",)),
        Weight("embed.segments.weight", (f"{embeddings}.token_type_embeddings.weight",)),
        Weight("embed.positions.weight", (f"{embeddings}.position_embeddings.weight",)),
        *pair("embed.norm", f"{embeddings}.LayerNorm"),
    ]
    for number in range(config.layers):
        ours, theirs = f"encoder.{number}", f"bert.encoder.layer.{number}"
        table += pair(
            f"{ours}.attention.qkv_proj", *(f"{theirs}.attention.self.{x}" for x in ("query", "key", "value"))
        )
        table += pair(f"{ours}.attention.out_proj", f"{theirs}.attention.output.dense")
        table += pair(f"{ours}.attention_norm", f"{theirs}.attention.output.LayerNorm")
        table += pair(f"{ours}.ffn.up_proj", f"{theirs}.intermediate.dense")
        table += pair(f"{ours}.ffn.down_proj", f"{theirs}.output.dense")
        table += pair(f"{ours}.ffn_norm", f"{theirs}.output.LayerNorm")
    table += pair("pooler", "bert.pooler.dense") if config.pooler else []
    copies: dict[str, str] = {}
    ignored = [r"(bert\.)?embeddings\.position_ids"]  # arange, stored in old files
    if config.head in MLM_HEADS:
        words, readout = "cls.predictions", "cls.predictions.decoder"
        table += pair("mlm_head.transform", f"{words}.transform.dense") + pair(
            "mlm_head.norm", f"{words}.transform.LayerNorm"
        )
        if config.tie_embeddings:
            table += [Weight("mlm_head.readout.bias", (f"{words}.bias",))]
            copies = {f"{readout}.weight": f"{embeddings}.word_embeddings.weight", f"{readout}.bias": f"{words}.bias"}
        else:
            table += pair("mlm_head.readout", readout)
            ignored.append(re.escape(f"{words}.bias"))  # unused duplicate of the bias
    table += pair("label", LABEL_LAYERS[config.head]) if config.head in LABEL_LAYERS else []
    old = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
    return WeightMap(tuple(table), copies, tuple(ignored), prefix="bert.", spellings=old)


FAMILY = Family("bert", Bert, read_config, write_config, weights)
