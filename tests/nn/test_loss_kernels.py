"""The Triton kernels of the cross-entropy, compared with the formula in float64."""

import pytest
import torch

pytest.importorskip("triton")

from qkv.nn.kernels import loss_kernels
from qkv.nn.kernels.loss_kernels import cross_entropy_rows

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # on a CPU through Triton's interpreter


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(("vocabulary", "padded"), [(37, 64), (64, 64), (150, 192)])
def test_loss_and_gradient_over_the_logits(monkeypatch, smoothing: float, vocabulary: int, padded: int):
    monkeypatch.setattr(loss_kernels, "MAX_BLOCK", 64)
    torch.manual_seed(0)
    logits = 3 * torch.randn(5, padded, device=DEVICE)
    targets = torch.tensor([0, vocabulary - 1, 3, 3, 7], device=DEVICE)
    weights = torch.tensor([0.25, 0.25, 0.0, 0.25, 0.25], device=DEVICE)
    exact = logits[:, :vocabulary].double().requires_grad_()
    log_p = exact.log_softmax(dim=-1)
    per_token = (1 - smoothing) * log_p.gather(1, targets[:, None])[:, 0] + smoothing * log_p.mean(dim=-1)
    expected = -(weights * per_token).sum()
    expected.backward()
    assert exact.grad is not None
    unchanged = cross_entropy_rows(logits.clone(), None, targets, weights, smoothing, vocabulary)
    loss = cross_entropy_rows(logits, logits, targets, weights, smoothing, vocabulary)
    torch.testing.assert_close(loss.double(), expected.detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(unchanged, loss)
    torch.testing.assert_close(logits[:, :vocabulary].double(), exact.grad, rtol=1e-4, atol=1e-6)
    assert not logits[:, vocabulary:].any()
