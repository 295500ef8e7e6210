"""Forward and backward passes, plain and captured."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from qkv.data.tensor_batch import TensorBatch
from qkv.training.passes import CapturedPasses, Passes
from qkv.types import Float, Int, Tensor


@dataclass(frozen=True)
class Batch(TensorBatch):
    tokens: Int[Tensor, "rows length"]
    weights: Float[Tensor, "rows length"]


class Model(nn.Module):
    """A recurrent model with an embedding that the loss does not reach, and a buffer that a pass changes."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 8)
        self.unused = nn.Embedding(3, 3)
        self.cell = nn.GRUCell(8, 8)
        self.out = nn.Linear(8, 7)
        self.register_buffer("count", torch.zeros(()))

    def loss(self, batch: Batch) -> Float[Tensor, ""]:
        self.count += 1
        hidden = torch.zeros(len(batch.tokens), 8, device=batch.tokens.device)
        total = torch.zeros((), device=batch.tokens.device)
        for token, weight in zip(batch.tokens.unbind(1), batch.weights.unbind(1), strict=True):
            total = total + (F.cross_entropy(self.out(hidden), token, reduction="none") * weight).sum()
            hidden = self.cell(self.embed(token), hidden)
        return total / batch.weights.sum()


def batch(rows: int, length: int, seed: int, device: str = "cpu") -> Batch:
    chance = torch.Generator().manual_seed(seed)
    tokens = torch.randint(7, (rows, length), generator=chance)
    return Batch(tokens.to(device), torch.rand(rows, length, generator=chance).to(device))


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}


def test_a_pass_leaves_the_gradient_of_its_batch_alone_clipped_to_the_norm():
    torch.manual_seed(0)
    model, one = Model(), batch(3, 4, seed=1)
    expected = torch.autograd.grad(model.loss(one), [model.out.weight, model.cell.weight_hh])
    passes = Passes(model, model.loss, "float32", clip=1e9)
    passes(batch(3, 4, seed=2))
    outcome = passes(one)
    torch.testing.assert_close([model.out.weight.grad, model.cell.weight_hh.grad], list(expected))
    whole = torch.cat([gradient.flatten() for gradient in gradients(model).values()]).norm()
    torch.testing.assert_close(outcome.norm, whole)
    Passes(model, model.loss, "float32", clip=0.01)(one)
    clipped = torch.cat([gradient.flatten() for gradient in gradients(model).values()]).norm()
    assert clipped.item() == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_captured_passes_give_the_gradients_of_plain_ones_while_the_weights_move(precision: str):
    torch.manual_seed(0)
    model = Model().cuda()
    plain = Passes(model, model.loss, precision, clip=1.0)
    captured = CapturedPasses(model, model.loss, precision, clip=1.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for seed, shape in enumerate([(3, 4), (5, 2), (3, 4), (5, 2), (3, 4)]):
        one = batch(*shape, seed, "cuda")
        expected, wanted = plain(one), gradients(model)
        expected = [value.clone() for value in expected]
        found = captured(one)
        torch.testing.assert_close(list(found), expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(gradients(model), wanted, rtol=1e-3, atol=1e-5)
        optimizer.step()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_rehearsal_leaves_no_trace_in_the_buffers_and_each_pass_one():
    model = Model().cuda()
    captured = CapturedPasses(model, model.loss, "float32", clip=1.0)
    for _ in range(3):
        captured(batch(2, 3, 0, "cuda"))
    assert model.count.item() == 3


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_rehearsal_takes_nothing_from_the_random_numbers_to_come():
    model = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5)).cuda()

    def losses(captured: CapturedPasses[Batch], seeds: range) -> list[float]:
        return [captured(batch(8, 64, seed, "cuda")).loss.item() for seed in seeds]

    one, other = (CapturedPasses(model, lambda x: model(x.weights).square().sum(), "float32", 1.0) for _ in range(2))
    torch.manual_seed(0)
    losses(one, range(3))
    state = torch.cuda.get_rng_state()
    expected = losses(one, range(3, 6))
    torch.cuda.set_rng_state(state)
    assert losses(other, range(3, 6)) == pytest.approx(expected, rel=1e-5)  # which had to rehearse first


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_table_that_grows_leaves_earlier_graphs_right():
    class Growing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(()))
            self.register_buffer("table", torch.zeros(0))

        def loss(self, one: Batch) -> Tensor:
            length = one.weights.shape[1]
            if len(self.table) < length:
                self.table = torch.arange(length, device="cuda", dtype=torch.float32)
            return (one.weights * self.table[:length] * self.weight).sum()

    model = Growing().cuda()
    captured = CapturedPasses(model, model.loss, "float32", 1.0)
    short, long = batch(2, 100, 0, "cuda"), batch(2, 200, 0, "cuda")
    expected = [captured(one).loss.item() for one in (short, long)]
    clutter = [torch.full((100,), torch.nan, device="cuda") for _ in range(100)]
    assert [captured(one).loss.item() for one in (short, long)] == expected
    assert len(clutter) == 100


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_dropout_is_drawn_anew_in_each_replay():
    model = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5)).cuda()
    captured = CapturedPasses(model, lambda one: model(one.weights).square().sum(), "float32", clip=1e9)
    one = batch(8, 64, 0, "cuda")
    losses = {captured(one).loss.item() for _ in range(5)}
    assert len(losses) == 5


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_shapes_beyond_the_most_graphs_run_plainly(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("qkv.training.passes.MOST_GRAPHS", 1)
    model = Model().cuda()
    captured = CapturedPasses(model, model.loss, "float32", clip=1.0)
    captured(batch(2, 3, 0, "cuda"))
    other = batch(3, 3, 0, "cuda")
    found = captured(other).loss.item()
    assert found == pytest.approx(model.loss(other).item(), rel=1e-5)
