"""Rows of a batch for any model that is decoded by its own `step`: recurrent, convolutional and captioning models.

The state of every row is a row of fixed buffers, so that a step has the same shapes and addresses each time and a CUDA
graph can record it, and so that a row can be given to another request at any time. Sources are padded to one length.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
from torch import nn
from torch.nn import functional as F

from qkv.errors import Unsupported
from qkv.generation.runner import Runner, RunnerFactory
from qkv.models.conv_seq2seq import ConvSeq2Seq
from qkv.models.rnn_lm import RNNLM
from qkv.models.rnn_seq2seq import RNNSeq2Seq
from qkv.models.show_attend_tell import ShowAttendTell
from qkv.nn.interfaces import per_row_counters, replace_tensors, state_tensors
from qkv.types import Float, Int, Tensor


def runs_own_steps(model: nn.Module) -> bool:
    """Return whether a model is decoded by its own steps here: its state must have the same size at all of them."""
    if isinstance(model, RNNSeq2Seq) and model.log_mel is not None:
        raise Unsupported("fast decoding", "features of speech")
    return isinstance(model, RNNSeq2Seq | ConvSeq2Seq | ShowAttendTell | RNNLM)


class StateRunner(Runner):
    """Decodes rows by the `step` of a model; `context` is entered around its calls."""

    def __init__(
        self, model: nn.Module, rows: int, source_capacity: int, context: AbstractContextManager[Any] | None = None
    ) -> None:
        self._model = cast(Any, model)
        source_capacity = min(source_capacity, getattr(model.config, "max_length", source_capacity))
        self._context = nullcontext() if context is None else context
        self.rows, self.device = rows, next(model.parameters()).device
        self._rows_of: dict[int, list[int]] = {}  # rows of each source
        self._source_lengths = [0] * rows
        with torch.inference_mode(), self._context:
            state = self._initial_state(self._blank_source(source_capacity))
            shortest = state_tensors(self._initial_state(self._blank_source(1)))
            begin = torch.zeros(1, dtype=torch.long, device=self.device)
            logits, next_state = self._model.step(begin, state)
        self.vocab_size = logits.shape[1]
        before, after = state_tensors(state), state_tensors(next_state)
        self._source_capacity = source_capacity
        self._source_dims = {  # dimensions of each tensor that grow with the source
            name: [dim for dim, size in enumerate(tensor.shape) if size != shortest[name].shape[dim]]
            for name, tensor in before.items()
        }
        self._changing = [name for name, tensor in before.items() if after[name] is not tensor]
        self.buffers = {name: _rows_like(tensor, rows) for name, tensor in before.items()}
        self._state = replace_tensors(state, self.buffers)
        self._counters = [name for name, tensor in before.items() if tensor.ndim == 1 and name in self._changing]
        self._part_rows: list[int] = []  # rows of the last step
        self._part: dict[str, Tensor] = {}  # and their tensors that steps do not change

    def _blank_source(self, capacity: int) -> Any:
        """Return a source of the largest size; for language models, None."""
        if isinstance(self._model, ShowAttendTell):
            config = self._model.config
            return torch.zeros(config.channels, config.height, config.width)
        return None if isinstance(self._model, RNNLM) else [0] * capacity

    def _initial_state(self, *sources: Any) -> Any:
        """Return the state of new rows, one for each source, with a counter for each row."""
        model = self._model
        if sources[0] is None:
            state = model.init_state(len(sources))
        elif isinstance(sources[0], Tensor):
            dtype = next(model.parameters()).dtype
            state = model.init_state(model.encode(torch.stack(sources).to(self.device, dtype)))
        else:
            lengths = torch.tensor([len(source) for source in sources])
            padded = torch.zeros(len(sources), int(lengths.max()), dtype=torch.long)
            for row, source in zip(padded, sources, strict=True):
                row[: len(source)] = torch.tensor(source)
            state = model.init_state(model.encode(padded.to(self.device), lengths.to(self.device)))
        return per_row_counters(state, len(sources), self.device)

    def encode(self, sources: Sequence[int], inputs: Sequence[Any]) -> None:
        with self._context:
            state = self._initial_state(*inputs)
        rows = [row for source in sources for row in self._rows_of[source]]
        index = [number for number, source in enumerate(sources) for _ in self._rows_of[source]]
        self._write(rows, state, torch.tensor(index, device=self.device))
        for source, content in zip(sources, inputs, strict=True):
            for row in self._rows_of[source]:
                self._source_lengths[row] = len(content)

    def reset(self, rows: Sequence[int], sources: Sequence[int] = ()) -> None:
        if not sources:
            self._write(rows, self._initial_state(*[None] * len(rows)))
            return
        self._rows_of |= {source: [] for source in sources}
        for row, source in zip(rows, sources, strict=True):
            self._rows_of[source].append(row)

    def reorder(self, rows: Int[Tensor, "rows"], parents: Int[Tensor, "rows"]) -> None:
        """Only what changes from step to step is copied: beams of one source share the rest."""
        for name in self._changing:
            self.buffers[name][rows] = self.buffers[name][parents]

    def step_all(self, tokens: Int[Tensor, "rows"]) -> Float[Tensor, "rows vocabulary"]:
        with self._context:
            logits, state = self._model.step(tokens.long(), self._state)
        for name, tensor in self._changed(state).items():
            self.buffers[name].copy_(tensor)
        return logits.float()

    def step(self, rows: Int[Tensor, "rows"], tokens: Int[Tensor, "rows"]) -> Float[Tensor, "rows vocabulary"]:
        return self._forward(rows.tolist(), tokens.to(self.device)[:, None])[:, 0]

    def extend(
        self, rows: Sequence[int], tokens: Sequence[Sequence[int]], wanted: Sequence[int] | None = None
    ) -> Float[Tensor, "positions vocabulary"]:
        """Rows with the same number of tokens are run together."""
        assert wanted is None or max(wanted) == 1, "states cannot be truncated, so there are no guesses to check"
        if len({len(text) for text in tokens}) == 1:
            return self._forward(list(rows), torch.tensor(tokens, device=self.device))[:, -1]
        logits = torch.zeros(len(rows), self.vocab_size, device=self.device)
        for length in sorted({len(text) for text in tokens}):
            some = [number for number, text in enumerate(tokens) if len(text) == length]
            texts = torch.tensor([tokens[number] for number in some], device=self.device)
            logits[some] = self._forward([rows[number] for number in some], texts)[:, -1]
        return logits

    def truncate(self, rows: Sequence[int], lengths: Sequence[int]) -> None:
        raise Unsupported("speculative decoding", f"{type(self._model).__name__}, whose states cannot be truncated")

    def _forward(self, rows: list[int], tokens: Int[Tensor, "rows length"]) -> Float[Tensor, "rows length vocabulary"]:
        index = torch.tensor(rows, device=self.device)
        buffers = self._narrowed(max(self._source_lengths[row] for row in rows))
        with self._context:
            logits, state = self._model.forward_from(tokens.long(), self._select(buffers, rows, index))
        for name, tensor in self._changed(state).items():
            buffers[name][index] = tensor.to(buffers[name].dtype)
        return logits.float()

    def _narrowed(self, source_length: int) -> dict[str, Tensor]:
        """Return views of the buffers without what lies beyond a source length."""
        excess, views = self._source_capacity - source_length, dict(self.buffers)
        for name, dims in self._source_dims.items():
            for dim in dims:
                views[name] = views[name].narrow(dim, 0, views[name].shape[dim] - excess)
        return views

    def _select(self, buffers: dict[str, Tensor], rows: list[int], index: Int[Tensor, "rows"]) -> Any:
        """Return the state of some rows; what steps do not change is kept until other rows are run."""
        if rows == list(range(self.rows)):
            return replace_tensors(self._state, buffers)
        if self._part_rows != rows:
            fixed = buffers.keys() - set(self._changing)
            self._part_rows, self._part = rows, {name: buffers[name][index] for name in fixed}
        changing = {name: buffers[name][index] for name in self._changing}
        return replace_tensors(self._state, self._part | changing)

    def _changed(self, state: Any) -> dict[str, Tensor]:
        """Return the tensors of a new state that differ from step to step; counters stay within the model's limit."""
        tensors = state_tensors(state)
        limit = getattr(self._model.config, "max_length", None)
        if limit is not None:  # rows that are finished may be stepped on
            tensors |= {name: tensors[name].clamp(max=limit) for name in self._counters}
        return {name: tensors[name] for name in self._changing}

    def _write(self, rows: Sequence[int], state: Any, index: Int[Tensor, "rows"] | None = None) -> None:
        """Store the state of new rows: row `index[i]` of the state, or row i, in row `rows[i]`."""
        to = torch.tensor(rows, device=self.device)
        for name, tensor in state_tensors(state).items():
            buffer = self.buffers[name]
            sizes = zip(reversed(buffer.shape[1:]), reversed(tensor.shape[1:]), strict=True)
            padded = F.pad(tensor, [side for full, size in sizes for side in (0, full - size)])
            buffer[to] = (padded if index is None else padded[index]).to(buffer.dtype)
        self._part_rows = []


def _rows_like(tensor: Tensor, rows: int) -> Tensor:
    return torch.zeros(rows, *tensor.shape[1:], dtype=tensor.dtype, device=tensor.device)


class StateRunnerFactory(RunnerFactory):
    """Decodes a model by its own `step`, with its own weights or, inside a context, with packed ones."""

    can_truncate = False

    def __init__(
        self, model: nn.Module, max_rows: int, runner_class: type[StateRunner] = StateRunner, packed: Any = None
    ) -> None:
        self._model, self.max_rows, self._runner_class, self.context = model, max_rows, runner_class, packed
        self.device, self.has_source = next(model.parameters()).device, not isinstance(model, RNNLM)
        self.vocab_size = StateRunner(model, 1, 1).vocab_size
        dtype = packed.dtype if packed is not None else str(next(model.parameters()).dtype).removeprefix("torch.")
        self.description = f"PyTorch steps, {dtype} weights"

    def make(self, rows: int, capacity: int, sources: int, source_capacity: int) -> StateRunner:
        return self._runner_class(self._model, rows, source_capacity, self.context)

    def cache_bytes(self, rows: int, capacity: int, source_capacity: int) -> int:
        buffers = StateRunner(self._model, 1, source_capacity, self.context).buffers.values()
        return rows * sum(buffer.numel() * buffer.element_size() for buffer in buffers)
