"""The fused LSTM with projection equals the plain one, and its gradient is right."""

import pytest
import torch

from qkv.nn import fast
from qkv.nn.projected_lstm import _cell_backward, _cell_forward, _projected_gradient, plain_scan, scan


def inputs(dtype: torch.dtype = torch.float64, length: int = 4) -> list[torch.Tensor]:
    torch.manual_seed(0)
    shapes = [(length, 2, 3, 20), (2, 20), (2, 3, 4), (2, 3, 5), (2, 4, 20), (2, 5, 4)]
    return [torch.randn(shape, dtype=dtype).requires_grad_() for shape in shapes]


@pytest.mark.parametrize("clips", [(None, None), (0.5, 0.7), (3.0, None)])
def test_the_scan_equals_the_plain_one(clips):
    tensors = inputs()
    expected, actual = plain_scan(*tensors, *clips), scan(*tensors, *clips)
    torch.testing.assert_close(actual, expected)
    weights = [torch.randn_like(part) for part in expected]
    gradients = [
        torch.autograd.grad(sum((part * weight).sum() for part, weight in zip(parts, weights, strict=True)), tensors)
        for parts in (expected, actual)
    ]
    torch.testing.assert_close(gradients[1], gradients[0])


def test_the_gradient_of_the_scan_without_the_cells():
    tensors = inputs(length=3)
    assert torch.autograd.gradcheck(lambda *x: scan(*x, None, 0.8)[0], tensors)


def test_the_switch_uses_the_plain_version(monkeypatch):
    monkeypatch.setattr("qkv.nn.projected_lstm._Scan", None)
    tensors = inputs()
    with fast.disabled():
        torch.testing.assert_close(scan(*tensors, 1.0, 1.0), plain_scan(*tensors, 1.0, 1.0))


def test_the_kernels_of_a_step_equal_the_operations_of_pytorch():
    pytest.importorskip("triton")
    from qkv.nn.kernels import lstm_kernels

    torch.manual_seed(0)
    gates, x, cell = 2 * torch.randn(2, 3, 28), torch.randn(2, 3, 28), torch.randn(2, 3, 7)
    bias = torch.randn(2, 28)
    grad_output, grad_cell = torch.randn(2, 3, 7), torch.randn(2, 3, 7)
    results = []
    for forward, backward in ((_cell_forward, _cell_backward), (lstm_kernels.cell_forward, lstm_kernels.cell_backward)):
        activations, grad_gates, grad = gates.clone(), torch.empty_like(gates), grad_cell.clone()
        new_cell, output = torch.empty(2, 3, 7), torch.empty(2, 3, 7)
        forward(activations, x, bias, cell, new_cell, output, 0.8)
        backward(activations, cell, new_cell, grad_output, grad_gates, grad, 0.8)
        results.append([activations, new_cell, output, grad_gates, grad])
    torch.testing.assert_close(results[1], results[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("with_output", [True, False])
def test_the_kernel_of_the_projected_gradient_equals_the_operations_of_pytorch(clip, with_output):
    pytest.importorskip("triton")
    from qkv.nn.kernels import lstm_kernels

    torch.manual_seed(0)
    grad_h, h = torch.randn(2, 3, 7), torch.randn(2, 5, 3, 7)[:, 2]
    grad_output = torch.randn(2, 4, 3, 7)[:, 1] if with_output else None
    results = [torch.full((2, 6, 3, 7), torch.nan)[:, 3] for _ in range(2)]
    _projected_gradient(grad_h, grad_output, h, results[0], clip)
    lstm_kernels.projected_gradient(grad_h, grad_output, h, results[1], clip)
    torch.testing.assert_close(results[1], results[0])


def test_a_second_backward_pass_gives_the_same_gradients():
    tensors = inputs()
    states, cells = scan(*tensors, 0.5, 0.7)
    first, second = (torch.autograd.grad(states.sum() + cells.sum(), tensors, retain_graph=True) for _ in range(2))
    torch.testing.assert_close(first, second, rtol=0.0, atol=0.0)
