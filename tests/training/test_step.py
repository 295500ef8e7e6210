"""Training steps, eager and in CUDA graphs."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from qkv.datasets.tensor_batch import TensorBatch
from qkv.training.step import CudaGraphTrainStep, TrainStep
from qkv.types import Float, Int, Tensor


@dataclass(frozen=True)
class Batch(TensorBatch):
    tokens: Int[Tensor, "rows length"]
    weights: Float[Tensor, "rows length"]


class Model(nn.Module):
    """A recurrent model with an unused embedding and a buffer that every forward pass changes."""

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


def random_batch(rows: int, length: int, seed: int, device: str = "cpu") -> Batch:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(7, (rows, length), generator=generator)
    return Batch(tokens.to(device), torch.rand(rows, length, generator=generator).to(device))


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}


def test_a_step_leaves_the_clipped_gradient_of_its_batch():
    torch.manual_seed(0)
    model, batch = Model(), random_batch(3, 4, seed=1)
    expected = torch.autograd.grad(model.loss(batch), [model.out.weight, model.cell.weight_hh])
    train_step = TrainStep(model, model.loss, "float32", clip=1e9)
    train_step(random_batch(3, 4, seed=2))
    output = train_step(batch)
    torch.testing.assert_close([model.out.weight.grad, model.cell.weight_hh.grad], list(expected))
    norm = torch.cat([gradient.flatten() for gradient in gradients(model).values()]).norm()
    torch.testing.assert_close(output.norm, norm)
    TrainStep(model, model.loss, "float32", clip=0.01)(batch)
    clipped = torch.cat([gradient.flatten() for gradient in gradients(model).values()]).norm()
    assert clipped.item() == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_graph_steps_match_eager_gradients_while_weights_change(precision: str):
    torch.manual_seed(0)
    model = Model().cuda()
    eager = TrainStep(model, model.loss, precision, clip=1.0)
    graphed = CudaGraphTrainStep(model, model.loss, precision, clip=1.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for seed, shape in enumerate([(3, 4), (5, 2), (3, 4), (5, 2), (3, 4)]):
        batch = random_batch(*shape, seed, "cuda")
        expected = [value.clone() for value in eager(batch)]
        expected_gradients = gradients(model)
        torch.testing.assert_close(list(graphed(batch)), expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(gradients(model), expected_gradients, rtol=1e-3, atol=1e-5)
        optimizer.step()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_warmup_restores_buffers():
    model = Model().cuda()
    graphed = CudaGraphTrainStep(model, model.loss, "float32", clip=1.0)
    for _ in range(3):
        graphed(random_batch(2, 3, 0, "cuda"))
    assert model.count.item() == 3


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_warmup_restores_the_random_state():
    model = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5)).cuda()

    def losses(graphed: CudaGraphTrainStep[Batch], seeds: range) -> list[float]:
        return [graphed(random_batch(8, 64, seed, "cuda")).loss.item() for seed in seeds]

    first, second = (
        CudaGraphTrainStep(model, lambda x: model(x.weights).square().sum(), "float32", 1.0) for _ in range(2)
    )
    torch.manual_seed(0)
    losses(first, range(3))
    state = torch.cuda.get_rng_state()
    expected = losses(first, range(3, 6))
    torch.cuda.set_rng_state(state)
    assert losses(second, range(3, 6)) == pytest.approx(expected, rel=1e-5)  # runs a warmup first


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_replacing_a_buffer_does_not_break_earlier_graphs():
    class Growing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(()))
            self.register_buffer("table", torch.zeros(0))

        def loss(self, batch: Batch) -> Tensor:
            length = batch.weights.shape[1]
            if len(self.table) < length:
                self.table = torch.arange(length, device="cuda", dtype=torch.float32)
            return (batch.weights * self.table[:length] * self.weight).sum()

    model = Growing().cuda()
    graphed = CudaGraphTrainStep(model, model.loss, "float32", 1.0)
    short, long = random_batch(2, 100, 0, "cuda"), random_batch(2, 200, 0, "cuda")
    expected = [graphed(batch).loss.item() for batch in (short, long)]
    clutter = [torch.full((100,), torch.nan, device="cuda") for _ in range(100)]
    assert [graphed(batch).loss.item() for batch in (short, long)] == expected
    assert len(clutter) == 100


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_dropout_is_resampled_in_each_replay():
    model = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5)).cuda()
    graphed = CudaGraphTrainStep(model, lambda batch: model(batch.weights).square().sum(), "float32", clip=1e9)
    batch = random_batch(8, 64, 0, "cuda")
    losses = {graphed(batch).loss.item() for _ in range(5)}
    assert len(losses) == 5


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_shapes_beyond_max_graphs_run_eagerly(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("qkv.training.step.MAX_GRAPHS", 1)
    model = Model().cuda()
    graphed = CudaGraphTrainStep(model, model.loss, "float32", clip=1.0)
    graphed(random_batch(2, 3, 0, "cuda"))
    batch = random_batch(3, 3, 0, "cuda")
    assert graphed(batch).loss.item() == pytest.approx(model.loss(batch).item(), rel=1e-5)
