"""`watch` records attention weights without changing the computation."""

import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import qkv
from qkv.attention import Align, Attend, Bilinear, Causal, Padding, Position
from qkv.attention.backends.reference import Reference
from qkv.errors import InputError
from qkv.generation import DecodingConstraints, greedy_search
from qkv.models import transformer
from qkv.nn.multi_head import MultiHeadAttention


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(8, 2)

    def forward(self, x, mask=None):
        return self.attention(x, mask)[0]


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.ModuleList([Layer(), Layer()])

    def forward(self, x, mask=None):
        for layer in self.encoder:
            x = layer(x, mask)
        return x


def test_recorded_weights_reproduce_the_output():
    model, x = Pair(), torch.randn(2, 5, 8)
    mask = Padding(torch.tensor([5, 3])) & Causal()
    with qkv.watch(model) as recorded:
        model(x, mask)
    assert list(recorded) == ["encoder.0", "encoder.1"]
    heads = model.encoder[0].attention
    query, key, value = (heads.split_heads(part) for part in heads.qkv_proj(x).chunk(3, dim=-1))
    expected = qkv.attend(query, key, value, mask=mask, backend="reference", need_weights=True)
    torch.testing.assert_close(recorded["encoder.0"].weights, expected.weights)
    merged = (recorded["encoder.0"].weights @ value).transpose(1, 2).flatten(2)
    torch.testing.assert_close(heads.out_proj(merged), model.encoder[0](x, mask))


def test_watching_does_not_change_output_or_gradient():
    model, x = Pair(), torch.randn(2, 5, 8, requires_grad=True)
    plain = model(x, Causal())
    (grad,) = torch.autograd.grad(plain.sum(), x)
    with qkv.watch(model):
        watched = model(x, Causal())
        (watched_grad,) = torch.autograd.grad(watched.sum(), x)
    assert watched.equal(plain)
    assert watched_grad.equal(grad)


def test_layers_heads_and_queries_can_be_selected():
    model, x = Pair(), torch.randn(2, 5, 8)
    with qkv.watch(model) as all_records:
        model(x)
    with qkv.watch(model, layers=[1], heads=[1], queries=[0, 4]) as recorded:
        model(x)
    assert list(recorded) == ["encoder.1"]
    torch.testing.assert_close(recorded["encoder.1"].weights, all_records["encoder.1"].weights[:, [1]][:, :, [0, 4]])
    with qkv.watch(model, heads=[1, 0], queries=[4, 0, 1]) as recorded:  # in the given order
        model(x)
    expected = all_records["encoder.1"].weights[:, [1, 0]][:, :, [4, 0, 1]]
    torch.testing.assert_close(recorded["encoder.1"].weights, expected)
    with qkv.watch(model, layers=["encoder"]) as recorded:
        model(x)
    assert len(recorded) == 2


def test_steps_with_growing_keys_are_stacked_into_one_matrix():
    attend, x = Attend(), torch.randn(1, 1, 4, 8)
    with qkv.watch(nn.ModuleDict({"decoder": attend})) as recorded:
        for length in range(1, 5):
            attend(x[:, :, length - 1 : length], x[:, :, :length], x[:, :, :length])
    expected = qkv.attend(x, x, x, mask=Causal(), need_weights=True).weights
    torch.testing.assert_close(recorded["decoder"].weights, expected)


def test_query_indices_count_over_all_steps():
    attend, x = Attend(), torch.randn(1, 1, 4, 8)
    with qkv.watch(nn.ModuleDict({"decoder": attend}), queries=[1, 3]) as recorded:
        for index in range(4):
            attend(x[:, :, index : index + 1], x, x)
    expected = qkv.attend(x, x, x, need_weights=True).weights
    torch.testing.assert_close(recorded["decoder"].weights, expected[:, :, [1, 3]])


def test_only_selected_rows_are_recomputed(monkeypatch):
    rebuilt = []
    weights = Reference.weights

    def counting_weights(self, request):
        rebuilt.append(tuple(request.query.shape[1:3]))
        return weights(self, request)

    monkeypatch.setattr(Reference, "weights", counting_weights)
    attend, x = Attend(), torch.randn(1, 3, 4, 8)
    with qkv.watch(nn.ModuleDict({"decoder": attend}), heads=[2], queries=[1, 5, 6]) as recorded:
        for _ in range(3):
            attend(x, x, x)  # queries 0 to 3, 4 to 7, 8 to 11
    assert rebuilt == []
    assert recorded["decoder"].weights.shape == (1, 1, 3, 4)
    assert rebuilt == [(1, 1), (1, 2)]
    assert recorded["decoder"].weights.shape == (1, 1, 3, 4)
    assert len(rebuilt) == 2  # computed only once


def test_weights_are_those_of_the_call_even_if_parameters_change_later():
    attend, x = Attend(Bilinear(8, 8)), torch.randn(1, 1, 4, 8)
    with qkv.watch(nn.ModuleDict({"decoder": attend})) as recorded:
        expected = qkv.attend(x, x, x, score=attend.score, need_weights=True).weights
        attend(x, x, x)
    with torch.no_grad():
        attend.score.weight.mul_(3.0)
    torch.testing.assert_close(recorded["decoder"].weights, expected)


def test_in_place_changes_before_reading_the_weights_raise():
    attend, x = Attend(), torch.randn(1, 1, 4, 8)
    with qkv.watch(nn.ModuleDict({"decoder": attend})) as recorded:
        attend(x, x.clone(), x.clone())
    x.zero_()
    with pytest.raises(InputError, match="in place"):
        _ = recorded["decoder"].weights


def test_early_rows_are_padded_to_the_final_number_of_keys():
    attend, x = Attend(), torch.randn(1, 1, 4, 8)
    with qkv.watch(nn.ModuleDict({"decoder": attend}), queries=[0]) as recorded:
        for length in range(1, 5):
            attend(x[:, :, length - 1 : length], x[:, :, :length], x[:, :, :length])
    assert recorded["decoder"].weights[0, 0].tolist() == [[1.0, 0.0, 0.0, 0.0]]


def test_nested_watches_of_one_layer():
    model, x = Pair(), torch.randn(2, 5, 8)
    with qkv.watch(model) as outer:
        with qkv.watch(model, heads=[1]) as inner:
            model(x)
        model(x)
    assert len(outer["encoder.0"].passes) == 2
    torch.testing.assert_close(inner["encoder.0"].weights, outer["encoder.0"].passes[0][:, [1]])


def test_sampled_weights_are_recorded_as_sampled():
    class Sampled(Align):
        def compute_weights(self, inputs):
            return torch.rand_like(inputs.scores)

    attend, x = Attend(align=Sampled()), torch.randn(2, 3, 4, 8)
    torch.manual_seed(0)
    plain = attend(x, x, x).output
    torch.manual_seed(0)
    with qkv.watch(attend, heads=[2, 0], queries=[3, 1]) as recorded:
        assert attend(x, x, x).output.equal(plain)
    torch.testing.assert_close(recorded[""].weights @ x[:, [2, 0]], plain[:, [2, 0]][:, :, [3, 1]])


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_checkpointed_training_passes_are_recorded_once_and_detached(backend):
    model, x = Pair(), torch.randn(2, 5, 8, requires_grad=True)
    for layer in model.encoder:
        layer.attention.attend.backend = backend
    with qkv.watch(model) as expected, torch.no_grad():
        model(x)
    with qkv.watch(model) as recorded:  # a checkpoint recomputes its layer in the backward pass
        checkpoint(model, x, use_reentrant=False).sum().backward()
    for layer, record in recorded.items():
        assert not record.weights.requires_grad
        torch.testing.assert_close(record.weights, expected[layer].weights)


def test_grouped_heads_and_positions_are_recorded():
    layer, query = Attend(position=Shift()), torch.randn(2, 6, 5, 2)
    key, value = torch.randn(2, 2, 2, 5, 2)
    expected = qkv.attend(query, key, value, position=Shift(), mask=Causal(), need_weights=True).weights
    with qkv.watch(layer, heads=[5, 1], queries=[4, 2]) as recorded:
        layer(query, key, value, Causal())
    torch.testing.assert_close(recorded[""].weights, expected[:, [5, 1]][:, :, [4, 2]])


class Shift(Position):
    """Adds a different bias to every cell."""

    adds_bias = True

    def bias(self, query, shape):
        return lambda index: torch.sin(index.head * 5.0 + index.query_position * 3.0 + index.key)


@pytest.mark.parametrize("name", ["heads", "queries"])
@pytest.mark.parametrize("indices", [[-1], [1, 1], []])
def test_invalid_indices_raise(name, indices):
    with (
        pytest.raises(InputError, match=name),
        qkv.watch(Pair(), **{name: indices}),
    ):
        pass


def test_heads_and_queries_out_of_range_raise():
    model, x = Pair(), torch.randn(2, 5, 8)
    with pytest.raises(InputError, match="head 2"), qkv.watch(model, heads=[0, 2]):
        pass
    attend = Attend()  # the number of heads is known only from its inputs
    with pytest.raises(InputError, match="head 2"), qkv.watch(attend, heads=[2]):
        attend(*torch.randn(3, 1, 2, 3, 4))
    with qkv.watch(model, queries=[1, 5]) as recorded:
        model(x)
    with pytest.raises(InputError, match="query 5"):
        _ = recorded["encoder.0"].weights


def test_for_hypothesis_needs_single_query_steps_of_all_queries():
    model, x = Pair(), torch.randn(2, 5, 8)
    with qkv.watch(model) as recorded:
        model(x)
    with pytest.raises(InputError, match="one query each"):
        recorded["encoder.0"].for_hypothesis([0, 1])
    with qkv.watch(model, queries=[0]) as recorded:
        model(x)
    with pytest.raises(InputError, match="without queries"):
        recorded["encoder.0"].for_hypothesis([0])


def test_two_passes_are_recorded_separately():
    model, one, other = Pair(), torch.randn(2, 5, 8), torch.randn(1, 3, 8)
    with qkv.watch(model) as recorded:
        model(one)
        model(other)
    assert [tuple(weights.shape) for weights in recorded["encoder.0"].passes] == [(2, 2, 5, 5), (1, 2, 3, 3)]
    with pytest.raises(InputError, match="2 passes"):
        _ = recorded["encoder.0"].weights


def test_reset_discards_records_while_watching_continues():
    model, one, other = Pair(), torch.randn(2, 5, 8), torch.randn(1, 3, 8)
    with qkv.watch(model) as recorded:
        model(one)
        recorded.reset()
        model(other)
    assert recorded["encoder.0"].weights.shape == (1, 2, 3, 3)


def test_layers_with_colliding_names_keep_their_full_paths():
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attend = Attend()
            self.attention = nn.ModuleDict({"attend": Attend()})

    with qkv.watch(nn.ModuleDict({"block": Both()})) as recorded:
        pass
    assert sorted(recorded) == ["block.attend", "block.attention.attend"]


def test_nothing_is_recorded_after_the_block_even_if_it_raises():
    model, x = Pair(), torch.randn(1, 3, 8)
    recorded = {}

    def fail_under_watch():
        with qkv.watch(model) as records:
            recorded.update(records)
            model(x)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_under_watch()
    before = recorded["encoder.0"].weights.shape
    model(x)
    assert recorded["encoder.0"].weights.shape == before


def test_unknown_layers_list_the_known_ones():
    with pytest.raises(InputError, match=r"layers: encoder\.0, encoder\.1"), qkv.watch(Pair(), layers=["decoder"]):
        pass


def test_reading_weights_before_a_call_raises():
    with qkv.watch(Pair()) as recorded, pytest.raises(InputError, match="recorded"):
        _ = recorded["encoder.0"].weights


# The run-time shape checks of the tests cannot be compiled, so this runs in a separate process.
COMPILED = """
import sys

import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

import qkv
from qkv.attention import Attend, Causal, Cosine
from qkv.nn.multi_head import MultiHeadAttention


class Layer(nn.Module):
    def __init__(self, score=None):
        super().__init__()
        self.attention = MultiHeadAttention(8, 2, score=score)

    def forward(self, x):
        return x + self.attention(x, Causal())[0]


def compiled(model, way, backend):
    '''Return the model to watch and the model to call.'''
    if way == "in place":
        model.compile(fullgraph=True, backend=backend)
        return model, model
    wrapped = torch.compile(model, fullgraph=True, backend=backend)
    return (wrapped, wrapped) if way == "wrapped" else (model, wrapped)


def check_selections_compile_once(way, backend):
    model, x = nn.Sequential(Layer(), Layer(Cosine(heads=2))), torch.randn(2, 5, 8, requires_grad=True)
    with qkv.watch(model) as expected:
        plain = model(x)
        grads = torch.autograd.grad(plain.sum(), model.parameters())
    counter = CompileCounterWithBackend(backend)
    watched, call = compiled(model, way, counter)
    call(x)
    for round in range(2):
        for selection in ({}, {"heads": [1], "queries": [3, 0]}):
            with qkv.watch(watched, **selection) as recorded:
                output = call(x)
                actual = torch.autograd.grad(output.sum(), model.parameters())
                call(x)
            torch.testing.assert_close(output, plain)
            torch.testing.assert_close(actual, grads)
            assert list(recorded) == ["0", "1"]
            for layer, record in recorded.items():
                part = expected[layer].weights
                part = part[:, [1]][:, :, [3, 0]] if selection else part
                assert len(record.passes) == 2
                torch.testing.assert_close(record.passes[0], part)
                torch.testing.assert_close(record.passes[1], part)
        count = counter.frame_count if round == 0 else count
        assert counter.frame_count == count, "recompiled"


def check_layers_share_compiled_code():
    model, x = nn.Sequential(*(Layer() for _ in range(12))), torch.randn(2, 5, 8, requires_grad=True)
    counter = CompileCounterWithBackend("eager")
    with qkv.watch(model, heads=[1]) as expected:
        model(x)
    for layer in model:
        layer.compile(fullgraph=True, backend=counter)
    with qkv.watch(model, heads=[1]) as recorded:
        model(x)
    assert counter.frame_count == 1, counter.frame_count
    for layer, record in recorded.items():
        torch.testing.assert_close(record.weights, expected[layer].weights)


def check_steps_are_concatenated():
    attend, x = Attend(), torch.randn(1, 2, 4, 8)
    step = torch.compile(attend, fullgraph=True, backend="eager")
    with qkv.watch(nn.ModuleDict({"decoder": attend}), queries=[1, 3]) as recorded:
        for i in range(4):
            step(x[:, :, i : i + 1], x, x)
    expected = qkv.attend(x, x, x, need_weights=True).weights[:, :, [1, 3]]
    torch.testing.assert_close(recorded["decoder"].weights, expected)


for way, backend in zip(("wrapped", "inside", "in place"), sys.argv[1:]):
    torch.compiler.reset()
    check_selections_compile_once(way, backend)
torch.compiler.reset()
check_layers_share_compiled_code()
torch.compiler.reset()
check_steps_are_concatenated()
"""


def run_compiled(*backends: str) -> None:
    process = subprocess.run([sys.executable, "-c", COMPILED, *backends], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr[-3000:]


def test_compiled_models_are_watched_as_one_graph():
    run_compiled("eager", "aot_eager", "eager")


@pytest.mark.slow
def test_inductor_models_are_watched():
    run_compiled("inductor", "inductor", "aot_eager")


@pytest.mark.gpu
def test_each_replay_of_a_cuda_graph_updates_the_weights():
    model = Pair().cuda().eval()
    x, other = torch.randn(2, 6, 8, device="cuda"), torch.randn(2, 6, 8, device="cuda")
    mask = Padding(torch.tensor([6, 4], device="cuda")) & Causal()
    static_input = x.clone()
    with torch.no_grad():
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()):
            model(static_input, mask)  # warm-up before the capture
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with qkv.watch(model, heads=[1, 0], queries=[4, 0, 1]) as recorded, torch.cuda.graph(graph):
            output = model(static_input, mask)
        for batch in (x, other, x):
            static_input.copy_(batch)
            graph.replay()
            with qkv.watch(model, heads=[1, 0], queries=[4, 0, 1]) as expected:
                torch.testing.assert_close(output, model(batch, mask))
            for layer in recorded:
                torch.testing.assert_close(recorded[layer].weights, expected[layer].weights)


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_models_compiled_for_gpus_are_watched(mode):
    code = f"""
import torch
from torch import nn
import qkv
from qkv.attention import Causal
from qkv.nn.multi_head import MultiHeadAttention

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = MultiHeadAttention(64, 2)

    def forward(self, x):
        return x + self.attention(x, Causal())[0]

model = nn.Sequential(Layer(), Layer()).cuda()
compiled = torch.compile(model, fullgraph=True, mode="{mode}")
with torch.no_grad():
    for _ in range(3):
        compiled(torch.randn(2, 32, 64, device="cuda"))
    with qkv.watch(compiled, heads=[1]) as recorded, qkv.watch(model, heads=[1]):
        inputs = [torch.randn(2, 32, 64, device="cuda") for _ in range(5)]
        for x in inputs:
            compiled(x)
    for index, x in enumerate(inputs):
        with qkv.watch(model, heads=[1]) as expected:
            model(x)
        for layer in recorded:
            torch.testing.assert_close(recorded[layer].passes[index], expected[layer].weights, atol=1e-3, rtol=1e-3)
"""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr[-3000:]


def test_two_searches_are_two_passes():
    torch.manual_seed(0)
    config = transformer.TransformerConfig(
        source_vocab_size=9, target_vocab_size=9, dim=8, heads=2, encoder_layers=1, decoder_layers=1, ffn_dim=8,
        dropout=0.0,
    )  # fmt: skip
    model = transformer.Transformer(config).eval()
    sources = [torch.randint(3, 9, (1, 4)), torch.randint(3, 9, (1, 4))]
    with qkv.watch(model, layers="decoder.0.cross") as recorded:
        for source in sources:
            greedy_search(
                model,
                model.init_state(model.encode(source)),
                DecodingConstraints(batch=1, begin=1, end=2, max_new_tokens=3),
            )
    first, second = recorded["decoder.0.cross"].passes
    with qkv.watch(model, layers="decoder.0.cross") as alone:
        greedy_search(
            model,
            model.init_state(model.encode(sources[1])),
            DecodingConstraints(batch=1, begin=1, end=2, max_new_tokens=3),
        )
    torch.testing.assert_close(second, alone["decoder.0.cross"].weights)
    assert not torch.equal(first[:, :, 0], second[:, :, 0])


def test_unwatched_layers_list_the_watched_ones():
    with (
        qkv.watch(Pair()) as recorded,
        pytest.raises(InputError, match="watched"),
    ):
        _ = recorded["decoder"]
