"""Watching shows what happened and changes nothing."""

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
from qkv.generation import Rules, greedy_search
from qkv.models import transformer
from qkv.nn.heads import MultiHead


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = MultiHead(8, 2)

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


def test_the_weights_seen_are_those_behind_the_output():
    model, x = Pair(), torch.randn(2, 5, 8)
    mask = Padding(torch.tensor([5, 3])) & Causal()
    with qkv.watch(model) as seen:
        model(x, mask)
    assert list(seen) == ["encoder.0", "encoder.1"]
    heads = model.encoder[0].attention
    query, key, value = (heads._split(part) for part in heads.project(x).chunk(3, dim=-1))
    expected = qkv.attend(query, key, value, mask=mask, backend="reference", need_weights=True)
    torch.testing.assert_close(seen["encoder.0"].weights, expected.weights)
    merged = (seen["encoder.0"].weights @ value).transpose(1, 2).flatten(2)
    torch.testing.assert_close(heads.output(merged), model.encoder[0](x, mask))


def test_watching_changes_no_bit_of_the_output_or_of_the_gradient():
    model, x = Pair(), torch.randn(2, 5, 8, requires_grad=True)
    plain = model(x, Causal())
    (slope,) = torch.autograd.grad(plain.sum(), x)
    with qkv.watch(model):
        watched = model(x, Causal())
        (watched_slope,) = torch.autograd.grad(watched.sum(), x)
    assert watched.equal(plain)
    assert watched_slope.equal(slope)


def test_layers_heads_and_queries_can_be_picked():
    model, x = Pair(), torch.randn(2, 5, 8)
    with qkv.watch(model) as everything:
        model(x)
    with qkv.watch(model, layers=[1], heads=[1], queries=[0, 4]) as seen:
        model(x)
    assert list(seen) == ["encoder.1"]
    torch.testing.assert_close(seen["encoder.1"].weights, everything["encoder.1"].weights[:, [1]][:, :, [0, 4]])
    with qkv.watch(model, heads=[1, 0], queries=[4, 0, 1]) as seen:  # in the order in which they are named
        model(x)
    expected = everything["encoder.1"].weights[:, [1, 0]][:, :, [4, 0, 1]]
    torch.testing.assert_close(seen["encoder.1"].weights, expected)
    with qkv.watch(model, layers=["encoder"]) as seen:
        model(x)
    assert len(seen) == 2


def test_steps_with_growing_keys_are_stacked_into_one_matrix():
    attend, x = Attend(), torch.randn(1, 1, 4, 8)
    with qkv.watch(nn.ModuleDict({"decoder": attend})) as seen:
        for length in range(1, 5):
            attend(x[:, :, length - 1 : length], x[:, :, :length], x[:, :, :length])
    expected = qkv.attend(x, x, x, mask=Causal(), need_weights=True).weights
    torch.testing.assert_close(seen["decoder"].weights, expected)


def test_queries_are_numbered_over_all_steps():
    attend, x = Attend(), torch.randn(1, 1, 4, 8)
    with qkv.watch(nn.ModuleDict({"decoder": attend}), queries=[1, 3]) as seen:
        for place in range(4):
            attend(x[:, :, place : place + 1], x, x)
    expected = qkv.attend(x, x, x, need_weights=True).weights
    torch.testing.assert_close(seen["decoder"].weights, expected[:, :, [1, 3]])


def test_rows_that_nobody_asks_for_are_not_rebuilt(monkeypatch):
    rebuilt = []
    weights = Reference.weights

    def counted(self, request):
        rebuilt.append(tuple(request.query.shape[1:3]))
        return weights(self, request)

    monkeypatch.setattr(Reference, "weights", counted)
    attend, x = Attend(), torch.randn(1, 3, 4, 8)
    with qkv.watch(nn.ModuleDict({"decoder": attend}), heads=[2], queries=[1, 5, 6]) as seen:
        for _ in range(3):
            attend(x, x, x)  # queries 0 to 3, 4 to 7, 8 to 11
    assert rebuilt == []
    assert seen["decoder"].weights.shape == (1, 1, 3, 4)
    assert rebuilt == [(1, 1), (1, 2)]
    assert seen["decoder"].weights.shape == (1, 1, 3, 4)
    assert len(rebuilt) == 2  # once is enough


def test_weights_are_those_of_the_call_even_if_they_are_looked_at_later():
    attend, x = Attend(Bilinear(8, 8)), torch.randn(1, 1, 4, 8)
    with qkv.watch(nn.ModuleDict({"decoder": attend})) as seen:
        expected = qkv.attend(x, x, x, score=attend.score, need_weights=True).weights
        attend(x, x, x)
    with torch.no_grad():
        attend.score.weight.mul_(3.0)
    torch.testing.assert_close(seen["decoder"].weights, expected)


def test_tensors_that_were_written_to_before_anyone_looked_are_told():
    attend, x = Attend(), torch.randn(1, 1, 4, 8)
    with qkv.watch(nn.ModuleDict({"decoder": attend})) as seen:
        attend(x, x.clone(), x.clone())
    x.zero_()
    with pytest.raises(InputError, match="look first"):
        _ = seen["decoder"].weights


def test_a_static_cache_that_is_written_to_later_does_not_change_what_was_seen():
    heads, x = MultiHead(8, 2), torch.randn(1, 4, 8)
    model = nn.ModuleDict({"decoder": heads})
    with torch.no_grad():
        with qkv.watch(model) as whole:
            heads(x, Causal())
        with qkv.watch(model) as seen:
            cache = heads.static_cache(1, 6)
            _, cache = heads(x[:, :3], Causal(), cache)
            heads(x[:, 3:], Causal(), cache)
    torch.testing.assert_close(seen["decoder"].weights[..., :4], whole["decoder"].weights)


def test_early_rows_are_as_wide_as_the_last_even_if_that_was_not_asked_for():
    attend, x = Attend(), torch.randn(1, 1, 4, 8)
    with qkv.watch(nn.ModuleDict({"decoder": attend}), queries=[0]) as seen:
        for length in range(1, 5):
            attend(x[:, :, length - 1 : length], x[:, :, :length], x[:, :, :length])
    assert seen["decoder"].weights[0, 0].tolist() == [[1.0, 0.0, 0.0, 0.0]]


def test_a_layer_can_be_watched_twice_at_once():
    model, x = Pair(), torch.randn(2, 5, 8)
    with qkv.watch(model) as outer:
        with qkv.watch(model, heads=[1]) as inner:
            model(x)
        model(x)
    assert len(outer["encoder.0"].passes) == 2
    torch.testing.assert_close(inner["encoder.0"].weights, outer["encoder.0"].passes[0][:, [1]])


def test_weights_that_are_drawn_are_those_that_were_drawn():
    class Drawn(Align):
        def weigh(self, scored):
            return torch.rand_like(scored.scores)

    attend, x = Attend(align=Drawn()), torch.randn(2, 3, 4, 8)
    torch.manual_seed(0)
    plain = attend(x, x, x).output
    torch.manual_seed(0)
    with qkv.watch(attend, heads=[2, 0], queries=[3, 1]) as seen:
        assert attend(x, x, x).output.equal(plain)
    torch.testing.assert_close(seen[""].weights @ x[:, [2, 0]], plain[:, [2, 0]][:, :, [3, 1]])


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_a_pass_in_training_is_seen_once_and_kept_out_of_the_graph(backend):
    model, x = Pair(), torch.randn(2, 5, 8, requires_grad=True)
    for layer in model.encoder:
        layer.attention.attend.backend = backend
    with qkv.watch(model) as expected, torch.no_grad():
        model(x)
    with qkv.watch(model) as seen:  # a checkpoint computes its layer again in the backward pass
        checkpoint(model, x, use_reentrant=False).sum().backward()
    for layer, record in seen.items():
        assert not record.weights.requires_grad
        torch.testing.assert_close(record.weights, expected[layer].weights)


def test_grouped_heads_and_positions_are_seen_as_they_are():
    x = torch.randn(2, 5, 12)
    layer = MultiHead(12, 6, kv_heads=2, position=Shift())
    query, key, value = layer.project(x).split([12, 4, 4], dim=-1)
    query, key, value = (part.unflatten(-1, (-1, 2)).transpose(1, 2) for part in (query, key, value))
    expected = qkv.attend(query, key, value, position=Shift(), mask=Causal(), need_weights=True).weights
    with qkv.watch(layer, heads=[5, 1], queries=[4, 2]) as seen:
        layer(x, Causal())
    torch.testing.assert_close(seen[""].weights, expected[:, [5, 1]][:, :, [4, 2]])


class Shift(Position):
    """Adds to a score what its head, query and key say: no two cells get the same."""

    biases = True
    extrapolates = True

    def bias(self, query, extent):
        return lambda at: torch.sin(at.head * 5.0 + at.place * 3.0 + at.key)


@pytest.mark.parametrize("name", ["heads", "queries"])
@pytest.mark.parametrize("numbers", [[-1], [1, 1], []])
def test_numbers_that_make_no_sense_are_refused_in_words(name, numbers):
    with (
        pytest.raises(InputError, match=f"{name} are named by their numbers from 0"),
        qkv.watch(Pair(), **{name: numbers}),
    ):
        pass


def test_heads_and_queries_that_are_not_there_are_refused_in_words():
    model, x = Pair(), torch.randn(2, 5, 8)
    words = r"no head 2 in encoder\.0: its heads are numbered from 0 to 1"
    with pytest.raises(InputError, match=words), qkv.watch(model, heads=[0, 2]):
        pass
    attend = Attend()  # learns of its heads from its inputs
    with pytest.raises(InputError, match="no head 2 in this layer"), qkv.watch(attend, heads=[2]):
        attend(*torch.randn(3, 1, 2, 3, 4))
    with qkv.watch(model, queries=[1, 5]) as seen:
        model(x)
    with pytest.raises(InputError, match="query 5 was asked for, but the pass had 5, numbered from 0"):
        _ = seen["encoder.0"].weights


def test_a_search_is_followed_only_where_it_can_be():
    model, x = Pair(), torch.randn(2, 5, 8)
    with qkv.watch(model) as seen:
        model(x)
    with pytest.raises(InputError, match="one query at a time"):
        seen["encoder.0"].along([0, 1])
    with qkv.watch(model, queries=[0]) as seen:
        model(x)
    with pytest.raises(InputError, match="without naming queries"):
        seen["encoder.0"].along([0])


def test_two_passes_are_kept_apart():
    model, one, other = Pair(), torch.randn(2, 5, 8), torch.randn(1, 3, 8)
    with qkv.watch(model) as seen:
        model(one)
        model(other)
    assert [tuple(weights.shape) for weights in seen["encoder.0"].passes] == [(2, 2, 5, 5), (1, 2, 3, 3)]
    with pytest.raises(InputError, match="2 passes ran under watch"):
        _ = seen["encoder.0"].weights


def test_what_was_seen_can_be_forgotten_while_watching_goes_on():
    model, one, other = Pair(), torch.randn(2, 5, 8), torch.randn(1, 3, 8)
    with qkv.watch(model) as seen:
        model(one)
        seen.forget()
        model(other)
    assert seen["encoder.0"].weights.shape == (1, 2, 3, 3)


def test_layers_whose_names_would_be_the_same_keep_their_whole_paths():
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attend = Attend()
            self.attention = nn.ModuleDict({"attend": Attend()})

    with qkv.watch(nn.ModuleDict({"block": Both()})) as seen:
        pass
    assert sorted(seen) == ["block.attend", "block.attention.attend"]


def test_nothing_is_watched_after_the_block_even_if_it_fails():
    model, x = Pair(), torch.randn(1, 3, 8)
    seen = {}

    def fail_under_watch():
        with qkv.watch(model) as records:
            seen.update(records)
            model(x)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_under_watch()
    before = seen["encoder.0"].weights.shape
    model(x)
    assert seen["encoder.0"].weights.shape == before


def test_a_layer_that_is_not_there_is_answered_with_those_that_are():
    with pytest.raises(InputError, match=r"layers: encoder\.0, encoder\.1"), qkv.watch(Pair(), layers=["decoder"]):
        pass


def test_asking_before_anything_ran_is_answered_in_words():
    with qkv.watch(Pair()) as seen, pytest.raises(InputError, match="nothing has run"):
        _ = seen["encoder.0"].weights


# What checks shapes in tests cannot be compiled: this runs in a process of its own.
COMPILED = """
import sys

import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

import qkv
from qkv.attention import Attend, Causal, Cosine
from qkv.nn.heads import MultiHead


class Layer(nn.Module):
    def __init__(self, score=None):
        super().__init__()
        self.attention = MultiHead(8, 2, score=score)

    def forward(self, x):
        return x + self.attention(x, Causal())[0]


def compiled(model, way, backend):
    '''The model to watch, and the model to call.'''
    if way == "in place":
        model.compile(fullgraph=True, backend=backend)
        return model, model
    wrapped = torch.compile(model, fullgraph=True, backend=backend)
    return (wrapped, wrapped) if way == "wrapped" else (model, wrapped)


def choices_are_compiled_once_each(way, backend):
    model, x = nn.Sequential(Layer(), Layer(Cosine(heads=2))), torch.randn(2, 5, 8, requires_grad=True)
    with qkv.watch(model) as expected:
        plain = model(x)
        slopes = torch.autograd.grad(plain.sum(), model.parameters())
    counter = CompileCounterWithBackend(backend)
    watched, call = compiled(model, way, counter)
    call(x)
    for round in range(2):
        for choice in ({}, {"heads": [1], "queries": [3, 0]}):
            with qkv.watch(watched, **choice) as seen:
                output = call(x)
                found = torch.autograd.grad(output.sum(), model.parameters())
                call(x)
            torch.testing.assert_close(output, plain)
            torch.testing.assert_close(found, slopes)
            assert list(seen) == ["0", "1"]
            for layer, record in seen.items():
                part = expected[layer].weights
                part = part[:, [1]][:, :, [3, 0]] if choice else part
                assert len(record.passes) == 2
                torch.testing.assert_close(record.passes[0], part)
                torch.testing.assert_close(record.passes[1], part)
        count = counter.frame_count if round == 0 else count
        assert counter.frame_count == count, "another compilation"


def layers_that_are_compiled_one_by_one_share_their_code():
    model, x = nn.Sequential(*(Layer() for _ in range(12))), torch.randn(2, 5, 8, requires_grad=True)
    counter = CompileCounterWithBackend("eager")
    with qkv.watch(model, heads=[1]) as expected:
        model(x)
    for layer in model:
        layer.compile(fullgraph=True, backend=counter)
    with qkv.watch(model, heads=[1]) as seen:
        model(x)
    assert counter.frame_count == 1, counter.frame_count
    for layer, record in seen.items():
        torch.testing.assert_close(record.weights, expected[layer].weights)


def steps_are_put_below_each_other():
    attend, x = Attend(), torch.randn(1, 2, 4, 8)
    step = torch.compile(attend, fullgraph=True, backend="eager")
    with qkv.watch(nn.ModuleDict({"decoder": attend}), queries=[1, 3]) as seen:
        for place in range(4):
            step(x[:, :, place : place + 1], x, x)
    expected = qkv.attend(x, x, x, need_weights=True).weights[:, :, [1, 3]]
    torch.testing.assert_close(seen["decoder"].weights, expected)


for way, backend in zip(("wrapped", "inside", "in place"), sys.argv[1:]):
    torch.compiler.reset()
    choices_are_compiled_once_each(way, backend)
torch.compiler.reset()
layers_that_are_compiled_one_by_one_share_their_code()
torch.compiler.reset()
steps_are_put_below_each_other()
"""


def run_compiled(*backends: str) -> None:
    done = subprocess.run([sys.executable, "-c", COMPILED, *backends], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def test_a_compiled_model_is_watched_as_one_graph_however_it_was_compiled():
    run_compiled("eager", "aot_eager", "eager")


@pytest.mark.slow
def test_what_inductor_compiles_is_watched_too():
    run_compiled("inductor", "inductor", "aot_eager")


@pytest.mark.gpu
def test_each_replay_of_a_cuda_graph_writes_the_weights_anew():
    model = Pair().cuda().eval()
    x, other = torch.randn(2, 6, 8, device="cuda"), torch.randn(2, 6, 8, device="cuda")
    mask = Padding(torch.tensor([6, 4], device="cuda")) & Causal()
    given = x.clone()
    with torch.no_grad():
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()):
            model(given, mask)  # what PyTorch asks for before a capture
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with qkv.watch(model, heads=[1, 0], queries=[4, 0, 1]) as seen, torch.cuda.graph(graph):
            output = model(given, mask)
        for now in (x, other, x):
            given.copy_(now)
            graph.replay()
            with qkv.watch(model, heads=[1, 0], queries=[4, 0, 1]) as expected:
                torch.testing.assert_close(output, model(now, mask))
            for layer in seen:
                torch.testing.assert_close(seen[layer].weights, expected[layer].weights)


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_what_is_compiled_for_a_gpu_is_watched_too(mode):
    code = f"""
import torch
from torch import nn
import qkv
from qkv.attention import Causal
from qkv.nn.heads import MultiHead

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = MultiHead(64, 2)

    def forward(self, x):
        return x + self.attention(x, Causal())[0]

model = nn.Sequential(Layer(), Layer()).cuda()
compiled = torch.compile(model, fullgraph=True, mode="{mode}")
with torch.no_grad():
    for _ in range(3):
        compiled(torch.randn(2, 32, 64, device="cuda"))
    with qkv.watch(compiled, heads=[1]) as seen, qkv.watch(model, heads=[1]):
        inputs = [torch.randn(2, 32, 64, device="cuda") for _ in range(5)]
        for x in inputs:
            compiled(x)
    for place, x in enumerate(inputs):
        with qkv.watch(model, heads=[1]) as expected:
            model(x)
        for layer in seen:
            torch.testing.assert_close(seen[layer].passes[place], expected[layer].weights, atol=1e-3, rtol=1e-3)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def test_two_searches_under_one_watch_are_two_passes():
    torch.manual_seed(0)
    config = transformer.Config(9, 9, dim=8, heads=2, encoder_layers=1, decoder_layers=1, feedforward=8, dropout=0.0)
    model = transformer.Transformer(config).eval()
    sources = [torch.randint(3, 9, (1, 4)), torch.randint(3, 9, (1, 4))]
    with qkv.watch(model, layers="decoder.0.cross") as seen:
        for source in sources:
            greedy_search(model, model.init_state(model.encode(source)), Rules(batch=1, begin=1, end=2, max_length=3))
    first, second = seen["decoder.0.cross"].passes
    with qkv.watch(model, layers="decoder.0.cross") as alone:
        greedy_search(model, model.init_state(model.encode(sources[1])), Rules(batch=1, begin=1, end=2, max_length=3))
    torch.testing.assert_close(second, alone["decoder.0.cross"].weights)
    assert not torch.equal(first[:, :, 0], second[:, :, 0])


def test_a_layer_that_is_not_watched_is_answered_with_those_that_are():
    with (
        qkv.watch(Pair()) as seen,
        pytest.raises(InputError, match=r"no layer 'decoder' is watched .layers: encoder\.0"),
    ):
        _ = seen["decoder"]
