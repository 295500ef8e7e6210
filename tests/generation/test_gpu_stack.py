"""The GPU decoder against the models.

Without a GPU its kernels run in Triton's slow interpreter, so the sizes are small.
"""

import pytest
import torch

pytest.importorskip("triton")

from qkv.errors import InputError, Unsupported
from qkv.generation.decoder_stack import decoder_stack
from qkv.generation.gpu.choices import MOST_VECTOR_ROWS, AttentionChoice, Choice, choose, choose_attention, fit
from qkv.generation.gpu.gpu_stack import GPUStack
from qkv.generation.gpu.weights import GPUWeights
from qkv.models.gpt2 import GPT2, GPT2Config
from qkv.models.transformer import Transformer, TransformerConfig

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCE = {"float32": 1e-5, "bfloat16": 2e-2, "int8": 5e-2}


def randomized(model):
    """Random weights, also where the initial ones are trivial."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval().to(DEVICE)


def gpt2(**settings):
    torch.manual_seed(0)
    return randomized(
        GPT2(GPT2Config(**{"vocab_size": 19, "dim": 24, "heads": 3, "layers": 2, "max_length": 9} | settings))
    )


def transformer(**settings):
    torch.manual_seed(0)
    sizes = {"source_vocab_size": 19, "target_vocab_size": 19, "dim": 16, "heads": 2, "ffn_dim": 32}
    sizes |= {"encoder_layers": 1, "decoder_layers": 1, "output_bias": True}
    return randomized(Transformer(TransformerConfig(**sizes | settings)))


def int32(values):
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def tokens(rows, length, vocabulary=19):
    return torch.randint(0, vocabulary, (rows, length), generator=torch.Generator().manual_seed(2)).to(DEVICE)


def error(found, truth):
    return ((found.double() - truth.double()).norm() / truth.double().norm()).item()


def gpu_stack(stack, dtype, *sizes, **options):
    return GPUStack(GPUWeights(stack, dtype, DEVICE), *sizes, **options)


def always(*choice):
    return lambda rows, outputs, inputs, dtype: Choice(*choice)


@torch.no_grad()
@pytest.mark.parametrize(
    ("rows", "dtype", "choice"),
    [
        (1, "float32", None),
        (1, "bfloat16", None),
        (2, "int8", None),
        (5, "float32", None),
        (5, "bfloat16", None),
        (5, "int8", None),
        (5, "float32", ("matrix", 16, 16, 4, 2, 2)),
        (5, "float32", ("cublas", 16)),
    ],
)
def test_steps_of_gpt2(rows, dtype, choice):
    model, ids = gpt2(), tokens(rows, 5)
    options = {} if choice is None else {"chooser": always(*choice)}
    stack = gpu_stack(decoder_stack(model), dtype, rows, 7, **options)
    stack.prefill(range(rows), ids[:, :3].tolist())
    truth = model(ids)
    for step in (3, 4):
        logits = stack.step(ids[:, step].int(), int32([step] * rows))
        assert error(logits, truth[:, step]) < TOLERANCE[dtype]


@torch.no_grad()
def test_few_and_many_rows_can_mix():
    model, ids = gpt2(layers=1), tokens(2, 2)

    def mixed(rows, outputs, inputs, dtype):
        return Choice("vector", 4) if outputs == 24 else Choice("matrix", 16, 16)

    stack = gpu_stack(decoder_stack(model), "float32", 2, 7, chooser=mixed)
    for step in range(2):
        logits = stack.step(ids[:, step].int(), int32([step] * 2))
    assert error(logits, model(ids)[:, 1]) < 1e-5


@torch.no_grad()
@pytest.mark.parametrize("rows", [2, 5])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_steps_of_a_transformer(rows, norm):
    model = transformer(norm=norm, activation="silu" if norm == "pre" else "gelu")
    source, lengths, of = tokens(3, 6), torch.tensor([6, 2, 5], device=DEVICE), torch.tensor([2, 1, 0, 2, 1])[:rows]
    stack = gpu_stack(decoder_stack(model), "float32", rows, 4, 3, 8)
    stack.set_memory(range(3), model.encode(source, lengths).hidden, lengths)
    stack.memory_of.copy_(of)
    ids = tokens(rows, 3)
    stack.prefill(range(rows), ids[:, :2].tolist())
    logits = stack.step(ids[:, 2].int(), int32([2] * rows))
    of = of.to(DEVICE)
    assert error(logits, model(source[of], ids, lengths[of])[:, 2]) < 1e-5


@torch.no_grad()
@pytest.mark.parametrize("activation", ["relu", "tanh", "gelu"])
def test_activations(activation):
    model, ids = gpt2(layers=1, activation=activation, tie_embeddings=False), tokens(5, 1)
    stack = gpu_stack(decoder_stack(model), "float32", 5, 4)
    assert error(stack.step(ids[:, 0].int(), int32([0] * 5)), model(ids)[:, 0]) < 1e-5


@torch.no_grad()
def test_rows_have_their_own_positions_and_share_tokens_through_the_table():
    model, ids = gpt2(layers=1), tokens(5, 4)
    stack = gpu_stack(decoder_stack(model), "float32", 5, 6)
    prompts = [ids[0, :3], ids[1, :3], ids[2, :1], ids[3, :0], ids[4, :3]]
    stack.prefill(range(5), [prompt.tolist() for prompt in prompts])
    stack.table.copy_(stack.table[torch.tensor([0, 0, 2, 3, 1], device=DEVICE)])  # rows 1 and 4 continue 0 and 1
    new = int32([4, 5, 6, 7, 8])
    logits = stack.step(new, int32([3, 3, 1, 0, 3]))
    for row, prompt in enumerate([ids[0, :3], ids[0, :3], ids[2, :1], ids[3, :0], ids[1, :3]]):
        truth = model(torch.cat([prompt, new[row : row + 1].long()])[None])[0, -1]
        assert error(logits[row], truth) < 1e-5
    stack.prefill([4], [[1, 2]])
    assert stack.table[4].unique().tolist() == [4]


@torch.no_grad()
def test_attention_splits_long_texts():
    model, ids = gpt2(layers=1, max_length=32), tokens(5, 22)
    stack = gpu_stack(decoder_stack(model), "float32", 5, 24, attention=AttentionChoice(4 * 8, 4, 8))
    stack.prefill(range(5), ids[:, :20].tolist())
    positions = [20, 3, 8, 17, 0]
    logits = stack.step(
        torch.stack([ids[row, position] for row, position in enumerate(positions)]).int(), int32(positions)
    )
    truth = model(ids)
    for row, position in enumerate(positions):
        assert error(logits[row], truth[row, position]) < 1e-5
    logits = stack.step(ids[:, 20].int(), int32([20] * 5))  # counters are back at zero
    assert error(logits, truth[:, 20]) < 1e-5


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_choices_fit_all_shapes(dtype):
    for rows in (1, 2, 3, 4, 5, 16, 17, 64, 65, 640):
        assert choose_attention(rows).elements % 256 == 0
        for outputs, inputs in ((50257, 768), (768, 3072), (3072, 768), (2304, 768), (768, 768), (24, 16)):
            choice = choose(rows, outputs, inputs, dtype)
            assert (choice.kind == "vector") == (rows <= MOST_VECTOR_ROWS[dtype])
            assert choice.kind != "vector" or choice.block_n % choice.warps == 0
            assert choice.kind != "cublas" or dtype == "float32"
            small = fit(choice, 128, 2, 100_000)
            assert small.stages * small.block_k * 2 * (small.block_n + 128) <= 100_000


def test_errors():
    stack = decoder_stack(gpt2())
    with pytest.raises(InputError, match="at least one row"):
        gpu_stack(stack, "float32", 0, 4)
    with pytest.raises(InputError, match="longer than the capacity"):
        gpu_stack(stack, "float32", 1, 2).prefill([0], [[1, 2, 3]])
    with pytest.raises(InputError, match="memory_rows"):
        gpu_stack(decoder_stack(transformer()), "float32", 1, 4)
    with pytest.raises(Unsupported, match="powers of two"):
        gpu_stack(decoder_stack(gpt2(heads=2)), "float32", 1, 4)


@torch.no_grad()
@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("rows", [1, 3, 8, 64, 130])
def test_steps_in_a_cuda_graph(rows, dtype):
    torch.manual_seed(0)
    model, ids = GPT2(GPT2Config(layers=3)).eval().cuda(), tokens(rows, 40, 50257)
    stack = gpu_stack(decoder_stack(model), dtype, rows, 64)
    stack.prefill(range(rows), ids[:, :36].tolist())
    now, positions = ids[:, 36].int(), int32([36] * rows)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        stack.step(now, positions)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        stack.step(now, positions)
    truth = model(ids)
    for step in range(36, 40):
        now.copy_(ids[:, step])
        positions.fill_(step)
        graph.replay()
        assert error(stack.logits, truth[:, step]) < TOLERANCE[dtype]
