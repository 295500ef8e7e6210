"""The operator on a CUDA device, against float64 on the CPU."""

import pytest
import torch

from qkv.attention import Additive, Causal, Padding, ScaledDot, attend
from qkv.attention.backends import BACKENDS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("masked", ["none", "causal", "padding", "both"])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dim", [64, 40])
def test_output_and_gradients_equal_the_float64_reference(dtype, masked, backend, dim):
    torch.manual_seed(0)
    lengths = torch.tensor([0, 50, 17])
    masks = {"none": None, "causal": Causal(), "padding": Padding(lengths), "both": Causal() & Padding(lengths)}
    exact = [torch.randn(3, 4, 50, dim, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    low = [tensor.detach().to("cuda", dtype).requires_grad_() for tensor in exact]
    truth = attend(*exact, score=ScaledDot(), mask=masks[masked], backend="reference").output
    found = attend(*low, score=ScaledDot(), mask=masks[masked], backend=backend).output
    truth.sum().backward()
    found.sum().backward()
    close = {"rtol": 0, "atol": 8 * torch.finfo(dtype).eps if dtype == torch.bfloat16 else 1e-5}
    torch.testing.assert_close(found.cpu().double(), truth, **close)
    for one, other in zip(low, exact, strict=True):
        scale = other.grad.abs().max().item()
        torch.testing.assert_close(one.grad.cpu().double() / scale, other.grad / scale, **close)


def test_the_additive_score_runs_there_too():
    torch.manual_seed(0)
    score = Additive(16, 16, 8, heads=2)
    query, key, value = (torch.randn(2, 2, 5, 16) for _ in range(3))
    truth = attend(query, key, value, score=score).output
    found = attend(query.cuda(), key.cuda(), value.cuda(), score=score.cuda()).output
    torch.testing.assert_close(found.cpu(), truth, rtol=0, atol=1e-5)
