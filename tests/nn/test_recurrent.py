"""Recurrent layers against PyTorch's: all steps at once, one at a time, both ways, and backward."""

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from qkv.nn.dropout import dropout
from qkv.nn.recurrent import CELLS, BothWays, Bridge, Products, Recurrent, take, turning

BATCH, LENGTH, KNOWN, FURTHER, HIDDEN = 3, 5, 4, 2, 6

layers_of_all_kinds = pytest.mark.parametrize(("cell", "layers"), [(cell, n) for cell in CELLS for n in (1, 3)])


def made(cell: str, layers: int, dropout: float = 0.0) -> Recurrent:
    torch.manual_seed(0)
    return Recurrent(cell, KNOWN + FURTHER, HIDDEN, layers, dropout).double()


def inputs(recurrent: Recurrent) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(BATCH, LENGTH, KNOWN + FURTHER, dtype=torch.float64)
    return x, torch.randn(BATCH, len(recurrent.layers), recurrent.width, dtype=torch.float64)


def unrolled(recurrent: Recurrent, x: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The same as `recurrent(x, state)`, a step at a time, the end of the input given as late as can be."""
    steps, layers, outputs = recurrent.unroll(x[..., :KNOWN]), recurrent.split(state), []
    for further in x[..., KNOWN:].unbind(1):
        output, layers = steps(layers, further)
        outputs.append(output)
    return torch.stack(outputs, dim=1), recurrent.join(layers)


@layers_of_all_kinds
def test_all_steps_at_once_are_those_of_pytorch(cell, layers):
    recurrent = made(cell, layers)
    x, state = inputs(recurrent)
    first = state.transpose(0, 1).contiguous()
    oracle = nn.LSTM if cell == "lstm" else nn.GRU if cell == "gru" else nn.RNN
    theirs = oracle(KNOWN + FURTHER, HIDDEN, layers, batch_first=True).double()
    theirs.load_state_dict(
        {
            name.replace("l0", f"l{number}"): weight
            for number, layer in enumerate(recurrent.layers)
            for name, weight in layer.state_dict().items()
        }
    )
    if cell == "lstm":
        expected, (h, c) = theirs(x, (first[..., :HIDDEN].contiguous(), first[..., HIDDEN:].contiguous()))
        last = torch.cat((h, c), dim=-1)
    else:
        expected, last = theirs(x, first)
    output, after = recurrent(x, state)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(after, last.transpose(0, 1))
    output.sin().sum().backward()
    expected.sin().sum().backward()
    slopes = {name: weight.grad for name, weight in theirs.named_parameters()}
    for number, layer in enumerate(recurrent.layers):
        for name, weight in layer.named_parameters():
            torch.testing.assert_close(weight.grad, slopes[name.replace("l0", f"l{number}")])


@layers_of_all_kinds
def test_one_step_at_a_time_computes_what_all_at_once_do_forward_and_backward(cell, layers):
    recurrent = made(cell, layers)
    x, state = (value.requires_grad_() for value in inputs(recurrent))
    wanted = [x, state, *recurrent.parameters()]
    found = []
    for run in (recurrent, lambda *given: unrolled(recurrent, *given)):
        output, after = run(x, state)
        slopes = torch.autograd.grad((output.sin().sum() + after.cos().sum()), wanted)
        found.append((output, after, *slopes))
    for at_once, one_by_one in zip(*found, strict=True):
        torch.testing.assert_close(one_by_one, at_once, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("cell", CELLS)
def test_the_gradient_of_single_steps_agrees_with_finite_differences(cell):
    recurrent = made(cell, 2)
    names = [name for name, _ in recurrent.named_parameters()]

    def run(x, state, *weights):
        with torch.no_grad():  # what is changed is looked at through the weights themselves
            for name, weight in zip(names, weights, strict=True):
                recurrent.get_parameter(name).copy_(weight)
        return unrolled(recurrent, x, state)[0].square().sum()

    x, state = (value[:, :2].clone().requires_grad_() for value in inputs(recurrent))
    weights = [recurrent.get_parameter(name).detach().clone() for name in names]
    slopes = torch.autograd.grad(run(x, state, *weights), [x, state, *recurrent.parameters()])
    for place, slope in enumerate(slopes):
        values = [x.detach(), state.detach(), *weights]
        direction = torch.randn_like(values[place])
        above, below = (
            run(*(value + sign * 1e-6 * direction if at == place else value for at, value in enumerate(values)))
            for sign in (1, -1)
        )
        torch.testing.assert_close((above - below) / 2e-6, (slope * direction).sum(), rtol=1e-6, atol=1e-7)


def test_going_back_again_or_from_some_steps_only_gives_the_right_gradient_each_time():
    recurrent = made("gru", 1)
    x, state = inputs(recurrent)
    (output, _), (expected, _) = unrolled(recurrent, x, state), recurrent(x, state)
    for steps in (slice(1, 2), slice(None), slice(3, 4)):
        found, wanted = (
            torch.autograd.grad(all_of_them[:, steps].sum(), list(recurrent.parameters()), retain_graph=True)
            for all_of_them in (output, expected)
        )
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other)


def test_a_pass_that_is_over_is_not_kept_in_memory():
    recurrent = made("gru", 1)
    x, state = inputs(recurrent)
    steps = recurrent.unroll(x[..., :KNOWN])
    output, layers = steps(recurrent.split(state), x[:, 0, KNOWN:])
    kept = weakref.ref(steps.layers[0][0].seen[0])
    gc.disable()  # or it would clear up after us
    try:
        del steps
        assert kept() is not None
        del output, layers
        assert kept() is None
    finally:
        gc.enable()


@layers_of_all_kinds
def test_a_sequence_may_be_read_in_parts(cell, layers):
    recurrent = made(cell, layers)
    x, state = inputs(recurrent)
    whole, last = recurrent(x, state)
    early, between = recurrent(x[:, :2], state)
    late, after = unrolled(recurrent, x[:, 2:], between)
    torch.testing.assert_close(torch.cat((early, late), dim=1), whole)
    torch.testing.assert_close(after, last)


def test_dropout_between_layers_acts_in_training_only():
    recurrent = made("gru", 2, dropout=0.5)
    x, state = inputs(recurrent)
    torch.testing.assert_close(unrolled(recurrent.eval(), x, state)[0], recurrent(x, state)[0])
    recurrent.train()
    assert not unrolled(recurrent, x, state)[0].equal(unrolled(recurrent, x, state)[0])


@pytest.mark.parametrize("cell", CELLS)
def test_dropout_between_layers_is_what_pytorchs_generator_draws(cell):
    recurrent = made(cell, 3, dropout=0.5)
    x, _ = inputs(recurrent)
    torch.manual_seed(1)
    found, _ = recurrent(x)
    torch.manual_seed(1)
    expected, _ = recurrent.layers[0](x)
    for layer in recurrent.layers[1:]:
        expected, _ = layer(dropout(expected, 0.5))
    torch.testing.assert_close(found, expected)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("cell", CELLS)
def test_on_a_gpu_the_saved_random_state_decides_dropout_between_layers(cell):
    recurrent = made(cell, 2, dropout=0.5).cuda()
    x, _ = (value.cuda() for value in inputs(recurrent))
    saved = torch.cuda.get_rng_state()
    first, _ = recurrent(x)
    assert not recurrent(x)[0].equal(first)
    torch.cuda.set_rng_state(saved)
    assert recurrent(x)[0].equal(first)


def test_under_autocast_an_lstm_goes_on_adding_up_small_amounts():
    recurrent = Recurrent("lstm", KNOWN, HIDDEN)
    with torch.no_grad():
        for weight in recurrent.parameters():
            weight.zero_()
        recurrent.rnn.bias_ih_l0.copy_(torch.tensor([0.0, 20.0, 0.01, 0.0]).repeat_interleave(HIDDEN))  # i f g o
    x, state = torch.zeros(BATCH, 500, KNOWN), torch.zeros(BATCH, 1, 2 * HIDDEN)
    with torch.autocast("cpu", torch.bfloat16):
        steps, layers = recurrent.unroll(x), recurrent.split(state)
        for _ in range(500):
            output, layers = steps(layers)
    assert output.dtype == torch.bfloat16
    c = recurrent.join(layers)[..., HIDDEN:]
    torch.testing.assert_close(c, torch.full_like(c, 500 * 0.005), rtol=0.005, atol=0)  # 1/2 tanh(0.01) a step


@pytest.mark.parametrize("cell", CELLS)
def test_under_autocast_steps_run_in_short_numbers_and_gradients_come_in_long_ones(cell):
    recurrent = made(cell, 2).float()
    x, state = (value.float() for value in inputs(recurrent))
    exact, _ = recurrent(x, state)
    with torch.autocast("cpu", torch.bfloat16):
        short, _ = unrolled(recurrent, x, state)
    assert short.dtype == torch.bfloat16
    torch.testing.assert_close(short.float(), exact, rtol=0, atol=0.05)
    short.float().sum().backward()
    theirs = torch.autograd.grad(exact.sum(), list(recurrent.parameters()))
    for weight, slope in zip(recurrent.parameters(), theirs, strict=True):
        assert weight.grad.dtype == torch.float32
        assert (weight.grad - slope).norm() < 0.05 * slope.norm()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@layers_of_all_kinds
def test_on_a_gpu_one_step_at_a_time_computes_what_all_at_once_do(cell, layers):
    recurrent = made(cell, layers)
    x, state = inputs(recurrent)
    expected = unrolled(recurrent, x, state)[0]
    wanted = torch.autograd.grad(expected.sin().sum(), list(recurrent.parameters()))
    recurrent = recurrent.cuda()
    found = unrolled(recurrent, x.cuda(), state.cuda())[0]
    slopes = torch.autograd.grad(found.sin().sum(), list(recurrent.parameters()))
    for one, other in zip((found, *slopes), (expected, *wanted), strict=True):
        torch.testing.assert_close(one.cpu(), other, rtol=1e-9, atol=1e-9)
    with torch.autocast("cuda", torch.bfloat16):
        short = unrolled(recurrent.float(), x.cuda().float(), state.cuda().float())[0]
    assert short.dtype == torch.bfloat16
    torch.testing.assert_close(short.cpu().double(), expected, rtol=0, atol=0.05)


def test_a_linear_layer_for_many_steps_is_that_layer():
    torch.manual_seed(0)
    linear, x = nn.Linear(3, 2).double(), torch.randn(4, 5, 3, dtype=torch.float64)
    product = Products.of(linear, 4, 5)
    found, expected = torch.stack([product(one) for one in x]), linear(x)
    torch.testing.assert_close(found, expected)
    slopes = (torch.autograd.grad(value.sin().sum(), list(linear.parameters())) for value in (found, expected))
    for one, other in zip(*slopes, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("cell", CELLS)
def test_reading_both_ways_equals_packed_sequences(cell):
    torch.manual_seed(0)
    both = BothWays(cell, KNOWN, 2 * HIDDEN).double()
    theirs = type(both.ahead.rnn)(KNOWN, HIDDEN, batch_first=True, bidirectional=True).double()
    ahead, back = both.ahead.rnn.state_dict(), both.back.rnn.state_dict()
    theirs.load_state_dict(ahead | {f"{name}_reverse": weight for name, weight in back.items()})
    x, lengths = torch.randn(3, 6, KNOWN, dtype=torch.float64), torch.tensor([4, 6, 1])
    packed, last = theirs(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
    expected, _ = pad_packed_sequence(packed, batch_first=True)
    outputs, summary = both(x, lengths, turning(lengths, 6))
    for row, length in enumerate(lengths):
        torch.testing.assert_close(outputs[row, :length], expected[row, :length])
    h = last[0] if cell == "lstm" else last
    torch.testing.assert_close(summary, torch.cat((h[0], h[1]), dim=-1))


def test_an_empty_sentence_leaves_nothing():
    both = BothWays("gru", KNOWN, 2 * HIDDEN)
    lengths = torch.tensor([0, 2])
    _, last = both(torch.randn(2, 3, KNOWN), lengths, turning(lengths, 3))
    assert last[0].eq(0).all()
    assert last[1].ne(0).any()


def test_turning_a_sentence_round_leaves_its_padding_in_place():
    order = turning(torch.tensor([4, 2, 0]), 4)
    assert order.tolist() == [[3, 2, 1, 0], [1, 0, 2, 3], [0, 1, 2, 3]]
    x = torch.randn(3, 4, 2)
    assert take(take(x, order), order).equal(x)


def test_a_bridge_turns_squashes_copies_or_leaves_out_the_last_states():
    torch.manual_seed(0)
    last = torch.randn(3, 2, 4)
    linear, tanh = Bridge("linear", 2, 4, 6), Bridge("tanh", 2, 4, 6)
    tanh.load_state_dict(linear.state_dict())
    torch.testing.assert_close(tanh(last), linear(last).tanh())
    weight, bias = linear.project.weight, linear.project.bias
    by_hand = torch.stack([weight @ torch.cat((one[0], one[1])) + bias for one in last])
    torch.testing.assert_close(linear(last), torch.stack((by_hand[:, :6], by_hand[:, 6:]), dim=1))
    assert Bridge("none", 2, 4, 8)(last).equal(torch.cat((last, last), dim=-1))  # of an LSTM: h and c
    assert Bridge("zeros", 2, 4, 6)(last).equal(torch.zeros(3, 2, 6))
