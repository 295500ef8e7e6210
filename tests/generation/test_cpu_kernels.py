"""The compiled CPU kernels against float64 and against the models."""

import ctypes

import pytest
import torch

from qkv.errors import Unsupported
from qkv.generation.cpu.library import LinearC, library
from qkv.generation.cpu.packed_stack import CODES, TORCH_TYPES, PackedStack, log_sum_exp, sample_tokens, top_k
from qkv.generation.cpu.runner import CPURunner
from qkv.generation.decoder_stack import decoder_stack, encoder_stack
from qkv.generation.sampling import Sampling, sample_from
from qkv.models.gpt2 import GPT2, GPT2Config
from qkv.models.llama import Llama, LlamaConfig
from qkv.models.transformer import Transformer, TransformerConfig
from qkv.nn.quantized import quantize
from qkv.runtime import c_library
from qkv.runtime.c_library import load_library
from tests.generation.kernels import require_kernels

MOST_ERROR = {"float32": 1e-6, "bfloat16": 6e-3, "int8": 1.5e-2}  # of the norm


@pytest.fixture(params=["native", "portable"])
def kernels(request, monkeypatch, shared_folder):
    """The kernels as compiled for this machine, and with plain loops."""
    require_kernels()
    if request.param == "portable":
        monkeypatch.setenv("XDG_CACHE_HOME", str(shared_folder / "portable kernels"))  # compiled once
        flags = [flag for flag in c_library.FLAGS if flag != "-march=native"]
        monkeypatch.setattr(c_library, "FLAGS", (*flags, "-DQKV_PORTABLE"))
    clear_caches()
    yield request.param
    monkeypatch.undo()
    clear_caches()


def clear_caches():
    """Let the next call load or compile the kernels again."""
    load_library.cache_clear()
    library.cache_clear()


def error(result, truth):
    return ((result.double() - truth).norm() / truth.norm()).item()


def random_gpt2(seed=0, **options):
    torch.manual_seed(seed)
    config = {"vocab_size": 301, "dim": 48, "heads": 3, "layers": 2, "max_length": 64} | options
    model = GPT2(GPT2Config(**config)).eval()
    return randomized(model)


def random_llama(seed=0, **options):
    torch.manual_seed(seed)
    config = {"vocab_size": 301, "dim": 64, "heads": 4, "layers": 2, "max_length": 64} | options
    return randomized(Llama(LlamaConfig(**config)).eval())


def random_transformer(seed=0, **options):
    torch.manual_seed(seed)
    config = {
        "source_vocab_size": 120,
        "target_vocab_size": 120,
        "dim": 64,
        "heads": 4,
        "ffn_dim": 96,
        "max_length": 40,
    }
    return randomized(Transformer(TransformerConfig(**(config | options))).eval())


def randomized(model):
    with torch.no_grad():  # biases and norms are zero or one at first
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    return model


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 5, 6, 7, 13])
@pytest.mark.parametrize(("outputs", "inputs"), [(64, 64), (130, 37), (7, 5)])
def test_linear_layers(kernels, dtype, tokens, outputs, inputs):
    torch.manual_seed(0)
    weight, bias, x = torch.randn(outputs, inputs), torch.randn(outputs), torch.randn(tokens, inputs)
    scale = None
    rows = weight.to(TORCH_TYPES[dtype])
    if dtype == "int8":
        rows, scale = quantize(weight)
    packed = torch.empty(library().qkv_packed_bytes(CODES[dtype], outputs, inputs), dtype=torch.uint8)
    library().qkv_pack(CODES[dtype], rows.data_ptr(), outputs, inputs, packed.data_ptr())
    linear = LinearC(
        CODES[dtype], outputs, inputs, packed.data_ptr(), None if scale is None else scale.data_ptr(), bias.data_ptr()
    )
    out = torch.full((tokens + 1, outputs), torch.nan)
    assert library().qkv_linear(ctypes.byref(linear), x.data_ptr(), tokens, None, out.data_ptr()) == 0
    assert error(out[:tokens], x.double() @ weight.double().T + bias.double()) < MOST_ERROR[dtype]
    assert out[tokens].isnan().all()  # nothing is written beyond the result


def test_log_sum_exp_and_top_k(kernels):
    torch.manual_seed(0)
    logits = torch.randn(5, 1003) * 20
    logits[1, 3:] = -torch.inf
    logits[2] = 1.0  # ties: the lower index first
    torch.testing.assert_close(log_sum_exp(logits), logits.double().logsumexp(-1).float(), rtol=1e-6, atol=1e-5)
    values, indices = top_k(logits, 7)
    assert torch.equal(values, logits.topk(7).values)
    assert torch.equal(logits.gather(1, indices), values)
    assert indices[2].tolist() == [*range(7)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"activation": "relu", "position": "sinusoidal"},
        {"activation": "silu", "tie_embeddings": False},
        {"activation": "gelu", "position": "none"},
        {"activation": "tanh", "inverse_layer_scale": True},
        {"norm": "post", "position": "index_fraction"},
        {"dim": 40, "heads": 5},  # heads of 8: not a multiple of a vector
        {"dim": 160, "heads": 2},  # heads of 80: more than four vectors
    ],
)
def test_gpt2_in_chunks(kernels, dtype, options):
    check_chunks(random_gpt2(**options), dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize(
    "options",
    [
        {"kv_heads": 2},
        {"kv_heads": 1, "tie_embeddings": True, "dim": 40},
        {"activation": "gelu", "ffn_dim": 50, "position": {"name": "rotary", "base": 500.0}},
    ],
)
def test_llama_in_chunks(kernels, dtype, options):
    check_chunks(random_llama(**options), dtype)


def check_chunks(model, dtype):
    """Logits do not depend on how a text is cut into chunks, and equal those of the model."""
    tokens = torch.randint(0, 301, (3, 29))
    with torch.inference_mode():
        truth = model.double()(tokens).clone()
    runner = CPURunner(PackedStack(decoder_stack(model.float()), dtype), None, rows=4, capacity=40)
    rows = [3, 0, 2]
    runner.reset(rows)
    cuts = {3: 9, 0: 1, 2: 17}  # length of each row's first chunk
    first = runner.extend(rows, [tokens[i, : cuts[row]].tolist() for i, row in enumerate(rows)])
    for i, row in enumerate(rows):
        assert error(first[i], truth[i, cuts[row] - 1]) < 4 * MOST_ERROR[dtype]
    for step in range(10):
        ids = torch.tensor([tokens[i, cuts[row] + step] for i, row in enumerate(rows)])
        logits = runner.step(torch.tensor(rows), ids)
        expected = torch.stack([truth[i, cuts[row] + step] for i, row in enumerate(rows)])
        assert error(logits, expected) < 4 * MOST_ERROR[dtype]


def test_reordered_rows_share_their_beginning(kernels):
    model = random_gpt2()
    runner = CPURunner(PackedStack(decoder_stack(model), "float32"), None, rows=4, capacity=40)
    runner.reset([0, 1, 2, 3])
    texts = {row: torch.randint(0, 301, (6,)).tolist() for row in range(3)}
    runner.extend([0, 1, 2], [texts[row] for row in range(3)])
    for parents in ([1, 1, 0, 2], [3, 0, 0, 1], [2, 3, 1, 0]):
        runner.reorder(torch.arange(4), torch.tensor(parents))
        texts = {row: [*texts[parent]] for row, parent in enumerate(parents)}
        tokens = torch.randint(0, 301, (4,))
        logits = runner.step(torch.arange(4), tokens)
        for row in range(4):
            texts[row].append(int(tokens[row]))
            with torch.inference_mode():
                truth = model(torch.tensor([texts[row]]))[0, -1]
            assert error(logits[row], truth.double()) < 1e-5


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("output_bias", [False, True])
def test_transformer(kernels, norm, output_bias):
    model = random_transformer(
        norm=norm, output_bias=output_bias, position="learned" if norm == "post" else "sinusoidal"
    )
    sources = [torch.randint(0, 120, (length,)).tolist() for length in (1, 17, 5)]
    target = torch.randint(0, 120, (3, 9))
    decoder, encoder = PackedStack(decoder_stack(model), "float32"), PackedStack(encoder_stack(model), "float32")
    runner = CPURunner(decoder, encoder, rows=3, capacity=12, sources=5, source_capacity=17)
    runner.encode([4, 0, 2], sources)
    runner.reset([0, 1, 2], [4, 0, 2])
    logits = runner.extend([0, 1, 2], target.tolist())
    for row, source in enumerate(sources):
        with torch.inference_mode():
            truth = model(torch.tensor([source]), target[row : row + 1])[0, -1]
        assert error(logits[row], truth.double()) < 1e-5


def test_unsupported_terms():
    for options in ({"score": "additive"}, {"align": "sparsemax"}, {"position": "rotary"}, {"backend": "reference"}):
        with pytest.raises(Unsupported):
            decoder_stack(random_gpt2(**options))
    with pytest.raises(Unsupported, match="48 positions"):
        decoder_stack(random_gpt2(position="one_hot"))
    with pytest.raises(Unsupported, match="alibi"):
        decoder_stack(random_llama(position="alibi"))
    with pytest.raises(Unsupported):
        decoder_stack(torch.nn.Linear(2, 2))


def test_without_a_compiler(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(c_library, "COMPILERS", ("no-such-compiler",))
    clear_caches()
    with pytest.raises(Unsupported, match="compiler"):
        library()
    monkeypatch.undo()
    clear_caches()


def test_a_failing_compiler(monkeypatch, tmp_path):
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\necho 'error: broken' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    clear_caches()
    with pytest.raises(Unsupported, match="broken"):
        library()
    assert list((tmp_path / "cache" / "qkv").iterdir()) == []
    monkeypatch.undo()
    clear_caches()


@pytest.mark.parametrize("scale", [1.0, 8.0])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.3},
        {"temperature": 1e-310},
        {"top_k": 7},
        {"top_k": 40, "top_p": 0.8, "temperature": 1.7},
        {"top_p": 0.4, "temperature": 0.7},
        {"top_p": 1.0},
    ],
    ids=str,
)
def test_sampling_equals_its_definition(options, scale):
    torch.manual_seed(0)
    sampling, uniform = Sampling(**options), torch.rand(300, dtype=torch.double)
    uniform[:2] = torch.tensor([0.0, 1.0 - 2**-53])
    logits = scale * torch.randn(300, 1003)
    logits[:, ::3] = -torch.inf  # suppressed tokens
    log_p = logits.log_softmax(dim=-1)
    tokens = sample_tokens(log_p, sampling, uniform)
    if tokens is None:  # too many tokens belong to the nucleus
        assert sampling.top_p is not None
        assert scale == 1.0 or sampling.top_p == 1.0
        return
    assert torch.equal(tokens, sample_from(sampling.filter_probs(log_p), uniform))
    assert not (tokens % 3 == 0).any()
