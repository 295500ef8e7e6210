"""Cross-entropy against PyTorch, and its gradient against finite differences."""

import pytest
import torch
from torch.nn import functional as F

from qkv.nn.losses import cross_entropy, mean_cross_entropy, token_cross_entropy
from qkv.types import Tensor

IGNORE = 0


def example(batch: int, length: int, vocabulary: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(batch * length)
    logits = 3 * torch.randn(batch, length, vocabulary, generator=generator, dtype=torch.float64)
    targets = torch.randint(vocabulary, (batch, length), generator=generator)
    return logits.to(dtype).requires_grad_(), targets


@pytest.mark.parametrize("consume", [False, True])
@pytest.mark.parametrize("chunk", [1, 20, 2**20])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6), (torch.bfloat16, 1e-2)]
)
def test_mean_and_gradient_match_pytorch(chunk, smoothing, dtype, tolerance, consume, monkeypatch):
    monkeypatch.setattr(cross_entropy, "CHUNK", chunk)
    logits, targets = example(4, 5, 7, dtype)
    exact = logits.detach().double().requires_grad_()
    expected = F.cross_entropy(exact.flatten(0, 1), targets.flatten(), ignore_index=IGNORE, label_smoothing=smoothing)
    loss = mean_cross_entropy(logits, targets, IGNORE, smoothing, consume=consume)
    torch.testing.assert_close(loss.double(), expected, rtol=tolerance, atol=tolerance)
    (2 * expected + 1).backward()
    (2 * loss + 1).backward()
    assert logits.grad is not None
    torch.testing.assert_close(logits.grad.double(), exact.grad, rtol=tolerance, atol=tolerance)


def test_gradient_matches_finite_differences():
    logits, targets = example(3, 4, 6, torch.float64)
    assert torch.autograd.gradcheck(lambda x: mean_cross_entropy(x, targets, IGNORE, 0.1), logits)


def test_using_consumed_logits_raises():
    logits, targets = example(3, 4, 6, torch.float64)
    squares = logits**2
    before = squares.detach().clone()
    mean_cross_entropy(logits, targets, IGNORE).backward(retain_graph=True)
    assert (squares == before).all()
    mean_cross_entropy(squares, targets, IGNORE, consume=True)
    assert not (squares == before).any()
    exponentials = logits.exp()  # whose backward pass needs its output
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        mean_cross_entropy(exponentials, targets, IGNORE, consume=True).backward()


def test_the_ignored_target_need_not_be_a_token():
    logits, targets = example(3, 4, 6, torch.float64)
    expected = mean_cross_entropy(logits, targets, IGNORE, 0.1)
    assert torch.equal(mean_cross_entropy(logits, targets.masked_fill(targets == IGNORE, -1), -1, 0.1), expected)


def test_a_fully_ignored_batch_has_zero_loss_and_gradient():
    logits, _ = example(2, 3, 5, torch.float32)
    loss = mean_cross_entropy(logits, torch.full((2, 3), IGNORE), IGNORE, 0.1)
    loss.backward()
    assert loss.item() == 0.0
    assert logits.grad is not None
    assert not logits.grad.any()


def test_the_sum_is_the_mean_times_the_number_of_targets():
    logits, targets = example(3, 4, 6, torch.float64)
    counted = (targets != IGNORE).sum()
    torch.testing.assert_close(
        token_cross_entropy(logits, targets, IGNORE).double(),
        mean_cross_entropy(logits, targets, IGNORE) * counted,
        rtol=1e-5,
        atol=0,
    )
