"""Checkpoints with int8 weights: round trips, memory-mapped weights, and errors for malformed files."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import qkv
from qkv.errors import CheckpointError, InputError
from qkv.generation import Engine, GenerationConfig, Request, Tokens
from qkv.generation.cpu import packed_stack
from qkv.hub import convert, load, save_model
from qkv.hub.released import CONFIG
from qkv.hub.tensors import WEIGHTS
from qkv.models.gpt2 import GPT2, GPT2Config
from qkv.models.rnn_lm import RNNLM, RNNLMConfig
from qkv.models.transformer import Transformer, TransformerConfig
from qkv.nn.quantized import QuantizedEmbedding, QuantizedLinear, quantize
from qkv.pipelines.generator import Generator
from qkv.pipelines.translator import Translator
from qkv.runtime.mapped import release_pages
from qkv.tokenizers import CharTokenizer
from qkv.training.finetune import load_pretrained
from tests.limits import memory_limit

TOKENIZER = CharTokenizer.train(["abc def"])
SIZES = {
    "gpt2": {"vocab_size": len(TOKENIZER), "dim": 32, "heads": 4, "layers": 2, "max_length": 32},
    "transformer": {
        "source_vocab_size": len(TOKENIZER), "target_vocab_size": len(TOKENIZER), "dim": 32, "heads": 4,
        "encoder_layers": 1, "decoder_layers": 2, "ffn_dim": 64, "max_length": 32,
    },
}  # fmt: skip
TOKENS = torch.tensor([[4, 5, 6, 7], [8, 4, 9, 1]])


def build(name: str, **options: Any) -> Any:
    torch.manual_seed(0)
    if name == "gpt2":
        return GPT2(GPT2Config(**SIZES[name], **options)).eval()
    return Transformer(TransformerConfig(**SIZES[name], **options)).eval()


def saved(model: Any, folder: Path) -> Path:
    folder.mkdir()
    save_model(model, TOKENIZER, folder)
    return folder


@pytest.fixture
def int8(tmp_path: Path) -> Path:
    """A quantized GPT-2."""
    convert(saved(build("gpt2"), tmp_path / "float32"), tmp_path / "int8", dtype=torch.int8)
    return tmp_path / "int8"


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(TOKENS) if isinstance(model, GPT2) else model(TOKENS, TOKENS)


def test_type_of_the_weights_by_name(tmp_path):
    folder = saved(build("gpt2"), tmp_path / "model")
    assert load(folder, dtype="bfloat16").embed.weight.dtype == torch.bfloat16
    for name in ("int8", "bfloat", "load", torch.int8):
        with pytest.raises(InputError, match="floating-point"):
            load(folder, dtype=name)


@pytest.mark.parametrize("name", ["gpt2", "transformer"])
@pytest.mark.parametrize("tied", [True, False])
def test_round_trip(name, tied, tmp_path):
    model = build(name, tie_embeddings=tied)
    written = convert(saved(model, tmp_path / "in"), str(tmp_path / "out"), dtype="int8")
    with pytest.raises(InputError, match="bfloat16"):
        convert(tmp_path / "in", tmp_path / "other", dtype="bfloat")
    assert json.loads((tmp_path / "out" / CONFIG).read_text())["quantization"] == "int8"
    stored = load_file(tmp_path / "out" / WEIGHTS)
    assert written.size == sum(tensor.nbytes for tensor in stored.values())
    assert written.parameters == sum(weight.numel() for weight in model.parameters())
    assert written.dtype == "int8"
    matrices = {key for key, weight in model.named_parameters() if weight.ndim == 2 and "position" not in key}
    for key, weight in model.named_parameters():
        if key in matrices:
            q, scale = quantize(weight.detach())
            assert torch.equal(stored[key], q)
            assert torch.equal(stored[f"{key}_scale"], scale)
        else:
            assert torch.equal(stored[key], weight)
    assert stored.keys() == {key for key, _ in model.named_parameters()} | {f"{key}_scale" for key in matrices}
    again = qkv.load(tmp_path / "out")
    assert again.tokenizer.to_json() == TOKENIZER.to_json()
    assert (again.readout.weight is dict(again.named_parameters()).get("readout.weight")) is not tied
    assert all(torch.equal(weight, stored[key]) for key, weight in again.named_parameters())
    error = (logits(again) - logits(model)).norm() / logits(model).norm()
    assert error < 0.03
    saved(again, tmp_path / "again")
    assert (tmp_path / "again" / WEIGHTS).read_bytes() == (tmp_path / "out" / WEIGHTS).read_bytes()
    assert (tmp_path / "again" / CONFIG).read_bytes() == (tmp_path / "out" / CONFIG).read_bytes()


def test_perplexity_of_a_quantized_model_is_close(int8):
    def loss(model: GPT2) -> float:
        return float(torch.nn.functional.cross_entropy(logits(model)[:, :-1].flatten(0, 1), TOKENS[:, 1:].flatten()))

    assert loss(load(int8)) == pytest.approx(loss(load(int8.parent / "float32")), rel=0.01)


def test_layers_are_quantized_and_the_weights_mapped(int8):
    model = load(int8)
    assert isinstance(model.embed, QuantizedEmbedding)
    assert isinstance(model.blocks[0].ffn.up_proj, QuantizedLinear)
    assert model.readout.weight is model.embed.weight
    assert model.readout.weight_scale is model.embed.weight_scale
    assert str(int8 / WEIGHTS) in Path("/proc/self/maps").read_text()
    before = logits(model)
    for weight in model.parameters():
        release_pages(weight)
    assert torch.equal(logits(model), before)
    assert load(int8, dtype=torch.bfloat16)(TOKENS).dtype == torch.bfloat16


def test_pages_of_other_memory_are_not_released():
    tensor = torch.ones(2**20)
    release_pages(tensor)
    assert bool(tensor.eq(1).all())


def test_pages_of_modified_weights_are_not_released(tmp_path):
    model = build("gpt2")
    model.blocks[0].ffn.up_proj = torch.nn.Linear(32, 128)
    convert(saved(model, tmp_path / "in"), tmp_path / "out", dtype=torch.int8)
    weight = load(tmp_path / "out").blocks[0].ffn.up_proj.weight
    weight.fill_(3)
    release_pages(weight)
    assert bool(weight.eq(3).all())


def decode(engine: Engine, **more: Any) -> list[Any]:
    requests = [Request([4, 5], 8, **more), Request([6], 8, **more)]
    return sorted(engine.decode(requests, Tokens(3), GenerationConfig()))


@pytest.mark.parametrize("name", ["gpt2", "transformer"])
def test_the_engine_uses_the_stored_weights(name, tmp_path, monkeypatch):
    model = build(name)
    convert(saved(model, tmp_path / "in"), tmp_path / "out", dtype=torch.int8)
    source = {} if name == "gpt2" else {"source": [4, 5, 6]}
    expected = decode(Engine.build(model, "int8"), **source)
    monkeypatch.delattr(packed_stack, "quantize")
    engine = Engine.build(load(tmp_path / "out"))
    assert "int8" in engine.description
    for (_, (hypothesis,)), (_, (other,)) in zip(decode(engine, **source), expected, strict=True):
        assert hypothesis.tokens == other.tokens
        # The engine keeps the embedding of an encoder in float32.
        assert hypothesis.score == (other.score if name == "gpt2" else pytest.approx(other.score, rel=1e-3))
    assert "float32" in Engine.build(load(tmp_path / "out"), "float32").description


def test_pipelines_of_quantized_models(int8, tmp_path, monkeypatch):
    texts = [Generator(int8, dtype=dtype)("abc", max_new_tokens=5).text for dtype in ("auto", "int8")]
    assert texts[0] == texts[1] == Generator(int8.parent / "float32", dtype="int8")("abc", max_new_tokens=5).text
    monkeypatch.setattr(Generator, "engine", None)
    assert len(Generator(int8, dtype="int8")("abc", max_new_tokens=5).text) == 8
    convert(saved(build("transformer"), tmp_path / "in"), tmp_path / "out", dtype=torch.int8)
    (answer,) = Translator(tmp_path / "out")(["abc"], attention=True, max_new_tokens=5)
    assert answer.alignment is not None


def rnn(folder: Path, hidden_dim: int = 64) -> tuple[Any, Path]:
    torch.manual_seed(0)
    model = RNNLM(RNNLMConfig(vocab_size=len(TOKENIZER), embedding_dim=8, hidden_dim=hidden_dim)).eval()
    return model, saved(model, folder)


def test_other_models_have_int8_files_and_floating_point_weights(tmp_path):
    model, folder = rnn(tmp_path / "float32")
    written = convert(folder, tmp_path / "int8", dtype=torch.int8)
    stored = load_file(tmp_path / "int8" / WEIGHTS)
    assert written.size == sum(tensor.nbytes for tensor in stored.values())
    assert written.size < 0.5 * sum(weight.nbytes for weight in model.parameters())
    again = load(tmp_path / "int8")
    for name, weight in again.named_parameters():
        original = dict(model.named_parameters())[name].detach()
        if stored[name].dtype != torch.int8:
            assert weight.numel() < 4096
            assert torch.equal(weight, original)
            continue
        scale = stored[f"{name}_scale"]
        assert torch.equal(weight, stored[name] * scale[:, None])
        assert bool(((weight - original).abs() <= scale[:, None] * 0.5001).all())
    assert any(tensor.dtype == torch.int8 for tensor in stored.values())
    assert torch.allclose(again(TOKENS), model(TOKENS), atol=0.05)
    assert load(tmp_path / "int8", dtype=torch.bfloat16)(TOKENS).dtype == torch.bfloat16
    edit_tensors(tmp_path / "int8", lambda tensors: tensors.pop(next(name for name in tensors if "_scale" in name)))
    with pytest.raises(CheckpointError, match="missing"):
        load(tmp_path / "int8")


def test_int8_is_not_quantized_again_or_written_for_transformers(tmp_path, int8):
    with pytest.raises(InputError, match="--to qkv"):
        convert(int8.parent / "float32", tmp_path / "out", to="hf", dtype=torch.int8)
    with pytest.raises(InputError, match="already"):
        convert(int8, tmp_path / "out", dtype=torch.int8)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("to", ["hf", "qkv"])
def test_a_quantized_model_converts_to_floating_point(tmp_path, int8, to):
    convert(int8, tmp_path / "out", to=to)
    again = load(tmp_path / "out")
    assert {weight.dtype for weight in again.parameters()} == {torch.float32}
    torch.testing.assert_close(logits(again), logits(load(int8)), rtol=1e-4, atol=1e-5)


def test_a_quantized_model_is_finetuned_in_floating_point(int8, unchecked):
    recipe = SimpleNamespace(init=int8, model_class=GPT2, data=None)
    model = load_pretrained(recipe)
    assert all(weight.dtype == torch.float32 and weight.requires_grad for weight in model.parameters())
    torch.testing.assert_close(logits(model), logits(load(int8)), rtol=1e-4, atol=1e-5)


def edit_tensors(folder: Path, edit: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / WEIGHTS)
    edit(tensors)
    save_file(tensors, folder / WEIGHTS)


def edit_config(folder: Path, **values: Any) -> None:
    config = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps(config | values))


UP = "blocks.1.ffn.up_proj.weight"


@pytest.mark.parametrize(
    ("edit", "word"),
    [
        (lambda t: t.pop(f"{UP}_scale"), "missing"),
        (lambda t: t.pop(UP), "missing"),
        (lambda t: t.update({UP: t[UP][:5].clone()}), "shape"),
        (lambda t: t.update({UP: t[UP].float()}), "F32"),
        (lambda t: t.update({UP: t[UP].view(torch.uint8)}), "U8"),
        (lambda t: t.update({f"{UP}_scale": t[f"{UP}_scale"].half()}), "F16"),
        (lambda t: t.update({f"{UP}_scale": t[f"{UP}_scale"][:, None].clone()}), "shape"),
        (lambda t: t.update({f"{UP}_scale": t[f"{UP}_scale"] * torch.nan}), "finite"),
        (lambda t: t.update({"norm.weight": t["norm.weight"].char()}), "I8"),
        (lambda t: t.update({"more": t[UP].clone()}), "not part of the model"),
    ],
)
def test_malformed_files_are_errors(int8, edit, word):
    edit_tensors(int8, edit)
    with pytest.raises(CheckpointError, match=word) as raised:
        load(int8)
    assert "\n" not in str(raised.value)
    assert str(int8) in str(raised.value)


def test_a_float_file_that_claims_to_be_quantized_is_an_error_and_vice_versa(int8):
    edit_config(int8.parent / "float32", quantization="int8")
    with pytest.raises(CheckpointError, match="F32"):
        load(int8.parent / "float32")
    config = json.loads((int8 / CONFIG).read_text())
    del config["quantization"]
    (int8 / CONFIG).write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="I8"):
        load(int8)


@pytest.mark.parametrize("value", ["int4", None, 8, ["int8"]])
def test_an_unknown_quantization_is_an_error(int8, value):
    edit_config(int8, quantization=value)
    with pytest.raises(CheckpointError, match="quantization"):
        load(int8)


def test_a_float_file_of_another_model_that_claims_to_be_quantized_is_an_error(tmp_path):
    _, folder = rnn(tmp_path / "rnn")
    edit_config(folder, quantization="int8")
    with pytest.raises(CheckpointError, match="F32"):
        load(folder)


def test_sizes_are_checked_before_memory_is_allocated(int8):
    edit_config(int8, dim=2**14, ffn_dim=2**18)
    with memory_limit(2**28), pytest.raises(CheckpointError, match="shape"):
        load(int8)


def test_a_truncated_file_is_an_error(int8):
    data = (int8 / WEIGHTS).read_bytes()
    for size in (0, 4, 100, len(data) // 2, len(data) - 1):
        (int8 / WEIGHTS).write_bytes(data[:size])
        with pytest.raises(CheckpointError):
            load(int8)


MEMORY = """
import re, sys
from qkv.pipelines.generator import Generator

generator = Generator(sys.argv[1], device="cpu")
assert "int8" in generator.decoding, generator.decoding
generator("abc", max_new_tokens=20)
print(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])
"""


def test_peak_memory_of_gpt2_with_124_million_parameters(tmp_path):
    """The packed copy takes 124 MB and importing torch 200 MB; mapped weights are released once they are packed."""
    model = GPT2(GPT2Config())
    convert(saved(model, tmp_path / "float32"), tmp_path / "int8", dtype=torch.int8)
    arguments = [sys.executable, "-c", MEMORY, tmp_path / "int8"]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True, timeout=300)
    assert int(done.stdout) * 1024 < 450e6
