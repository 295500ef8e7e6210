"""Recurrent layers against PyTorch's: whole sequences, single steps, both directions, and gradients."""

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from qkv.nn.fast import dropout
from qkv.nn.rnn import CELLS, BiRNN, Bridge, Recurrent, gather_time, reverse_index

BATCH, LENGTH, INPUTS, EXTRA, HIDDEN = 3, 5, 4, 2, 6

all_cells_and_depths = pytest.mark.parametrize(("cell", "layers"), [(cell, n) for cell in CELLS for n in (1, 3)])


def make_model(cell: str, layers: int, dropout: float = 0.0) -> Recurrent:
    torch.manual_seed(0)
    return Recurrent(cell, INPUTS + EXTRA, HIDDEN, layers, dropout).double()


def inputs(recurrent: Recurrent) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(BATCH, LENGTH, INPUTS + EXTRA, dtype=torch.float64)
    return x, torch.randn(BATCH, len(recurrent.layers), recurrent.state_dim, dtype=torch.float64)


def run_stepwise(recurrent: Recurrent, x: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Run `recurrent(x, state)` step by step, passing the end of the input at each step."""
    steps, layers, outputs = recurrent.unroll(x[..., :INPUTS]), recurrent.unpack_state(state), []
    for extra in x[..., INPUTS:].unbind(1):
        output, layers = steps(layers, extra)
        outputs.append(output)
    return torch.stack(outputs, dim=1), recurrent.pack_state(layers)


@all_cells_and_depths
def test_whole_sequences_match_pytorch(cell, layers):
    recurrent = make_model(cell, layers)
    x, state = inputs(recurrent)
    first = state.transpose(0, 1).contiguous()
    oracle = nn.LSTM if cell == "lstm" else nn.GRU if cell == "gru" else nn.RNN
    theirs = oracle(INPUTS + EXTRA, HIDDEN, layers, batch_first=True).double()
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
    grads = {name: weight.grad for name, weight in theirs.named_parameters()}
    for number, layer in enumerate(recurrent.layers):
        for name, weight in layer.named_parameters():
            torch.testing.assert_close(weight.grad, grads[name.replace("l0", f"l{number}")])


@all_cells_and_depths
def test_stepwise_matches_whole_sequences_forward_and_backward(cell, layers):
    recurrent = make_model(cell, layers)
    x, state = (value.requires_grad_() for value in inputs(recurrent))
    expected_grads = [x, state, *recurrent.parameters()]
    actual = []
    for run in (recurrent, lambda *inputs: run_stepwise(recurrent, *inputs)):
        output, after = run(x, state)
        grads = torch.autograd.grad((output.sin().sum() + after.cos().sum()), expected_grads)
        actual.append((output, after, *grads))
    for at_once, one_by_one in zip(*actual, strict=True):
        torch.testing.assert_close(one_by_one, at_once, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("cell", CELLS)
def test_stepwise_gradients_match_finite_differences(cell):
    recurrent = make_model(cell, 2)
    names = [name for name, _ in recurrent.named_parameters()]

    def run(x, state, *weights):
        with torch.no_grad():  # run with the perturbed weights
            for name, weight in zip(names, weights, strict=True):
                recurrent.get_parameter(name).copy_(weight)
        return run_stepwise(recurrent, x, state)[0].square().sum()

    x, state = (value[:, :2].clone().requires_grad_() for value in inputs(recurrent))
    weights = [recurrent.get_parameter(name).detach().clone() for name in names]
    grads = torch.autograd.grad(run(x, state, *weights), [x, state, *recurrent.parameters()])
    for position, grad in enumerate(grads):
        values = [x.detach(), state.detach(), *weights]
        direction = torch.randn_like(values[position])
        above, below = (
            run(
                *(value + sign * 1e-6 * direction if index == position else value for index, value in enumerate(values))
            )
            for sign in (1, -1)
        )
        torch.testing.assert_close((above - below) / 2e-6, (grad * direction).sum(), rtol=1e-6, atol=1e-7)


def test_repeated_and_partial_backward_give_the_right_gradients():
    recurrent = make_model("gru", 1)
    x, state = inputs(recurrent)
    (output, _), (expected, _) = run_stepwise(recurrent, x, state), recurrent(x, state)
    for steps in (slice(1, 2), slice(None), slice(3, 4)):
        actual, expected_grads = (
            torch.autograd.grad(outputs_[:, steps].sum(), list(recurrent.parameters()), retain_graph=True)
            for outputs_ in (output, expected)
        )
        for a, b in zip(actual, expected_grads, strict=True):
            torch.testing.assert_close(a, b)


def test_a_finished_run_is_freed():
    recurrent = make_model("gru", 1)
    x, state = inputs(recurrent)
    steps = recurrent.unroll(x[..., :INPUTS])
    output, layers = steps(recurrent.unpack_state(state), x[:, 0, INPUTS:])
    kept = weakref.ref(steps.layers[0][0].inputs[0])
    gc.disable()  # so that only reference counting frees it
    try:
        del steps
        assert kept() is not None
        del output, layers
        assert kept() is None
    finally:
        gc.enable()


@all_cells_and_depths
def test_a_sequence_can_be_processed_in_chunks(cell, layers):
    recurrent = make_model(cell, layers)
    x, state = inputs(recurrent)
    full, last = recurrent(x, state)
    early, between = recurrent(x[:, :2], state)
    late, after = run_stepwise(recurrent, x[:, 2:], between)
    torch.testing.assert_close(torch.cat((early, late), dim=1), full)
    torch.testing.assert_close(after, last)


def test_dropout_between_layers_acts_in_training_only():
    recurrent = make_model("gru", 2, dropout=0.5)
    x, state = inputs(recurrent)
    torch.testing.assert_close(run_stepwise(recurrent.eval(), x, state)[0], recurrent(x, state)[0])
    recurrent.train()
    assert not run_stepwise(recurrent, x, state)[0].equal(run_stepwise(recurrent, x, state)[0])


@pytest.mark.parametrize("cell", CELLS)
def test_dropout_between_layers_uses_the_pytorch_generator(cell):
    recurrent = make_model(cell, 3, dropout=0.5)
    x, _ = inputs(recurrent)
    torch.manual_seed(1)
    actual, _ = recurrent(x)
    torch.manual_seed(1)
    expected, _ = recurrent.layers[0](x)
    for layer in recurrent.layers[1:]:
        expected, _ = layer(dropout(expected, 0.5))
    torch.testing.assert_close(actual, expected)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("cell", CELLS)
def test_on_a_gpu_dropout_follows_the_saved_rng_state(cell):
    recurrent = make_model(cell, 2, dropout=0.5).cuda()
    x, _ = (value.cuda() for value in inputs(recurrent))
    saved = torch.cuda.get_rng_state()
    first, _ = recurrent(x)
    assert not recurrent(x)[0].equal(first)
    torch.cuda.set_rng_state(saved)
    assert recurrent(x)[0].equal(first)


def test_under_autocast_an_lstm_cell_accumulates_in_float32():
    recurrent = Recurrent("lstm", INPUTS, HIDDEN)
    with torch.no_grad():
        for weight in recurrent.parameters():
            weight.zero_()
        recurrent.rnn.bias_ih_l0.copy_(torch.tensor([0.0, 20.0, 0.01, 0.0]).repeat_interleave(HIDDEN))  # i f g o
    x, state = torch.zeros(BATCH, 500, INPUTS), torch.zeros(BATCH, 1, 2 * HIDDEN)
    with torch.autocast("cpu", torch.bfloat16):
        steps, layers = recurrent.unroll(x), recurrent.unpack_state(state)
        for _ in range(500):
            output, layers = steps(layers)
    assert output.dtype == torch.bfloat16
    c = recurrent.pack_state(layers)[..., HIDDEN:]
    torch.testing.assert_close(c, torch.full_like(c, 500 * 0.005), rtol=0.005, atol=0)  # 1/2 tanh(0.01) a step


@pytest.mark.parametrize("cell", CELLS)
def test_under_autocast_steps_are_bfloat16_and_gradients_float32(cell):
    recurrent = make_model(cell, 2).float()
    x, state = (value.float() for value in inputs(recurrent))
    exact, _ = recurrent(x, state)
    with torch.autocast("cpu", torch.bfloat16):
        short, _ = run_stepwise(recurrent, x, state)
    assert short.dtype == torch.bfloat16
    torch.testing.assert_close(short.float(), exact, rtol=0, atol=0.05)
    short.float().sum().backward()
    theirs = torch.autograd.grad(exact.sum(), list(recurrent.parameters()))
    for weight, grad in zip(recurrent.parameters(), theirs, strict=True):
        assert weight.grad.dtype == torch.float32
        assert (weight.grad - grad).norm() < 0.05 * grad.norm()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@all_cells_and_depths
def test_on_a_gpu_stepwise_matches_whole_sequences(cell, layers):
    recurrent = make_model(cell, layers)
    x, state = inputs(recurrent)
    expected = run_stepwise(recurrent, x, state)[0]
    expected_grads = torch.autograd.grad(expected.sin().sum(), list(recurrent.parameters()))
    recurrent = recurrent.cuda()
    actual = run_stepwise(recurrent, x.cuda(), state.cuda())[0]
    grads = torch.autograd.grad(actual.sin().sum(), list(recurrent.parameters()))
    for grad, expected_grad in zip((actual, *grads), (expected, *expected_grads), strict=True):
        torch.testing.assert_close(grad.cpu(), expected_grad, rtol=1e-9, atol=1e-9)
    with torch.autocast("cuda", torch.bfloat16):
        short = run_stepwise(recurrent.float(), x.cuda().float(), state.cuda().float())[0]
    assert short.dtype == torch.bfloat16
    torch.testing.assert_close(short.cpu().double(), expected, rtol=0, atol=0.05)


@pytest.mark.parametrize("cell", CELLS)
def test_a_birnn_matches_packed_sequences(cell):
    torch.manual_seed(0)
    both = BiRNN(cell, INPUTS, 2 * HIDDEN).double()
    theirs = type(both.forward_rnn.rnn)(INPUTS, HIDDEN, batch_first=True, bidirectional=True).double()
    forward, backward = both.forward_rnn.rnn.state_dict(), both.backward_rnn.rnn.state_dict()
    theirs.load_state_dict(forward | {f"{name}_reverse": weight for name, weight in backward.items()})
    x, lengths = torch.randn(3, 6, INPUTS, dtype=torch.float64), torch.tensor([4, 6, 1])
    packed, last = theirs(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
    expected, _ = pad_packed_sequence(packed, batch_first=True)
    outputs, summary = both(x, lengths, reverse_index(lengths, 6))
    for row, length in enumerate(lengths):
        torch.testing.assert_close(outputs[row, :length], expected[row, :length])
    h = last[0] if cell == "lstm" else last
    torch.testing.assert_close(summary, torch.cat((h[0], h[1]), dim=-1))


def test_an_empty_sentence_has_a_zero_final_state():
    both = BiRNN("gru", INPUTS, 2 * HIDDEN)
    lengths = torch.tensor([0, 2])
    _, last = both(torch.randn(2, 3, INPUTS), lengths, reverse_index(lengths, 3))
    assert last[0].eq(0).all()
    assert last[1].ne(0).any()


def test_reverse_index_keeps_padding_in_place():
    order = reverse_index(torch.tensor([4, 2, 0]), 4)
    assert order.tolist() == [[3, 2, 1, 0], [1, 0, 2, 3], [0, 1, 2, 3]]
    x = torch.randn(3, 4, 2)
    assert gather_time(gather_time(x, order), order).equal(x)


def test_bridges_project_squash_copy_or_zero_the_final_states():
    torch.manual_seed(0)
    last = torch.randn(3, 2, 4)
    linear, tanh = Bridge("linear", (2, 4), (2, 6)), Bridge("tanh", (2, 4), (2, 6))
    tanh.load_state_dict(linear.state_dict())
    torch.testing.assert_close(tanh(last), linear(last).tanh())
    weight, bias = linear.project.weight, linear.project.bias
    by_hand = torch.stack([weight @ torch.cat((item[0], item[1])) + bias for item in last])
    torch.testing.assert_close(linear(last), torch.stack((by_hand[:, :6], by_hand[:, 6:]), dim=1))
    assert Bridge("none", (2, 4), (2, 8))(last).equal(torch.cat((last, last), dim=-1))  # of an LSTM: h and c
    assert Bridge("linear", (2, 4), (3, 5))(last).shape == (3, 3, 5)
    assert Bridge("zeros", (2, 4), (2, 6))(last).equal(torch.zeros(3, 2, 6))
