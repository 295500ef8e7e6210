"""ViT in the format of Hugging Face transformers (model_type vit), with a classifier, a pooler or no head."""

from collections.abc import Collection, Mapping
from typing import Annotated, Any

from qkv.config import require
from qkv.hub.families.config_json import HFConfig, read_labels, require_supported, write_labels
from qkv.hub.weight_map import Family, Weight, WeightMap, pair
from qkv.models.vit import ViT, ViTConfig


class ConfigKeys(HFConfig):
    """Keys of config.json."""

    hidden_size: Annotated[int, "dim"] = 768
    num_hidden_layers: Annotated[int, "layers"] = 12
    num_attention_heads: Annotated[int, "heads"] = 12
    head_dim: int | None = None
    intermediate_size: Annotated[int, "ffn_dim"] = 3072
    hidden_act: Annotated[str, "activation"] = "gelu"
    hidden_dropout_prob: Annotated[float, "dropout"] = 0.0
    attention_probs_dropout_prob: Annotated[float, "attention_dropout"] = 0.0
    layer_norm_eps: Annotated[float, "layer_norm_eps"] = 1e-12
    image_size: tuple[int, ...] = (224, 224)
    patch_size: tuple[int, ...] = (16, 16)
    num_channels: Annotated[int, "channels"] = 3
    qkv_bias: Annotated[bool, "qkv_bias"] = True
    pooler_output_size: int | None = None
    pooler_act: str = "tanh"
    num_labels: int = 2
    id2label: dict[str, Any] | None = None


def read_config(data: Mapping[str, Any], names: Collection[str]) -> ViTConfig:
    """Return our config; the head is inferred from the tensor names."""
    data = {key: _height_width(value) if key in ("image_size", "patch_size") else value for key, value in data.items()}
    their = ConfigKeys.parse(data, "vit")
    require(
        not any(name.startswith("decoder.") for name in names),
        "vit: masked image modeling heads are not supported",
    )
    for key in ("image_size", "patch_size"):
        require(len(getattr(their, key)) == 2, f"vit: {key} must be an integer or (height, width)")
    patch, patch_width = their.patch_size
    require(patch == patch_width, f"vit: patches must be square, not {patch} x {patch_width}")
    require(
        their.head_dim is None or their.head_dim * their.num_attention_heads == their.hidden_size,
        f"vit: head_dim {their.head_dim} must equal hidden_size / num_attention_heads",
    )
    classifies = "classifier.weight" in names
    # The classifier uses the class token directly; transformers ignores a pooler in its files.
    pooler = not classifies and any(name.removeprefix("vit.").startswith("pooler.") for name in names)
    require(
        not pooler or (their.pooler_act == "tanh" and their.pooler_output_size in (None, their.hidden_size)),
        f"vit: a pooler with output size {their.pooler_output_size} and {their.pooler_act} is not supported; expected "
        f"{their.hidden_size} and tanh",
    )
    label_names = read_labels(their.id2label, "vit") if classifies else ()
    return ViTConfig(
        **their.to_ours(),
        classes=(len(label_names) or their.num_labels) if classifies else None,
        label_names=label_names,
        height=their.image_size[0],
        width=their.image_size[1],
        patch=patch,
        pooler=pooler,
    )


def _height_width(size: Any) -> Any:
    """Expand a single size to (height, width)."""
    return [size, size] if isinstance(size, int) else size


def write_config(config: ViTConfig) -> dict[str, Any]:
    require_supported(config, "vit")
    require(not config.stem, "transformers' vit has no convolutional stem")
    require(config.classes is None or not config.pooler, "transformers' vit has a classifier or a pooler, not both")
    return {
        "architectures": ["ViTModel" if config.classes is None else "ViTForImageClassification"],
        **ConfigKeys.from_ours(config),
        "attention_probs_dropout_prob": config.attention_dropout_p,
        "image_size": config.height if config.height == config.width else [config.height, config.width],
        "patch_size": config.patch,
        "encoder_stride": config.patch,
        **({} if config.classes is None else write_labels(config.label_names, config.classes)),
    }


def weights(config: ViTConfig) -> WeightMap:
    """Return the weight map; W_Q, W_K and W_V are concatenated into one matrix here."""
    table = [
        Weight("class_token", ("vit.embeddings.cls_token",)),
        Weight("positions.weight", ("vit.embeddings.position_embeddings",), batched=True),
        *pair("patch_embed", "vit.embeddings.patch_embeddings.projection"),
    ]
    for number in range(config.layers):
        ours, theirs = f"encoder.{number}", f"vit.encoder.layer.{number}"
        parts = [f"{theirs}.attention.attention.{part}" for part in ("query", "key", "value")]
        table += pair(f"{ours}.attention.qkv_proj", *parts)[: 2 if config.qkv_bias else 1]
        table += pair(f"{ours}.attention.out_proj", f"{theirs}.attention.output.dense")
        table += pair(f"{ours}.attention_norm", f"{theirs}.layernorm_before")
        table += pair(f"{ours}.ffn.up_proj", f"{theirs}.intermediate.dense")
        table += pair(f"{ours}.ffn.down_proj", f"{theirs}.output.dense")
        table += pair(f"{ours}.ffn_norm", f"{theirs}.layernorm_after")
    table += pair("norm", "vit.layernorm")
    table += pair("pooler", "vit.pooler.dense") if config.pooler else []
    table += pair("head", "classifier") if config.classes is not None else []
    ignored = (
        r"(vit\.)?pooler\.dense\.(weight|bias)",  # unused next to a classifier
        r"(vit\.)?embeddings\.mask_token",  # used in masked pre-training only
    )
    return WeightMap(tuple(table), ignored=ignored, prefix="vit.")


FAMILY = Family("vit", ViT, read_config, write_config, weights)
