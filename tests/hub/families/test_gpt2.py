"""GPT-2 in Hugging Face format: outputs equal those of transformers, and round trips."""

import json
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import qkv
from qkv.attention import Causal
from qkv.errors import CheckpointError, InputError
from qkv.generation import DecodingConstraints, greedy_search
from qkv.hub.conversion import convert
from qkv.hub.families.gpt2 import FAMILY, read_config, write_config
from qkv.hub.released import write_released
from qkv.models.gpt2 import GPT2, GPT2Config

transformers = pytest.importorskip("transformers")

SIZES = {"vocab_size": 31, "n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": 80, "bos_token_id": None,
         "eos_token_id": None}  # fmt: skip
ODD: dict[str, dict[str, Any]] = {
    "as it is": {},
    "head size 40": {"n_embd": 80, "n_head": 2},
    "one layer, one head": {"n_layer": 1, "n_head": 1},
    "five layers of one feature a head": {"n_layer": 5, "n_head": 24},
    "untied": {"tie_word_embeddings": False},
    "narrow inside": {"n_inner": 7},
    "exact gelu": {"activation_function": "gelu"},
    "gelu by PyTorch's tanh": {"activation_function": "gelu_pytorch_tanh"},
    "relu": {"activation_function": "relu"},
    "silu": {"activation_function": "silu"},
    "coarse norms": {"layer_norm_epsilon": 0.1},
    "upcast": {"reorder_and_upcast_attn": True},
    "unscaled": {"scale_attn_weights": False},
    "scaled by layer": {"scale_attn_by_inverse_layer_idx": True, "n_layer": 3},
    "scaled by layer alone": {"scale_attn_by_inverse_layer_idx": True, "scale_attn_weights": False, "n_layer": 3},
    "scaled by layer and upcast": {"scale_attn_by_inverse_layer_idx": True, "reorder_and_upcast_attn": True},
}


def theirs(**changes: Any) -> Any:
    """Return a transformers model with random weights, so that no default value hides a mistake."""
    torch.manual_seed(7)
    config = transformers.GPT2Config(**{**SIZES, **changes}, attn_implementation="eager")
    model = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.2)
    return model


def some_tokens(batch: int = 3, length: int = 10) -> Tensor:
    return torch.randint(SIZES["vocab_size"], (batch, length), generator=torch.Generator().manual_seed(5))


def outputs(layers: Any) -> list[Tensor]:
    """Record the outputs of each layer."""
    seen: list[Tensor] = []
    for layer in layers:
        layer.register_forward_hook(lambda _, __, out: seen.append(out[0] if isinstance(out, tuple) else out))
    return seen


def assert_same(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("changes", ODD.values(), ids=ODD)
@torch.inference_mode()
def test_logits_hidden_states_and_attention_equal_transformers(changes, tmp_path):
    hf, tokens = theirs(**changes), some_tokens()
    hf.save_pretrained(tmp_path)
    model = qkv.load(tmp_path)
    assert isinstance(model, GPT2)
    assert not model.training
    found, expected = outputs(model.blocks), outputs(hf.transformer.h)
    said = hf(tokens, output_attentions=True)
    with qkv.watch(model) as seen:
        logits = model(tokens)
    assert_same(logits, said.logits)
    assert len(found) == len(expected) == len(said.attentions) == model.config.layers
    for number, (ours, hidden, weights) in enumerate(zip(found, expected, said.attentions, strict=True)):
        assert_same(ours, hidden)
        assert_same(seen[f"blocks.{number}"].weights, weights)


@torch.inference_mode()
def test_left_padded_batches_equal_transformers(tmp_path):
    hf, tokens, padding = theirs(), some_tokens(), torch.tensor([0, 4, 9])
    hf.save_pretrained(tmp_path)
    model = qkv.load(tmp_path)
    real = torch.arange(10) >= padding[:, None]
    said = hf(
        tokens, attention_mask=real.long(), position_ids=(real.cumsum(1) - 1).clamp(min=0), output_attentions=True
    )
    with qkv.watch(model) as seen:
        logits = model(tokens, padding=padding)
    assert_same(logits[real], said.logits[real])
    for number, weights in enumerate(said.attentions):
        by_token = seen[f"blocks.{number}"].weights.transpose(1, 2)
        assert_same(by_token[real], weights.transpose(1, 2)[real])


@pytest.mark.parametrize("changes", [{}, {"tie_word_embeddings": False, "n_embd": 80, "n_head": 2}])
@torch.inference_mode()
def test_fifty_greedy_tokens_equal_transformers(changes, tmp_path):
    hf, tokens, padding = theirs(**changes), some_tokens(), torch.tensor([0, 4, 9])
    hf.transformer.wpe.weight.normal_(std=2)  # so that a text does not repeat one token
    hf.save_pretrained(tmp_path)
    model = qkv.load(tmp_path)
    real = (torch.arange(10) >= padding[:, None]).long()
    expected = hf.generate(tokens, attention_mask=real, max_new_tokens=50, do_sample=False, pad_token_id=0)[:, 10:]
    _, state = model.forward_from(tokens[:, :-1], model.init_state(3, padding))
    rules = DecodingConstraints(batch=3, begin=tokens[:, -1].tolist(), end=None, max_new_tokens=50)
    assert [list(one.tokens) for one in greedy_search(model, state, rules)] == expected.tolist()
    assert len(expected.unique()) > 5


ATTENTION = ("scale_attn_weights", "scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn")


@pytest.mark.parametrize("weights", [True, False])
@pytest.mark.parametrize("by_layer", [True, False])
@pytest.mark.parametrize("upcast", [True, False])
def test_conversion_keeps_the_attention_scaling(weights, by_layer, upcast, tmp_path):
    values = dict(zip(ATTENTION, (weights, by_layer, upcast), strict=True))
    theirs(**values).save_pretrained(tmp_path / "there")
    convert(tmp_path / "there", tmp_path / "ours", "qkv")
    convert(tmp_path / "ours", tmp_path / "back", "hf")
    written = json.loads((tmp_path / "back" / "config.json").read_text())
    assert {key: written[key] for key in ATTENTION} == values


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@torch.inference_mode()
def test_half_precision_scores_are_upcast_to_float32(dtype, tmp_path):
    """With scores around 100, of which half precision keeps one digit after the point or none."""
    hf = theirs(reorder_and_upcast_attn=True, scale_attn_by_inverse_layer_idx=True, scale_attn_weights=False).to(dtype)
    attention = hf.transformer.h[0].attn
    attention.c_attn.weight.mul_(3)
    hf.save_pretrained(tmp_path)
    model = qkv.load(tmp_path, dtype=dtype)
    x = torch.randn(2, 10, SIZES["n_embd"], generator=torch.Generator().manual_seed(1)).to(dtype)
    mask = torch.full((10, 10), -torch.inf).triu(1).to(dtype)
    expected, weights = attention(x, attention_mask=mask[None, None])
    with qkv.watch(model) as seen:
        found, _ = model.blocks[0].attention(x, Causal())
    torch.testing.assert_close(seen["blocks.0"].weights.to(dtype), weights, rtol=2e-2, atol=1e-3)
    torch.testing.assert_close(found, expected, rtol=3e-2, atol=3e-2)
    attention.reorder_and_upcast_attn = False
    rounded, _ = attention(x, attention_mask=mask[None, None])
    assert (found - expected).abs().max() < (rounded - expected).abs().max() / 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_files_of_any_float_dtype_are_read_exactly(dtype, tmp_path):
    hf = theirs().to(dtype)
    hf.save_pretrained(tmp_path)
    for model in (qkv.load(tmp_path), qkv.load(tmp_path, dtype=dtype)):
        for number, block in enumerate(model.blocks):
            weight = hf.transformer.h[number].attn.c_attn.weight.T
            assert block.attention.qkv_proj.weight.equal(weight.to(block.attention.qkv_proj.weight.dtype))
    assert {weight.dtype for weight in qkv.load(tmp_path).parameters()} == {torch.float32}
    assert {weight.dtype for weight in qkv.load(tmp_path, dtype=dtype).parameters()} == {dtype}


@pytest.mark.parametrize("changes", ODD.values(), ids=ODD)
@torch.inference_mode()
def test_round_trip_through_transformers(changes, tmp_path):
    hf, tokens = theirs(**changes), some_tokens()
    there, back = tmp_path / "there", tmp_path / "back"
    back.mkdir()
    hf.save_pretrained(there)
    model = qkv.load(there)
    write_released(model, FAMILY, back)
    returned, info = transformers.GPT2LMHeadModel.from_pretrained(
        back, output_loading_info=True, attn_implementation="eager"
    )
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"))
    assert_same(returned(tokens).logits, hf(tokens).logits)
    assert returned.state_dict().keys() == hf.state_dict().keys()
    assert all(weight.equal(hf.state_dict()[name]) for name, weight in returned.state_dict().items())
    again = qkv.load(back)
    assert again.config == model.config
    assert all(one.equal(other) for one, other in zip(again.parameters(), model.parameters(), strict=True))
    assert again(tokens).equal(model(tokens))


@torch.inference_mode()
def test_a_qkv_model_loads_in_transformers(tmp_path):
    torch.manual_seed(1)
    model = GPT2(GPT2Config(vocab_size=31, dim=16, heads=2, layers=2, max_length=12)).eval()
    write_released(model, FAMILY, tmp_path)
    hf = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert_same(hf(some_tokens()).logits, model(some_tokens()))
    assert hf.config.bos_token_id is hf.config.eos_token_id is None  # there is no token 50,256


@torch.inference_mode()
def test_the_original_release_format_is_read(tmp_path):
    """The body alone, with its causal masks as tensors, and an output layer that is a copy of the embedding."""
    hf, tokens = theirs(), some_tokens()
    hf.transformer.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    assert "wte.weight" in weights
    for number in range(2):
        weights[f"h.{number}.attn.bias"] = torch.ones(1, 1, 80, 80).tril()
        weights[f"h.{number}.attn.masked_bias"] = torch.tensor(-1e4)
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    assert_same(qkv.load(tmp_path)(tokens), hf(tokens).logits)

    whole = {f"transformer.{name}": weight for name, weight in weights.items()}
    whole["lm_head.weight"] = weights["wte.weight"].clone()
    save_file(whole, tmp_path / "model.safetensors", {"format": "pt"})
    assert_same(qkv.load(tmp_path)(tokens), hf(tokens).logits)
    whole["lm_head.weight"] += 1
    save_file(whole, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"lm_head\.weight must equal transformer\.wte\.weight"):
        qkv.load(tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"scale_attn_by_inverse_layer_idx": 1}, "scale_attn_by_inverse_layer_idx"),
        ({"add_cross_attention": True}, "add_cross_attention = True"),
        ({"activation_function": "quick_gelu"}, "unknown activation 'quick_gelu'"),
        ({"activation_function": ["gelu"]}, "activation_function must be a string"),
        ({"n_embd": "24"}, "n_embd must be an integer"),
        ({"n_embd": True}, "n_embd must be an integer"),
        ({"n_layer": 1e3}, "n_layer must be an integer"),
        ({"n_layer": 10**12}, "layers must"),
        ({"n_head": 5}, "heads"),
        ({"n_positions": 0}, "max_length must"),
        ({"layer_norm_epsilon": float("inf")}, "eps must"),
        ({"tie_word_embeddings": None}, "tie_word_embeddings must be true or false"),
    ],
)
def test_unsupported_configs_are_errors(changes, words, tmp_path):
    theirs().save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(CheckpointError, match=words) as error:
        qkv.load(tmp_path)
    assert str(error.value).startswith(str(path))


def test_missing_keys_have_the_defaults_of_transformers():
    ours = read_config({}, ())
    assert (ours.vocab_size, ours.dim, ours.layers, ours.heads, ours.max_length) == (50257, 768, 12, 12, 1024)
    assert read_config(write_config(ours), ()) == ours
    assert write_config(ours)["eos_token_id"] == 50256
    for key, value in transformers.GPT2Config().to_dict().items():
        assert write_config(ours).get(key, value) == value or key == "architectures"


@pytest.mark.parametrize("changes", [{"position": "rotary"}, {"score": "additive"}, {"align": "sparsemax"}])
def test_a_model_without_transformers_counterpart_is_not_written(changes, tmp_path):
    model = GPT2(GPT2Config(vocab_size=31, dim=16, heads=2, layers=1, max_length=12, **changes))
    with pytest.raises(InputError, match=f"transformers' {FAMILY.model_type} requires"):
        write_released(model, FAMILY, tmp_path)
    assert not any(tmp_path.iterdir())


def test_a_model_changed_in_python_has_the_same_logits_in_transformers(tmp_path):
    theirs().save_pretrained(tmp_path / "released")
    model, tokens = qkv.load(tmp_path / "released"), some_tokens()
    with torch.no_grad():
        model.embed.weight.mul_(1.5)
    convert(qkv.save(model, tmp_path / "saved"), str(tmp_path / "converted"))
    converted = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "converted").eval()
    torch.testing.assert_close(model(tokens), converted(tokens).logits, rtol=1e-4, atol=1e-5)
