"""The neural Turing machine: equations in plain Python, memory and gradients."""

import itertools
import math

import pytest
import torch
from torch.func import functional_call
from torch.nn import functional as F

import qkv
from qkv.errors import InputError, ShapeError
from qkv.hub import load
from qkv.hub.model_folder import save_model
from qkv.models.memory.lstm_baseline import LSTMBaseline, LSTMBaselineConfig
from qkv.models.memory.ntm import INITIAL_MEMORY, NTM, NTMConfig
from qkv.nn.interfaces import select
from qkv.training.step import prepare_blocks

SIZES = {
    "input_dim": 3, "output_dim": 2, "controller": "lstm", "hidden_dim": 5, "locations": 6, "location_dim": 4,
    "read_heads": 2, "write_heads": 2,
}  # fmt: skip


def make(dtype: torch.dtype = torch.float64, **changes: object) -> NTM:
    torch.manual_seed(0)
    model = NTM(NTMConfig(**SIZES | changes)).to(dtype).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(2)  # larger head parameters
    return model


@pytest.fixture
def x():
    return torch.randn(2, 7, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def softplus(x):
    return math.log1p(math.exp(x))


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def softmax(numbers):
    powers = [math.exp(number) for number in numbers]
    return [power / sum(powers) for power in powers]


def product(weight, bias, vector):
    return [sum(w * v for w, v in zip(row, vector, strict=True)) + b for row, b in zip(weight, bias, strict=True)]


def address(params, memory, previous, config):
    """Weights of one head, from the equations of the paper; `params` iterates over the controller's outputs."""
    key = [math.tanh(next(params)) for _ in range(config.location_dim)]
    strength = softplus(next(params))
    scores = []
    for row in memory:
        lengths = [max(1e-4, math.sqrt(sum(n * n for n in item))) for item in (key, row)]
        scores.append(strength * sum(k * m for k, m in zip(key, row, strict=True)) / math.prod(lengths))
    content = softmax(scores)
    if config.addressing == "content":
        return content
    gate, gamma = sigmoid(next(params)), 1 + softplus(next(params))
    shift = softmax([next(params) for _ in range(2 * config.max_shift + 1)])
    count = len(memory)
    moved = [0.0] * count
    for i, offset in itertools.product(range(count), range(-config.max_shift, config.max_shift + 1)):
        at = gate * content[i] + (1 - gate) * previous[i]
        moved[(i + offset) % count] += at * shift[offset + config.max_shift]
    powers = [weight**gamma for weight in moved]
    return [power / sum(powers) for power in powers]


def first_weights(heads, config):
    if heads.initial_logits is None:
        return [[1 / config.locations] * config.locations for _ in range(heads.heads)]
    return [softmax(row) for row in heads.initial_logits.tolist()]


def by_hand(model, steps):
    """Logits of one sequence and the weights of all heads, in plain Python."""
    config = model.config
    memory = [[INITIAL_MEMORY] * config.location_dim for _ in range(config.locations)]
    reads = [0.0] * (config.read_heads * config.location_dim)
    written_at, read_at = first_weights(model.write_heads, config), first_weights(model.read_heads, config)
    h = c = [0.0] * config.hidden_dim
    weights = {name: value.tolist() for name, value in model.state_dict().items()}
    logits, written, read = [], [], []
    for x_t in steps.tolist():
        inputs = x_t + reads
        if config.controller == "lstm":
            name = "controller.recurrent.rnn"
            gates = [
                a + b
                for a, b in zip(
                    product(weights[f"{name}.weight_ih_l0"], weights[f"{name}.bias_ih_l0"], inputs),
                    product(weights[f"{name}.weight_hh_l0"], weights[f"{name}.bias_hh_l0"], h),
                    strict=True,
                )
            ]
            i, f, g, o = (gates[part * config.hidden_dim : (part + 1) * config.hidden_dim] for part in range(4))
            c = [sigmoid(f[n]) * c[n] + sigmoid(i[n]) * math.tanh(g[n]) for n in range(config.hidden_dim)]
            h = [sigmoid(o[n]) * math.tanh(c[n]) for n in range(config.hidden_dim)]
        else:
            h = [
                math.tanh(n)
                for n in product(weights["controller.layer.weight"], weights["controller.layer.bias"], inputs)
            ]
        params = iter(product(weights["head_params.weight"], weights["head_params.bias"], h))
        written_at = [address(params, memory, previous, config) for previous in written_at]
        changes = [
            ([next(params) for _ in range(config.location_dim)], [next(params) for _ in range(config.location_dim)])
            for _ in written_at
        ]
        for at, (erase, _) in zip(written_at, changes, strict=True):
            memory = [[m * (1 - at[i] * sigmoid(erase[n])) for n, m in enumerate(row)] for i, row in enumerate(memory)]
        for at, (_, add) in zip(written_at, changes, strict=True):
            memory = [[m + at[i] * math.tanh(add[n]) for n, m in enumerate(row)] for i, row in enumerate(memory)]
        read_at = [address(params, memory, previous, config) for previous in read_at]
        reads = [
            sum(at[i] * memory[i][n] for i in range(config.locations))
            for at in read_at
            for n in range(config.location_dim)
        ]
        logits.append(product(weights["readout.weight"], weights["readout.bias"], h + reads))
        written.append(written_at)
        read.append(read_at)
    return logits, written, read


@pytest.mark.parametrize(
    "changes",
    [{}, {"controller": "feedforward", "max_shift": 2}, {"addressing": "content", "read_heads": 1}, {"write_heads": 1}],
    ids=["lstm", "feedforward", "content", "one write head"],
)
def test_outputs_and_watched_weights_match_the_equations(x, changes):
    model = make(**changes)
    with qkv.watch(model) as seen:
        actual = model(x)
    assert list(seen) == ["write_heads", "read_heads"]
    for row, steps in enumerate(x):
        logits, written, read = (torch.tensor(part, dtype=torch.float64) for part in by_hand(model, steps))
        torch.testing.assert_close(actual[row], logits, rtol=0, atol=1e-10)
        torch.testing.assert_close(seen["write_heads"].weights[row], written.transpose(0, 1), rtol=0, atol=1e-10)
        torch.testing.assert_close(seen["read_heads"].weights[row], read.transpose(0, 1), rtol=0, atol=1e-10)


def test_content_addressing_is_softmax_attention():
    torch.manual_seed(0)
    heads = make(addressing="content").read_heads
    memory, params = torch.randn(3, 6, 4, dtype=torch.float64), torch.randn(3, heads.param_count, dtype=torch.float64)
    one_hot = torch.eye(6, dtype=torch.float64).expand(3, -1, -1)
    read, weights = heads(params, memory, heads.initial_weights(3, memory), one_hot)
    key, strength = params.view(3, 2, 5).split((4, 1), dim=-1)
    score = F.cosine_similarity(key.tanh()[:, :, None], memory[:, None], dim=-1)
    expected = (F.softplus(strength) * score).softmax(dim=-1)
    torch.testing.assert_close(weights, expected)
    torch.testing.assert_close(read, expected @ memory)
    assert weights.sum(-1).allclose(torch.ones(3, 2, dtype=torch.float64))


def test_initial_weights_focus_the_first_location_and_memory_is_blank():
    state = NTM(NTMConfig(input_dim=3, output_dim=2)).init_state(2)
    assert state.write_weights[:, :, 0].min() > 0.99
    assert state.read_weights[:, :, 0].min() > 0.99
    assert state.memory.shape == (2, 128, 20)
    assert state.memory.unique().tolist() == pytest.approx([1e-6])


def test_hand_set_weights_copy_a_sequence_through_the_memory():
    """Set the weights by hand that the paper's copy task needs."""
    model = (
        NTM(NTMConfig(input_dim=2, output_dim=1, controller="feedforward", hidden_dim=4, locations=9, location_dim=1))
        .double()
        .eval()
    )
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("initial_logits"):
                weight.zero_()[:, 0] = 100.0
            elif "log_sharpness" not in name:
                weight.zero_()
        # h: [bit seen, -, steps of the answer, -]; the second input is 1 while the answer is asked for
        model.controller.layer.weight[0, 0] = 20.0
        model.controller.layer.weight[2, 1] = 20.0
        bias = model.head_params.bias
        write, read = bias[:9], bias[9:]  # key 1, strength 1, gate 1, sharpening 1, shift 3, erase, add
        for head in (write, read):
            head[2] = -50.0  # gate closed: location addressing only
            head[3] = 20.0
        write[6] = 50.0  # always shift by one
        read[5] = 50.0  # stay,
        model.head_params.weight[9 + 6, 2] = 100.0  # until the answer is asked for
        model.head_params.weight[8, 0] = 20.0  # add the bit
        model.readout.weight[0, 4] = 1.0
    bits = torch.tensor([1.0, 0.0, 1.0, 1.0])
    x = torch.zeros(1, 8, 2).double()
    x[0, :4, 0] = bits
    x[0, 4:, 1] = 1.0
    with qkv.watch(model) as seen:
        params = model(x)[0, 4:, 0]
    assert (params > 0.5).tolist() == [True, False, True, True]
    assert seen["write_heads"].weights[0, 0].argmax(-1).tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert seen["read_heads"].weights[0, 0].argmax(-1).tolist() == [0, 0, 0, 0, 1, 2, 3, 4]


@pytest.mark.parametrize("controller", ["lstm", "feedforward"])
def test_a_sequence_can_be_processed_in_chunks_alone_and_in_a_batch(x, controller):
    model = make(controller=controller)
    full = model(x)
    first, state = model.forward_from(x[:, :3], model.init_state(2))
    second, _ = model.forward_from(x[:, 3:], state)
    torch.testing.assert_close(torch.cat((first, second), dim=1), full)
    swapped = select(state, torch.tensor([1, 0]))
    torch.testing.assert_close(model.forward_from(x[:, 3:].flip(0), swapped)[0], second.flip(0))
    torch.testing.assert_close(model(x[:1]), full[:1])
    later = x.clone()
    later[:, 5:] += 1
    assert model(later)[:, :5].equal(full[:, :5])


@pytest.mark.parametrize("controller", ["lstm", "feedforward"])
def test_gradients_match_finite_differences(controller):
    model = make(controller=controller, hidden_dim=3, locations=4, location_dim=2, read_heads=1, write_heads=1)
    x = torch.randn(2, 4, 3, dtype=torch.float64)
    named = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}

    def logits(*weights):
        return functional_call(model, dict(zip(named, weights, strict=True)), (x,))

    assert torch.autograd.gradcheck(logits, tuple(named.values()), fast_mode=True)


@pytest.mark.parametrize("changes", [{}, {"controller": "feedforward"}, {"addressing": "content"}])
def test_every_trainable_weight_gets_a_gradient(x, changes):
    model = make(**changes)
    model(x).square().sum().backward()
    learned = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    assert len(learned) == sum(1 for _ in model.parameters()) - 2  # except the sharpness of the two scores
    for name, weight in learned.items():
        assert weight.grad.isfinite().all(), name
        assert weight.grad.abs().sum() > 0, name


def test_autocast_does_not_change_the_result(x):
    model, x = make(torch.float32), x.float()
    expected = model(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = model(x)
    assert actual.equal(expected)


@pytest.mark.parametrize("changes", [{}, {"controller": "feedforward", "addressing": "content"}])
def test_a_saved_machine_is_loaded_bit_for_bit(tmp_path, changes):
    model = make(torch.float32, **changes)
    save_model(model, None, tmp_path)
    again = load(tmp_path)
    x = torch.randn(2, 5, 3)
    assert again(x).equal(model(x))
    assert again.config == model.config
    assert {name for name, weight in again.named_parameters() if not weight.requires_grad} == {
        "write_heads.attend.score.log_sharpness", "read_heads.attend.score.log_sharpness",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"hidden_dim": 0}, "hidden_dim must be"),
        ({"locations": 2**13}, "locations must be"),
        ({"read_heads": 0}, "read_heads must be"),
        ({"controller": "lstn"}, "controller = 'lstn'.*lstm"),
        ({"addressing": "nowhere"}, "addressing = 'nowhere'"),
        ({"max_shift": 3}, "max_shift must be"),
        ({"max_shift": -1}, "max_shift must be"),
    ],
)
def test_invalid_configs_raise(wrong, words):
    with pytest.raises(InputError, match=words):
        NTMConfig(**SIZES | wrong)


@pytest.mark.parametrize("shape", [(2, 0, 3), (2, 5, 4)])
@pytest.mark.parametrize("kind", ["machine", "network"])
def test_inputs_of_invalid_shape_raise(shape, kind):
    model = make() if kind == "machine" else LSTMBaseline(LSTMBaselineConfig(input_dim=3, output_dim=2)).double()
    with pytest.raises(ShapeError, match="expected"):
        model(torch.zeros(shape, dtype=torch.float64))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_cuda_graph_replays_forward_and_backward(x):
    model = make(torch.float32).cuda()
    x, other = x.float().cuda(), x.float().flip(0).cuda()

    def run(inputs):
        loss = model(inputs).square().sum()
        return loss.detach(), torch.autograd.grad(loss, model.head_params.weight)[0]

    expected = run(other)
    run(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        actual = run(x)
    x.copy_(other)
    graph.replay()
    torch.testing.assert_close(actual, expected)


@pytest.mark.compiled
@pytest.mark.parametrize("addressing", ["content", "content_and_location"])
def test_compiled_heads_have_the_same_outputs_and_gradients(x, addressing):
    results = []
    for compiled in (False, True):
        model = make(addressing=addressing)
        prepare_blocks(model, compiled=compiled, recompute=False)
        logits, _ = model.forward_from(x, model.init_state(len(x)))
        logits.square().sum().backward()
        results.append([logits.detach(), *(weight.grad for weight in model.parameters() if weight.requires_grad)])
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-12)
