"""Forward and backward pass of a training step, run eagerly or as one CUDA graph per batch shape.

A recurrent decoder launches dozens of small kernels per token, and the GPU spends more time on launches than on
computation. A CUDA graph is launched once for all of them. Its shapes are fixed, so batches come in few of them
(`qkv.datasets.batching`), and it owns its memory: inputs are copied into it and results are copied out of it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from qkv.datasets.tensor_batch import TensorBatch
from qkv.nn.interfaces import Model
from qkv.runtime.device import autocast
from qkv.types import Float, Tensor

MAX_GRAPHS = 128  # further shapes run eagerly

Batch = TypeVar("Batch", bound=TensorBatch)


def prepare_blocks(model: Model, *, compiled: bool, recompute: bool) -> None:
    """Let the backward pass of each repeated block recompute its activations, and compile the blocks to compile.

    Blocks of the same class share their compiled code, so that compiling takes as long as for one block. The kernels of
    a compiled block can be captured in a CUDA graph.
    """
    if recompute:
        for block in model.repeated_blocks:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    if compiled:
        for block in model.compiled_blocks:
            block.compile()


class StepOutput(NamedTuple):
    """Loss and pre-clip gradient norm of one step; the clipped gradients are left in `.grad`."""

    loss: Float[Tensor, ""]
    norm: Float[Tensor, ""]


class TrainStep(Generic[Batch]):
    """Eager forward and backward pass with gradient clipping."""

    def __init__(self, model: nn.Module, loss: Callable[[Batch], Tensor], precision: str, clip: float) -> None:
        self.model = model
        self.loss = loss
        self.precision = precision
        self.clip = clip
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.device = self.parameters[0].device

    def __call__(self, batch: Batch) -> StepOutput:
        """Replace the gradients of the parameters by those of a batch."""
        with autocast(self.device, self.precision):
            loss = self.loss(batch)
        for parameter in self.parameters:
            parameter.grad = None
        loss.backward()
        norm = nn.utils.get_total_norm([parameter.grad for parameter in self.parameters if parameter.grad is not None])
        if self.device.type != "cpu" or norm > self.clip:  # on a GPU, testing the norm would synchronize
            nn.utils.clip_grads_with_norm_(self.parameters, self.clip, norm)
        return StepOutput(loss.detach(), norm)


class CudaGraphTrainStep(TrainStep[Batch]):
    """Forward and backward pass as one CUDA graph per batch shape, captured on the first batch of that shape."""

    def __init__(self, model: nn.Module, loss: Callable[[Batch], Tensor], precision: str, clip: float) -> None:
        super().__init__(model, loss, precision, clip)
        self._graphs: dict[tuple[torch.Size, ...], CapturedGraph[Batch]] = {}
        self._gradients: list[Tensor] = []  # those of the first graph; the others copy theirs into them
        self._output = StepOutput(*(torch.zeros((), device=self.device) for _ in StepOutput._fields))
        self._pool = torch.cuda.graph_pool_handle()  # also shared: only one graph runs at a time

    def __call__(self, batch: Batch) -> StepOutput:
        shape = tuple(tensor.shape for tensor in batch.tensors.values())
        captured = self._graphs.get(shape)
        if captured is None:
            if len(self._graphs) == MAX_GRAPHS:
                return super().__call__(batch)
            captured = self._graphs[shape] = self._capture(batch)
        for static, tensor in zip(captured.batch.tensors.values(), batch.tensors.values(), strict=True):
            static.copy_(tensor, non_blocking=True)
        captured.graph.replay()
        for parameter, gradient in zip(self.parameters, self._gradients, strict=True):
            parameter.grad = gradient
        return self._output

    def _capture(self, batch: Batch) -> "CapturedGraph[Batch]":
        """Run one warmup step, in which kernels are compiled and tuned, then capture a second one.

        The warmup changes neither buffers nor random state: a resumed run warms up again.
        """
        static = batch.with_tensors({name: tensor.clone() for name, tensor in batch.tensors.items()})
        saved_buffers = [(buffer, buffer.clone()) for buffer in self.model.buffers()]
        warmup_stream = torch.cuda.Stream(self.device)
        warmup_stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(warmup_stream), torch.random.fork_rng([self.device]):
            super().__call__(static)
        torch.cuda.current_stream(self.device).wait_stream(warmup_stream)
        for buffer, value in saved_buffers:
            buffer.copy_(value)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            output = super().__call__(static)
            gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
            if self._gradients:
                torch._foreach_copy_(self._gradients, gradients)
            torch._foreach_copy_(list(self._output), list(output))
        self._gradients = self._gradients or gradients
        return CapturedGraph(graph, static, tuple(self.model.buffers()))


@dataclass(frozen=True)
class CapturedGraph(Generic[Batch]):
    """A CUDA graph with the memory that it reads, which must stay alive at its address."""

    graph: torch.cuda.CUDAGraph
    batch: Batch
    buffers: tuple[Tensor, ...]  # at capture time: a model may replace a buffer, for example by a longer table
