"""The forward and backward pass of a training step: plainly, or as a CUDA graph for each shape of batch.

A recurrent decoder launches dozens of small kernels for each token, and the GPU waits for the launches more than it
works. A graph is launched once for all of them. It has fixed shapes, so batches come in few of them
(`qkv.data.batching`), and its memory is its own: what goes in is copied into it, what comes out is copied from it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import nn

from qkv.data.tensor_batch import TensorBatch
from qkv.runtime.device import autocast
from qkv.types import Float, Tensor

MOST_GRAPHS = 128  # shapes beyond these run plainly

Batch = TypeVar("Batch", bound=TensorBatch)


class Outcome(NamedTuple):
    """What a pass says of itself; the gradients, clipped, are where gradients always are."""

    loss: Float[Tensor, ""]
    norm: Float[Tensor, ""]  # of the gradient, before it was clipped


class Passes(Generic[Batch]):
    """Forward and backward, one kernel after the other."""

    def __init__(self, model: nn.Module, loss: Callable[[Batch], Tensor], precision: str, clip: float) -> None:
        self.model = model
        self.loss = loss
        self.precision = precision
        self.clip = clip
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.device = self.parameters[0].device

    def __call__(self, batch: Batch) -> Outcome:
        """Leave the gradients of a batch in the parameters; what was there before is gone."""
        with autocast(self.device, self.precision):
            loss = self.loss(batch)
        for parameter in self.parameters:
            parameter.grad = None
        loss.backward()
        norm = nn.utils.get_total_norm([one.grad for one in self.parameters if one.grad is not None])
        if self.device.type != "cpu" or norm > self.clip:  # a GPU would have to be waited for to know
            nn.utils.clip_grads_with_norm_(self.parameters, self.clip, norm)
        return Outcome(loss.detach(), norm)


class CapturedPasses(Passes[Batch]):
    """Forward and backward as one graph for each shape of batch, captured when the shape is first met."""

    def __init__(self, model: nn.Module, loss: Callable[[Batch], Tensor], precision: str, clip: float) -> None:
        super().__init__(model, loss, precision, clip)
        self._captured: dict[tuple[torch.Size, ...], Captured[Batch]] = {}
        self._gradients = [torch.zeros_like(parameter) for parameter in self.parameters]  # shared by all graphs
        self._outcome = Outcome(*(torch.zeros((), device=self.device) for _ in Outcome._fields))
        self._memory = torch.cuda.graph_pool_handle()  # also shared: no two graphs run at a time

    def __call__(self, batch: Batch) -> Outcome:
        shape = tuple(tensor.shape for tensor in batch.tensors.values())
        captured = self._captured.get(shape)
        if captured is None:
            if len(self._captured) == MOST_GRAPHS:
                return super().__call__(batch)
            captured = self._captured[shape] = self._capture(batch)
        for own, tensor in zip(captured.batch.tensors.values(), batch.tensors.values(), strict=True):
            own.copy_(tensor, non_blocking=True)
        captured.graph.replay()
        for parameter, gradient in zip(self.parameters, self._gradients, strict=True):
            parameter.grad = gradient
        return self._outcome

    def _capture(self, batch: Batch) -> "Captured[Batch]":
        """Run once as a rehearsal, in which kernels are compiled and plans are made, then once more to be captured.

        The rehearsal leaves no trace, in buffers or in what is drawn next: a run that was resumed rehearses again.
        """
        own = batch.with_tensors({name: tensor.clone() for name, tensor in batch.tensors.items()})
        before = [(buffer, buffer.clone()) for buffer in self.model.buffers()]
        aside = torch.cuda.Stream(self.device)
        aside.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(aside), torch.random.fork_rng([self.device]):
            super().__call__(own)
        torch.cuda.current_stream(self.device).wait_stream(aside)
        for buffer, value in before:
            buffer.copy_(value)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._memory):
            outcome = super().__call__(own)
            torch._foreach_copy_(self._gradients, [_gradient(parameter) for parameter in self.parameters])
            torch._foreach_copy_(list(self._outcome), list(outcome))
        return Captured(graph, own, tuple(self.model.buffers()))


@dataclass(frozen=True)
class Captured(Generic[Batch]):
    """A graph, the batch that it reads, and other memory it looks at, which must stay where it is."""

    graph: torch.cuda.CUDAGraph
    batch: Batch
    buffers: tuple[Tensor, ...]  # as they were: a model may put others in their place, such as a longer table


def _gradient(parameter: Tensor) -> Tensor:
    """The gradient of a parameter; zeros where it had no part in the loss."""
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
