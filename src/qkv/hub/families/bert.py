"""BERT in the format of Hugging Face transformers (model_type bert), with any of its heads."""

import re
from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal

from qkv.config import StringList, require
from qkv.errors import InputError
from qkv.hub.families.config_json import HFConfig, read_labels, require_supported, write_labels
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


class ConfigKeys(HFConfig):
    """Keys of config.json."""

    vocab_size: Annotated[int, "vocab_size"] = 30522
    hidden_size: Annotated[int, "dim"] = 768
    num_hidden_layers: Annotated[int, "layers"] = 12
    num_attention_heads: Annotated[int, "heads"] = 12
    intermediate_size: Annotated[int, "ffn_dim"] = 3072
    hidden_act: Annotated[str, "activation"] = "gelu"
    hidden_dropout_prob: Annotated[float, "dropout"] = 0.1
    attention_probs_dropout_prob: Annotated[float, "attention_dropout"] = 0.1
    max_position_embeddings: Annotated[int, "max_length"] = 512
    type_vocab_size: Annotated[int, "segments"] = 2
    layer_norm_eps: Annotated[float, "layer_norm_eps"] = 1e-12
    tie_word_embeddings: Annotated[bool, "tie_embeddings"] = True
    architectures: StringList | None = None
    num_labels: int = 2
    id2label: dict[str, Any] | None = None
    position_embedding_type: Literal["absolute"] = "absolute"
    is_decoder: Literal[False] = False
    add_cross_attention: Literal[False] = False


def read_config(data: Mapping[str, Any], names: Collection[str]) -> BertConfig:
    """Return our config; the head and the pooler are inferred from the tensor names."""
    their = ConfigKeys.parse(data, "bert")
    pooler = any(name.removeprefix("bert.").startswith("pooler.") for name in names)
    head = _head(names, pooler, their.architectures or ())
    label_names = read_labels(their.id2label, "bert") if head in LABEL_HEADS else ()
    return BertConfig(
        **their.to_ours(),
        head=head,
        labels=len(label_names) or their.num_labels,
        label_names=label_names,
        pooler=pooler,
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
    return {
        "architectures": [ARCHITECTURES[config.head]],
        **ConfigKeys.from_ours(config),
        "intermediate_size": config.ffn_dim or 4 * config.dim,
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
