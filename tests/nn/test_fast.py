"""Fast versions against the plain ones: values, gradients, and the switch that turns them off."""

import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from qkv.nn import fast
from qkv.nn.fast import Dropout, StepLinear, dropout
from qkv.nn.interfaces import EncoderDecoder
from qkv.registry import lookup

BATCH, LENGTH, INPUTS, HIDDEN = 3, 4, 5, 6


def gates(count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    sizes = (count * HIDDEN, count * HIDDEN, HIDDEN)
    return tuple(torch.randn(BATCH, size, dtype=torch.float64, requires_grad=True) for size in sizes)


def assert_equal_with_gradients(fast_result, plain_result, inputs) -> None:
    torch.testing.assert_close(fast_result, plain_result)
    actual, expected = (torch.autograd.grad(result.sin().sum(), inputs) for result in (fast_result, plain_result))
    for grad, expected_grad in zip(actual, expected, strict=True):
        torch.testing.assert_close(grad, expected_grad)


def test_the_switch_can_be_set_by_a_context_or_the_environment():
    assert fast.enabled()
    with fast.disabled():
        assert not fast.enabled()
        with fast.disabled():
            pass
        assert not fast.enabled()
    assert fast.enabled()
    command = [sys.executable, "-c", "from qkv.nn import fast; print(fast.enabled())"]
    assert subprocess.run(command, env={"QKV_FAST": "0", "PYTHONPATH": ":".join(sys.path)}, capture_output=True,
                          check=True, text=True).stdout == "False\n"  # fmt: skip


def test_a_gru_cell_matches_the_plain_one():
    inputs = gates(3)
    assert_equal_with_gradients(fast.gru_cell(*inputs), fast.plain_gru_cell(*inputs), inputs)
    with torch.no_grad():
        torch.testing.assert_close(fast.gru_cell(*inputs), fast.plain_gru_cell(*inputs))


def test_a_plain_gru_cell_matches_pytorch():
    torch.manual_seed(0)
    cell, x, h = nn.GRUCell(INPUTS, HIDDEN).double(), torch.randn(BATCH, INPUTS).double(), torch.randn(BATCH, HIDDEN)
    h = h.double()
    input_gates = F.linear(x, cell.weight_ih, cell.bias_ih)
    hidden_gates = F.linear(h, cell.weight_hh, cell.bias_hh)
    torch.testing.assert_close(fast.plain_gru_cell(input_gates, hidden_gates, h), cell(x, h))


def test_a_plain_lstm_cell_matches_pytorch():
    torch.manual_seed(0)
    cell = nn.LSTMCell(INPUTS, HIDDEN).double()
    x, h, c = (torch.randn(BATCH, size).double() for size in (INPUTS, HIDDEN, HIDDEN))
    input_gates = F.linear(x, cell.weight_ih, cell.bias_ih)
    hidden_gates = F.linear(h, cell.weight_hh, cell.bias_hh)
    torch.testing.assert_close(fast.plain_lstm_cell(input_gates, hidden_gates, c), cell(x, (h, c)))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("name", "count"), [("gru_cell", 3), ("lstm_cell", 4)])
def test_fused_gpu_cells_match_the_plain_ones(name, count):
    inputs = tuple(value.detach().cuda().requires_grad_() for value in gates(count))
    actual, expected = getattr(fast, name)(*inputs), getattr(fast, f"plain_{name}")(*inputs)
    if name == "lstm_cell":
        actual, expected = torch.cat(actual), torch.cat(expected)
    assert_equal_with_gradients(actual, expected, inputs)


def test_a_gru_layer_matches_pytorch():
    torch.manual_seed(0)
    layer = nn.GRU(INPUTS, HIDDEN, batch_first=True).double()
    x, h = torch.randn(BATCH, LENGTH, INPUTS).double(), torch.randn(BATCH, HIDDEN).double()
    inputs = [value.requires_grad_() for value in (x, h)] + list(layer.parameters())
    outputs, last = fast.gru_layer(layer, x, h)
    with fast.disabled():
        plain_outputs, plain_last = fast.gru_layer(layer, x, h)
    assert_equal_with_gradients(outputs, plain_outputs, inputs)
    torch.testing.assert_close(last, plain_last)


def test_a_step_linear_matches_the_plain_one_and_the_linear_layer():
    torch.manual_seed(0)
    linear, x = nn.Linear(3, 2).double(), torch.randn(LENGTH, BATCH, 3, dtype=torch.float64, requires_grad=True)

    def run() -> torch.Tensor:
        steps = StepLinear.from_linear(linear, LENGTH, BATCH)
        return torch.stack([steps(item) for item in x])

    inputs = (x, *linear.parameters())
    with fast.disabled():
        plain = run()
    assert_equal_with_gradients(run(), plain, inputs)
    torch.testing.assert_close(plain, linear(x))


@pytest.mark.parametrize("consume", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_cross_entropy_matches_the_plain_one(smoothing, consume):
    torch.manual_seed(0)
    logits, targets = torch.randn(20, 7, dtype=torch.float64), torch.randint(7, (20,))
    for number in (logits[:0], logits):
        actual, expected = (number.clone().requires_grad_() for _ in range(2))
        loss = fast.cross_entropy(actual * 1, targets[: len(number)], 0, smoothing, consume=consume)
        plain = fast.plain_cross_entropy(expected, targets[: len(number)], 0, smoothing)
        torch.testing.assert_close(loss, plain)
        grads = (torch.autograd.grad(3 * value, x)[0] for value, x in ((loss, actual), (plain, expected)))
        torch.testing.assert_close(*grads)


MODELS = {
    "bahdanau": {"cell": "gru", "layers": 2},
    "luong": {"decoder": "luong", "cell": "lstm"},
    "plain": {"decoder": "plain", "cell": "gru", "context": "both"},
}


@pytest.mark.parametrize("options", MODELS.values(), ids=MODELS)
def test_a_model_and_its_gradients_match_without_fast_versions(options):
    torch.manual_seed(0)
    network = lookup("model", "rnn_seq2seq")
    config = network.config_class(source_vocab_size=9, target_vocab_size=9, embedding_dim=4, hidden_dim=6, **options)
    model: EncoderDecoder = network(config.replace(dropout=0.0)).double()
    source, target, lengths = torch.randint(1, 9, (3, 5)), torch.randint(1, 9, (3, 4)), torch.tensor([5, 2, 1])

    def loss() -> torch.Tensor:
        return fast.cross_entropy(model(source, target, lengths).flatten(0, 1), target.flatten(), 0, 0.1)

    with fast.disabled():
        plain = loss()
    assert_equal_with_gradients(loss(), plain, list(model.parameters()))


def test_dropout_without_fast_versions_is_that_of_pytorch():
    x = torch.randn(1000)
    torch.manual_seed(0)
    with fast.disabled():
        plain = dropout(x, 0.3)
    torch.manual_seed(0)
    assert plain.equal(F.dropout(x, 0.3))


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("shape", [(1001, 997), (3, 5, 7, 10001)], ids=str)
def test_elements_are_dropped_uniformly_and_the_rest_is_scaled(p, shape):
    torch.manual_seed(0)
    kept = dropout(torch.ones(shape), p) != 0
    tolerance = 4 * (p * (1 - p) / kept.numel()) ** 0.5
    assert kept.double().mean() == pytest.approx(1 - p, abs=tolerance)
    for position in range(4):  # four elements share one random number: each must be fair
        assert kept.flatten()[position::4].double().mean() == pytest.approx(1 - p, abs=2 * tolerance)
    assert dropout(torch.ones(shape), p).max() == pytest.approx(1 / (1 - p), rel=1e-4)


def test_neighbours_are_drawn_independently():
    torch.manual_seed(0)
    dropped = (dropout(torch.ones(4_000_000), 0.5) == 0).double() - 0.5
    for distance in (1, 2, 3, 4, 5, 8):
        assert abs((dropped[distance:] * dropped[:-distance]).mean()) < 4 * 0.25 / len(dropped) ** 0.5


def test_the_gradient_has_the_mask_of_the_output():
    x = torch.randn(100, 7, dtype=torch.float64, requires_grad=True)
    y = dropout(x, 0.25)
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert ((grad == 0) == (y == 0)).all()
    torch.testing.assert_close(grad * x, y)


def test_dropout_is_reproducible_from_a_seed_or_a_saved_rng_state():
    x = torch.ones(1000)
    torch.manual_seed(3)
    first = dropout(x, 0.5)
    state = torch.get_rng_state()
    second = dropout(x, 0.5)
    torch.manual_seed(3)
    assert torch.equal(dropout(x, 0.5), first)
    torch.set_rng_state(state)
    assert torch.equal(dropout(x, 0.5), second)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1,), (2, 0, 3)], ids=str)
def test_it_takes_any_shape(shape):
    assert dropout(torch.ones(shape), 0.5).shape == shape


def test_it_is_the_identity_in_eval_mode_and_for_p_0():
    x = torch.randn(50)
    assert torch.equal(Dropout(0.5).eval()(x), x)
    assert torch.equal(Dropout(0.0).train()(x), x)
    assert not torch.equal(Dropout(0.5).train()(x), x)


def test_the_dtype_is_kept():
    assert dropout(torch.ones(8, dtype=torch.bfloat16), 0.5).dtype == torch.bfloat16


@pytest.mark.gpu
def test_on_a_gpu_it_is_pytorch_dropout():
    x = torch.randn(1000, device="cuda")
    torch.manual_seed(0)
    ours = dropout(x, 0.3)
    torch.manual_seed(0)
    assert torch.equal(ours, F.dropout(x, 0.3))


@pytest.mark.parametrize("width", [1, 3, 5])
def test_the_maximum_of_a_convolution_matches_the_plain_one(width):
    torch.manual_seed(0)
    convolution, x = torch.nn.Conv1d(3, 4, width).double(), torch.randn(2, 5, 3, dtype=torch.float64)
    leaves = [x.requires_grad_(), *convolution.parameters()]
    results = [function(x, convolution) for function in (fast.max_convolution, fast.plain_max_convolution)]
    torch.testing.assert_close(*results)
    weight = torch.randn_like(results[0])
    torch.testing.assert_close(*(torch.autograd.grad((result * weight).sum(), leaves) for result in results))


def test_the_kernels_of_several_convolutions_match_the_plain_one():
    pytest.importorskip("triton")
    torch.manual_seed(0)
    x = torch.randn(70, 6, 5).requires_grad_()
    sizes = ((1, 3, True), (2, 20, False), (4, 131, True))
    convolutions = [torch.nn.Conv1d(5, outputs, width, bias=bias) for width, outputs, bias in sizes]
    leaves = [x, *(parameter for convolution in convolutions for parameter in convolution.parameters())]
    actual = fast._fused_max_convolutions(x, convolutions, x.dtype)
    expected = torch.cat([fast.plain_max_convolution(x, convolution) for convolution in convolutions], dim=-1)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(fast.max_convolutions(x, convolutions), expected, rtol=1e-5, atol=1e-5)
    weight = torch.randn_like(expected)
    gradients = [torch.autograd.grad(result, leaves, weight) for result in (actual, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gelu_matches_float64_with_its_gradient(dtype, approximate, monkeypatch):
    monkeypatch.setattr(fast, "MIN_GELU", 0)
    numbers = torch.cat((torch.linspace(-12, 12, 20011), torch.tensor([0.0, 1e4, -1e4])))  # not a multiple of 16
    x, grad = numbers.to(dtype).requires_grad_(), torch.linspace(-2, 2, len(numbers)).to(dtype)
    exact = x.detach().double().requires_grad_()
    y, truth = fast.gelu(x, approximate), F.gelu(exact, approximate=approximate)
    y.backward(grad)
    truth.backward(grad.double())
    most = {torch.float32: 1e-6, torch.bfloat16: 2**-7}[dtype]
    torch.testing.assert_close(y.double(), truth, rtol=most, atol=1e-6)
    torch.testing.assert_close(x.grad.double(), exact.grad, rtol=most, atol=most)
    with fast.disabled():
        torch.testing.assert_close(fast.gelu(x, approximate), F.gelu(x, approximate=approximate), rtol=0, atol=0)


def test_gelu_keeps_numbers_that_are_not_finite(monkeypatch):
    monkeypatch.setattr(fast, "MIN_GELU", 0)
    x = torch.tensor([float("nan"), float("inf"), 1.0], requires_grad=True)
    y = fast.gelu(x)
    y.sum().backward()
    assert y.isnan().tolist() == [True, False, False]
    assert y[1] == float("inf")
    assert x.grad[0].isnan()
