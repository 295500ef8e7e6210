"""The loss of the next token against PyTorch's own, and its gradient against differences."""

import pytest
import torch
from torch.nn import functional as F

from qkv.objectives import cross_entropy
from qkv.objectives.cross_entropy import mean_cross_entropy, token_cross_entropy
from qkv.types import Tensor

IGNORED = 0


def example(batch: int, length: int, vocabulary: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    chance = torch.Generator().manual_seed(batch * length)
    logits = 3 * torch.randn(batch, length, vocabulary, generator=chance, dtype=torch.float64)
    targets = torch.randint(vocabulary, (batch, length), generator=chance)
    return logits.to(dtype).requires_grad_(), targets


@pytest.mark.parametrize("consume", [False, True])
@pytest.mark.parametrize("chunk", [1, 20, 2**20])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-12), (torch.float32, 1e-6), (torch.bfloat16, 1e-2)])
def test_the_mean_and_its_gradient_are_those_of_pytorch(chunk, smoothing, dtype, close, consume, monkeypatch):
    monkeypatch.setattr(cross_entropy, "CHUNK", chunk)
    logits, targets = example(4, 5, 7, dtype)
    exact = logits.detach().double().requires_grad_()
    expected = F.cross_entropy(exact.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, label_smoothing=smoothing)
    found = mean_cross_entropy(logits, targets, IGNORED, smoothing, consume=consume)
    torch.testing.assert_close(found.double(), expected, rtol=close, atol=close)
    (2 * expected + 1).backward()
    (2 * found + 1).backward()
    assert logits.grad is not None
    torch.testing.assert_close(logits.grad.double(), exact.grad, rtol=close, atol=close)


def test_the_gradient_is_that_of_the_loss_itself_where_nothing_follows_it():
    logits, targets = example(3, 4, 6, torch.float64)
    assert torch.autograd.gradcheck(lambda x: mean_cross_entropy(x, targets, IGNORED, 0.1), logits)


def test_logits_that_were_consumed_cannot_be_used_unnoticed():
    logits, targets = example(3, 4, 6, torch.float64)
    squares = logits**2
    before = squares.detach().clone()
    mean_cross_entropy(logits, targets, IGNORED).backward(retain_graph=True)
    assert (squares == before).all()
    mean_cross_entropy(squares, targets, IGNORED, consume=True)
    assert not (squares == before).any()
    exponentials = logits.exp()  # whose gradient needs them again
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        mean_cross_entropy(exponentials, targets, IGNORED, consume=True).backward()


def test_what_is_ignored_may_be_no_token_at_all():
    logits, targets = example(3, 4, 6, torch.float64)
    expected = mean_cross_entropy(logits, targets, IGNORED, 0.1)
    assert torch.equal(mean_cross_entropy(logits, targets.masked_fill(targets == IGNORED, -1), -1, 0.1), expected)


def test_a_batch_in_which_nothing_counts_has_no_loss_and_no_gradient():
    logits, _ = example(2, 3, 5, torch.float32)
    loss = mean_cross_entropy(logits, torch.full((2, 3), IGNORED), IGNORED, 0.1)
    loss.backward()
    assert loss.item() == 0.0
    assert logits.grad is not None
    assert not logits.grad.any()


def test_the_sum_is_the_mean_times_what_counts():
    logits, targets = example(3, 4, 6, torch.float64)
    counted = (targets != IGNORED).sum()
    torch.testing.assert_close(
        token_cross_entropy(logits, targets, IGNORED).double(),
        mean_cross_entropy(logits, targets, IGNORED) * counted,
        rtol=1e-5,
        atol=0,
    )
