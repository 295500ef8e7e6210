"""Llama in Hugging Face format: outputs equal those of transformers, and round trips."""

import json
from typing import Any

import pytest
import torch
from torch import Tensor

import qkv
from qkv.errors import CheckpointError, InputError
from qkv.generation import DecodingConstraints, greedy_search
from qkv.hub.conversion import convert
from qkv.hub.families.llama import FAMILY, read_config, write_config
from qkv.hub.released import write_released
from qkv.models.llama import Llama, LlamaConfig

transformers = pytest.importorskip("transformers")

SIZES = {
    "vocab_size": 31,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 80,
    "bos_token_id": None,
    "eos_token_id": None,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "grouped keys": {},
    "plain": {"num_key_value_heads": 6},
    "one key head": {"num_key_value_heads": 1, "num_hidden_layers": 3},
    "tied": {"tie_word_embeddings": True},
    "base 500000": {"rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"}},
    "gelu": {"hidden_act": "gelu"},
    "coarse norms": {"rms_norm_eps": 0.1},
}


def theirs(**changes: Any) -> Any:
    """Return a transformers model with random weights, so that no default value hides a mistake."""
    torch.manual_seed(7)
    config = transformers.LlamaConfig(**{**SIZES, **changes}, attn_implementation="eager")
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.2)
    return model


def some_tokens(batch: int = 3, length: int = 10) -> Tensor:
    return torch.randint(SIZES["vocab_size"], (batch, length), generator=torch.Generator().manual_seed(5))


def assert_same(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
@torch.inference_mode()
def test_logits_and_attention_equal_transformers(changes, tmp_path):
    hf, tokens = theirs(**changes), some_tokens()
    hf.save_pretrained(tmp_path)
    model = qkv.load(tmp_path)
    assert isinstance(model, Llama)
    expected = hf(tokens, output_attentions=True)
    with qkv.watch(model) as seen:
        logits = model(tokens)
    assert_same(logits, expected.logits)
    for number, weights in enumerate(expected.attentions):
        assert_same(seen[f"blocks.{number}"].weights, weights)


@torch.inference_mode()
def test_greedy_search_of_left_padded_prompts_equals_transformers(tmp_path):
    hf, tokens, padding = theirs(), some_tokens(), torch.tensor([0, 4, 9])
    hf.save_pretrained(tmp_path)
    model = qkv.load(tmp_path)
    mask = (torch.arange(10) >= padding[:, None]).long()
    expected = hf.generate(tokens, attention_mask=mask, max_new_tokens=40, do_sample=False, pad_token_id=0)[:, 10:]
    _, state = model.forward_from(tokens[:, :-1], model.init_state(3, padding))
    constraints = DecodingConstraints(batch=3, begin=tokens[:, -1].tolist(), end=None, max_new_tokens=40)
    assert [list(text.tokens) for text in greedy_search(model, state, constraints)] == expected.tolist()
    assert len(expected.unique()) > 5


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
@torch.inference_mode()
def test_round_trip_through_transformers(changes, tmp_path):
    hf, tokens = theirs(**changes), some_tokens()
    hf.save_pretrained(tmp_path / "there")
    convert(tmp_path / "there", tmp_path / "ours", "qkv")
    convert(tmp_path / "ours", tmp_path / "back", "hf")
    returned, info = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"))
    assert all(weight.equal(hf.state_dict()[name]) for name, weight in returned.state_dict().items())
    assert_same(returned(tokens).logits, hf(tokens).logits)
    assert qkv.load(tmp_path / "back").config == qkv.load(tmp_path / "there").config


@torch.inference_mode()
def test_a_qkv_model_loads_in_transformers(tmp_path):
    torch.manual_seed(1)
    model = Llama(LlamaConfig(vocab_size=31, dim=16, heads=4, kv_heads=2, layers=2, max_length=12)).eval()
    write_released(model, FAMILY, tmp_path)
    hf = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert_same(hf(some_tokens()).logits, model(some_tokens()))


@torch.inference_mode()
def test_the_keys_of_older_transformers_are_read(tmp_path):
    hf = theirs(rope_parameters={"rope_theta": 500000.0, "rope_type": "default"})
    hf.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
    path.write_text(json.dumps(config | {"rope_scaling": None}))
    assert_same(qkv.load(tmp_path)(some_tokens()), hf(some_tokens()).logits)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"rope_scaling": {"factor": 8.0, "rope_type": "llama3"}}, "rope_scaling"),
        ({"rope_parameters": {"rope_theta": 1e4, "rope_type": "yarn"}}, "rope_type"),
        ({"head_dim": 8}, "head_dim must be 4"),
        ({"num_key_value_heads": 4}, "kv_heads 4"),
        ({"num_key_value_heads": 0}, "kv_heads"),
        ({"hidden_act": "quick_gelu"}, "unknown activation 'quick_gelu'"),
        ({"rms_norm_eps": float("inf")}, "eps must"),
        ({"num_hidden_layers": 10**12}, "layers must"),
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
    ours, defaults = read_config({}, ()), transformers.LlamaConfig().to_dict()
    assert (ours.vocab_size, ours.dim, ours.layers, ours.heads, ours.ffn_dim) == (32000, 4096, 32, 32, 11008)
    written = write_config(ours)
    assert {key: defaults[key] for key in written.keys() & defaults.keys() - {"architectures"}} == {
        key: written[key] for key in written.keys() & defaults.keys() - {"architectures"}
    }


@pytest.mark.parametrize("changes", [{"position": "alibi"}, {"score": "additive"}, {"align": "sparsemax"}])
def test_a_model_without_transformers_counterpart_is_not_written(changes, tmp_path):
    model = Llama(LlamaConfig(vocab_size=31, dim=16, heads=2, layers=1, max_length=12, **changes))
    with pytest.raises(InputError, match="transformers' llama requires"):
        write_released(model, FAMILY, tmp_path)
    assert not any(tmp_path.iterdir())
